#!/usr/bin/env python3
"""Measures PyTorch's Triton product with a BSR matrix beside `smallworld bench matmul`.

    python3 scripts/peer_bsr.py --program build/smallworld -- --columns 32,512

runs `smallworld bench matmul --json` with the arguments after `--`. It then runs torch.sparse's Triton
kernel on matrices with as many blocks in each row, for every row of the table that the kernel supports:
fprop, and dgrad with a matrix that was transposed before; blocks of 16 and more; N a multiple of 16.
Operands are random and cold as in the program: they rotate through more than twice the L2. Times are
medians over replays of a CUDA graph, if it can be captured, and results go to existing tensors.
"""

import argparse
import csv
import json
import statistics
import subprocess
import sys

import torch

MOST_BYTES = 2e9  # of rotated operands, as in the program
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


def random_pattern(rows, columns, blocks, generator):
    """crow, col: `blocks` blocks spread evenly over the rows, columns drawn without repeats."""
    counts = torch.full((rows,), blocks // rows)
    counts[: blocks % rows] += 1
    order = torch.rand(rows, columns, generator=generator).argsort(dim=1)
    chosen = [order[i, :count].sort().values for i, count in enumerate(counts.tolist())]
    crow = torch.zeros(rows + 1, dtype=torch.int32)
    crow[1:] = counts.cumsum(0)
    return crow.cuda(), torch.cat(chosen).int().cuda()


def cache_bytes():
    properties = torch.cuda.get_device_properties(0)
    return getattr(properties, "L2_cache_size", 64 << 20)


def make_sets(row, units):
    """Operands (bsr, dense, out), enough to be cold."""
    block, n, dtype = int(row["block"]), int(row["columns"]), TYPES[row["precision"]]
    gates = int(row["gates"])
    rows = columns = units
    if row["product"] == "fprop":
        rows *= gates
    else:
        columns *= gates
    blocks = int(row["blocks"]) * gates
    generator = torch.Generator().manual_seed(1)
    crow, col = random_pattern(rows // block, columns // block, blocks, generator)
    weights = blocks * block * block * dtype.itemsize
    total = weights + (rows + columns) * n * dtype.itemsize
    wanted = 2.1 * cache_bytes()
    least = -(-wanted // total)
    count = int(max(least, min(-(-wanted // weights), MOST_BYTES // total)))
    sets = []
    for _ in range(count):
        values = torch.rand(blocks, block, block, device="cuda").mul_(2).sub_(1).to(dtype)
        bsr = torch.sparse_bsr_tensor(crow, col, values, size=(rows, columns))
        dense = torch.rand(columns, n, device="cuda").mul_(2).sub_(1).to(dtype)
        sets.append((bsr, dense, torch.empty(rows, n, device="cuda", dtype=dtype)))
    return sets


def time_between(run, replays):
    """Median seconds of run(), by events, the first left out."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 2)]
    events[0].record()
    for event in events[1:]:
        run()
        event.record()
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) * 1e-3 for a, b in zip(events, events[1:])]
    return statistics.median(times[1:])


def seconds_of(row, units, multiply):
    sets = make_sets(row, units)

    def once():
        for bsr, dense, out in sets:
            multiply(bsr, dense, out=out, skip_checks=True)

    multiply(*sets[0][:2])  # compiles, and refuses
    once()
    passes = max(1, int(1e-3 / max(time_between(once, 1), 1e-6)))
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(passes):
                once()
        run, calls = graph.replay, passes * len(sets)
    except RuntimeError:
        torch.cuda.synchronize()
        run, calls = once, len(sets)
    return time_between(run, 7) / calls


def possible(row):
    return (row["product"] != "wgrad" and row["block"] >= 16 and row["columns"] % 16 == 0 and
            row["precision"] in TYPES)


def microseconds(value):
    return "-" if value is None else f"{value:.1f}"


def print_table(results, out):
    print(f"{results['device']}; {results['units']} units; {results['operands']}; microseconds\n"
          f"{'':46} {'density':>8} {'ours':>9} {'cuBLAS':>9} {'ELL':>9} {'Triton':>9} "
          f"{'floor':>9} {'Triton/ours':>11}", file=out)
    for row in results["rows"]:
        name = (f"{row['precision']} {row['product']}, gates {row['gates']:g}, {row['pattern']}, "
                f"block {row['block']:g}, N = {row['columns']:g}")
        triton = row["triton_us"]
        ratio = "-" if triton is None else f"{triton / row['ours_us']:.2f}"
        times = [microseconds(row[key]) for key in ("ours_us", "cublas_us", "blocked_ell_us",
                                                     "triton_us", "floor_us")]
        print(f"{name:46} {row['density']:8.4f} " + " ".join(f"{t:>9}" for t in times) +
              f" {ratio:>11}", file=out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--program", help="the smallworld program, which runs first")
    source.add_argument("--results", help="earlier output of `smallworld bench matmul --json`")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.add_argument("--csv", metavar="FILE", help="write the table's rows")
    parser.add_argument("arguments", nargs="*", help="arguments of smallworld bench matmul, after --")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("peer_bsr: no GPU found")
    try:
        from torch.sparse._triton_ops import bsr_dense_mm
    except ImportError:
        bsr_dense_mm = None
    if bsr_dense_mm is None:
        raise SystemExit("peer_bsr: this PyTorch lacks the Triton BSR product")

    if options.program:
        command = [options.program, "bench", "matmul", "--json", *options.arguments]
        run = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if run.returncode != 0:
            raise SystemExit(f"peer_bsr: {' '.join(command)} failed")
        results = json.loads(run.stdout)
    else:
        with open(options.results) as file:
            results = json.load(file)

    known = {}  # of rows alike but for the pattern: the kernel's matrix is random anyway
    refusals = set()
    for number, row in enumerate(results["rows"], 1):
        key = tuple(row[k] for k in ("precision", "product", "gates", "block", "columns", "blocks"))
        if possible(row) and key not in known:
            try:
                known[key] = seconds_of(row, results["units"], bsr_dense_mm) * 1e6
            except (RuntimeError, ValueError, NotImplementedError) as error:
                refusals.add(str(error).splitlines()[0])
            torch.cuda.empty_cache()
        row["triton_us"] = known.get(key)
        print(f"\r{number} of {len(results['rows'])}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    for refusal in sorted(refusals):
        print(f"note: {refusal}", file=sys.stderr)

    if options.json:
        print(json.dumps(results))
    else:
        print_table(results, sys.stdout)
    if options.csv:
        with open(options.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, results["rows"][0].keys())
            writer.writeheader()
            writer.writerows(results["rows"])


if __name__ == "__main__":
    main()
