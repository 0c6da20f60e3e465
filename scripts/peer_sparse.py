#!/usr/bin/env python3
"""Measures cuSPARSE's blocked-ELL product beside `smallworld bench matmul`.

    python3 scripts/peer_sparse.py --program build/smallworld -- --columns 32,512 --product fprop,dgrad
    python3 scripts/peer_sparse.py --program build/smallworld -- --full

runs `smallworld bench matmul --json` with the arguments after `--`, then cuSPARSE, by ctypes, on patterns with as many
blocks in every row, so that its format needs no padding, in the faster order of the activations. Times are medians over
replays of CUDA graphs, with operands rotated through more than twice the L2, as ours are. cuSPARSE has no wgrad; its
product of fp32 rounds to tf32; patterns of barabasi_albert would be mostly padding: these cells are left out. Prints a line
for each cell, how many of them are faster than cuSPARSE's, and by how much at least; --json OUT keeps all rows. Needs PyTorch.
"""

import argparse
import ctypes
import json
import statistics
import subprocess

import torch

PLAIN, R16BF, R32F, INDEX32, ZERO, BY_COLUMN, BY_ROW, DEFAULT = 0, 14, 0, 2, 0, 1, 2, 0
ROUNDS, LEAST = 9, 2e-3


class Sparse:
    """The functions of libcusparse, checked."""

    def __init__(self):
        self.library = ctypes.CDLL("libcusparse.so.12")
        self.library.cusparseGetErrorString.restype = ctypes.c_char_p
        self.handle = ctypes.c_void_p()
        self("Create", ctypes.byref(self.handle))

    def __call__(self, name, *arguments):
        status = getattr(self.library, "cusparse" + name)(*arguments)
        if status:
            raise RuntimeError(f"cusparse{name}: {self.library.cusparseGetErrorString(status).decode()}")

    def ell(self, rows, columns, block, width, index, values):
        made = ctypes.c_void_p()
        self("CreateBlockedEll", ctypes.byref(made), *map(ctypes.c_int64, (rows, columns, block, width)),
             ctypes.c_void_p(index.data_ptr()), ctypes.c_void_p(values.data_ptr()), INDEX32, ZERO, R16BF)
        return made

    def matrix(self, rows, columns, by_column, values):
        made = ctypes.c_void_p()
        self("CreateDnMat", ctypes.byref(made), *map(ctypes.c_int64, (rows, columns, rows if by_column else columns)),
             ctypes.c_void_p(values.data_ptr()), R16BF, BY_COLUMN if by_column else BY_ROW)
        return made


def replayed(run, sets):
    """The median seconds of run(set), all sets in turn, in graphs that take LEAST seconds or more."""
    run(0)
    torch.cuda.synchronize()
    passes = 1
    for rounds in 2, ROUNDS:
        graph, times = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            for k in range(passes * sets):
                run(k % sets)
        for _ in range(rounds):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) / 1e3)
        seconds = statistics.median(times) / passes
        passes = max(1, min(4096 // sets, int(LEAST / seconds)))
    return seconds / sets


def seconds_of(sparse, row, units):
    """cuSPARSE's seconds for the cell, or None where it has no such product."""
    if row["product"] == "wgrad" or row["precision"] != "bf16" or row["pattern"] == "barabasi_albert":
        return None
    block, gates, n, forward = row["block"], row["gates"], row["columns"], row["product"] == "fprop"
    nodes = units // block
    each = max(1, round(row["blocks"] / nodes)) * (1 if forward else gates)  # blocks of a block-row
    out_nodes, in_nodes = (nodes * gates, nodes) if forward else (nodes, nodes * gates)
    index = torch.stack([torch.randperm(in_nodes)[:each].sort()[0] for _ in range(out_nodes)]).int().cuda()
    weights = out_nodes * each * block * block
    l2 = torch.cuda.get_device_properties(0).L2_cache_size
    sets = max(1, min(-(-int(2.1 * l2) // (2 * weights)), 1024, int(2e9 / (2 * (weights + (out_nodes + in_nodes) * block * n)))))
    make = lambda count: torch.randn(count, device="cuda", dtype=torch.bfloat16)
    w = [make(weights) for _ in range(sets)]
    x, y = ([make(count * block * n) for _ in range(sets)] for count in (in_nodes, out_nodes))
    one, zero, best = ctypes.c_float(1), ctypes.c_float(0), None
    for by_column in False, True:
        items = [(sparse.ell(out_nodes * block, in_nodes * block, block, each * block, index, w[k]),
                  sparse.matrix(in_nodes * block, n, by_column, x[k]), sparse.matrix(out_nodes * block, n, by_column, y[k]))
                 for k in range(sets)]
        size = ctypes.c_size_t()
        common = lambda k: (sparse.handle, PLAIN, PLAIN, ctypes.byref(one), items[k][0], items[k][1], ctypes.byref(zero),
                            items[k][2], R32F, DEFAULT)
        sparse("SpMM_bufferSize", *common(0), ctypes.byref(size))
        buffer = torch.empty(max(1, size.value), device="cuda", dtype=torch.uint8)

        def run(k):
            sparse("SetStream", sparse.handle, ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
            sparse("SpMM", *common(k), ctypes.c_void_p(buffer.data_ptr()))

        best = min(filter(None, (best, replayed(run, sets))))
        for ell, a, b in items:
            sparse("DestroySpMat", ell), sparse("DestroyDnMat", a), sparse("DestroyDnMat", b)
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", required=True, help="the smallworld program")
    parser.add_argument("--json", metavar="OUT", help="file for all rows, cuSPARSE's times among them")
    parser.add_argument("arguments", nargs="*", help="of bench matmul, after --")
    options = parser.parse_args()
    command = [options.program, "bench", "matmul", "--json", *options.arguments]
    results = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    torch.manual_seed(1)
    torch.zeros(1, device="cuda")
    sparse, ratios = Sparse(), []
    print(f"{results['device']}; {results['units']} units\n{'':>44} {'ours':>9} {'dense':>9} {'cuSPARSE':>9} microseconds")
    for row in results["rows"]:
        found = seconds_of(sparse, row, results["units"])
        row["blocked_ell_us"] = found and found * 1e6
        if found:
            ratios.append(row["blocked_ell_us"] / row["ours_us"])
            print(f"{row['product']} {row['gates']} gates, {row['pattern']:>14}, block {row['block']:3d}, "
                  f"{row['density']:6.4f}, N {row['columns']:4d} {row['ours_us']:9.1f} {row['dense_us']:9.1f} "
                  f"{row['blocked_ell_us']:9.1f}", flush=True)
    if ratios:
        print(f"{sum(r > 1 for r in ratios)} of {len(ratios)} cells are faster than cuSPARSE's; ratios from {min(ratios):.2f}, "
              f"median {statistics.median(ratios):.2f}")
    if options.json:
        with open(options.json, "w") as out:
            json.dump(results, out)


if __name__ == "__main__":
    main()
