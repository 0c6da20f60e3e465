#!/usr/bin/env python3
"""What others' kernels do with the same shapes, on one GPU, in one run with ours. Needs PyTorch.

    scripts/peer.py lstm --program build/smallworld configs/imdb-100m-hubs.yaml --batch 128 # or --device cpu
    scripts/peer.py sparse --program build/smallworld -- --columns 32,512 --product fprop,dgrad
    scripts/peer.py conv --program build/smallworld -- --features 1024 --size 32
    PYTHONPATH=python scripts/peer.py layers

lstm runs `bench train` and PyTorch's dense LSTM; sparse `bench matmul` and cuSPARSE's blocked ELL; conv `bench conv` and cuDNN's
dense convolution, each with the arguments after `--`; layers `smallworld.torch`, nn.Linear and PyTorch's BSR. Each function
says what it compares. --json OUT keeps all rows.
"""

import argparse
import ctypes
import json
import re
import statistics
import subprocess
import sys
import time

import torch
from torch import nn

ROUNDS, LEAST = 9, 2e-3


def bench(program, *arguments):
    """The results of `smallworld bench`."""
    command = [program, "bench", *arguments, "--json"]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if result.returncode:
        sys.exit(f"peer: {' '.join(command)} failed")
    return json.loads(result.stdout)


def timed(start_to_end):
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    start_to_end()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3


def replayed(run, sets=1):
    """The median seconds of run(set), all sets in turn, by replays of a CUDA graph of LEAST seconds or more."""
    for _ in range(3):
        run(0)
    torch.cuda.synchronize()
    passes = 1
    for rounds in 2, ROUNDS:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for k in range(passes * sets):
                run(k % sets)
        seconds = statistics.median(timed(graph.replay) for _ in range(rounds)) / passes
        passes = max(1, min(4096 // sets, int(LEAST / seconds)))
    return seconds / sets


# -------------------------------------------------------------------------------------------- lstm --

VOCABULARY, EMBEDDING = 256, 64


class Dense(nn.Module):
    """Bytes [T, B] to logits [T, B, 256]."""

    def __init__(self, hidden, layers):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, hidden, layers)
        self.head = nn.Linear(hidden, VOCABULARY)

    def forward(self, inputs, state):
        h, state = self.lstm(self.embedding(inputs), state)
        return self.head(h), state


def parameters_of(hidden, layers):
    """Trained scalars of Dense(hidden, layers)."""
    first = 4 * hidden * (EMBEDDING + hidden) + 8 * hidden
    other = 4 * hidden * 2 * hidden + 8 * hidden
    return VOCABULARY * (EMBEDDING + hidden + 1) + first + (layers - 1) * other


def hidden_for(parameters, layers):
    """The roundest width within 1 % of this number of parameters; cuDNN is faster with round widths."""
    for multiple in (128, 64, 32, 16, 8, 1):
        width = min(range(multiple, 1 << 17, multiple), key=lambda hidden: abs(parameters_of(hidden, layers) - parameters))
        if abs(parameters_of(width, layers) / parameters - 1) <= 0.01:
            return width
    sys.exit(f"peer: no dense LSTM has {parameters} parameters within 1 %")


class Update:
    """Bytes from pinned memory, embedding of 64, LSTM, 256 logits, cross-entropy, backward, clipping by norm, fused Adam.
    Masters and moments are fp32; on a GPU forward and backward run on bf16 copies, made once an update, as bf16 autocast would
    (which runs cuDNN's LSTM in fp16 instead). The state is carried from update to update."""

    def __init__(self, hidden, layers, batch, steps, device):
        torch.manual_seed(1)
        self.device, self.count = device, 0
        self.model = Dense(hidden, layers).to(device)
        self.masters = self.copies = list(self.model.parameters())
        self.texts = [torch.randint(0, 256, (steps + 1, batch), dtype=torch.uint8) for _ in range(8)]
        if device == "cuda":
            self.masters = [p.detach().clone() for p in self.copies]
            for master in self.masters:
                master.grad = torch.empty_like(master)
            self.model.bfloat16()
            self.model.lstm.flatten_parameters()
            self.texts = [text.pin_memory() for text in self.texts]
        self.optimiser = torch.optim.Adam(self.masters, lr=1e-3, fused=device == "cuda" or torch.__version__ >= (2, 4))
        self.state = tuple(torch.zeros(layers, batch, hidden, device=device, dtype=self.copies[0].dtype) for _ in range(2))

    def loss(self):
        text = self.texts[self.count % len(self.texts)].to(self.device, non_blocking=True).long()
        self.count += 1
        logits, state = self.model(text[:-1], self.state)
        self.state = tuple(s.detach() for s in state)
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), text[1:].flatten())

    def train(self):
        if self.device == "cuda":
            with torch.no_grad():
                torch._foreach_copy_(self.copies, self.masters)
        self.model.zero_grad(set_to_none=True)
        self.loss().backward()
        if self.device == "cuda":
            with torch.no_grad():
                torch._foreach_copy_([m.grad for m in self.masters], [c.grad for c in self.copies])
        nn.utils.clip_grad_norm_(self.masters, 1.0)
        self.optimiser.step()

    def score(self):
        with torch.no_grad():
            return self.loss()


def time_of(function, seconds):
    """The median of rounds of about a quarter of a second, input included."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None

    def round_of(count):
        wait()
        start = time.perf_counter()
        for _ in range(count):
            function()
        wait()
        return (time.perf_counter() - start) / count

    round_of(3)
    each = round_of(2)
    count = max(1, round(0.25 / each))
    return statistics.median(round_of(count) for _ in range(max(3, round(seconds / (count * each)))))


def dense_row(parameters, layers, batch, steps, seconds, device):
    hidden = hidden_for(parameters, layers)
    peer = Update(hidden, layers, batch, steps, device)
    update = time_of(peer.train, seconds)
    if not torch.isfinite(peer.score()):
        sys.exit(f"peer: the loss of {layers} x {hidden} is not finite")
    return {"model": f"PyTorch's LSTM, {layers} x {hidden}", "hidden": layers * hidden, "parameters": parameters_of(hidden, layers),
            "ms_per_update": update * 1e3, "bytes_per_second": batch * steps / update,
            "forward_bytes_per_second": batch * steps / time_of(peer.score, seconds / 2)}


def compare_lstm(options):
    """`bench train` of the config and of it with weight norm, since cuDNN has no norm (--also asks for other rows), beside
    updates of PyTorch's dense LSTM of the same parameters (within 1 %), streams and steps, of one layer and of two."""
    rows, threads = [], ["--threads", str(options.threads)] if options.threads else []
    if options.threads:
        torch.set_num_threads(options.threads)
    for more in ["", *(options.also or ["model.norm=weight"])]:
        assignments = [*options.set, *filter(None, more.split(","))]
        assignments += [f"train.batch={options.batch}"] if options.batch else []
        assignments += [f"train.bptt={options.steps}"] if options.steps else []
        rows.append(bench(options.program, "train", options.config, "--device", options.device, *threads,
                          "--seconds", str(3 * options.seconds), *(word for one in assignments for word in ("--set", one))))
        # What has a column, or is equal in all rows, needs no name.
        rows[-1]["model"] = ", ".join(part for part in rows[-1]["model"].split(", ")
                                      if not re.match(r"[\d.e+]+ (units|M parameters)|[BT] = ", part))
    first = rows[0]
    for layers in 1, 2:
        rows.append(dense_row(first["parameters"], layers, first["batch"], first["bptt"], options.seconds, options.device))
        torch.cuda.empty_cache()
    best = {key: max(row[key] for row in rows[-2:]) for key in ("bytes_per_second", "forward_bytes_per_second")}
    kind = f"cuDNN {torch.backends.cudnn.version()}" if options.device == "cuda" else f"{torch.get_num_threads()} threads of PyTorch"
    print(f"B = {first['batch']}, T = {first['bptt']}, {kind}; ratios are to the faster dense LSTM, in updates and in scoring each\n"
          f"{'':54} {'units':>7} {'parameters':>11} {'ms/update':>10} {'bytes/s':>10} {'scoring':>10} {'TFLOP/s':>8} {'ratio':>6} {'scoring':>7}")
    for row in rows:
        row["ratio"], row["forward_ratio"] = (row[key] / best[key] for key in best)
        print(f"{row['model']:54} {row['hidden']:7} {row['parameters']:11} {row['ms_per_update']:10.2f} "
              f"{row['bytes_per_second']:10.0f} {row['forward_bytes_per_second']:10.0f} "
              f"{6e-12 * row['parameters'] * row['bytes_per_second']:8.1f} {row['ratio']:6.2f} {row['forward_ratio']:7.2f}")
    return rows


# ------------------------------------------------------------------------------------------ sparse --

PLAIN, R16BF, R32F, INDEX32, ZERO, BY_COLUMN, BY_ROW, DEFAULT = 0, 14, 0, 2, 0, 1, 2, 0


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


def ell_seconds(sparse, row, units):
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


def compare_sparse(options):
    """`bench matmul` beside cuSPARSE, on patterns with as many blocks in every row, so that its format needs no padding, in the
    faster order of the activations, with operands rotated through more than twice the L2, as ours are. cuSPARSE has no wgrad;
    its product of fp32 rounds to tf32; patterns of barabasi_albert would be mostly padding: these cells are left out."""
    results = bench(options.program, "matmul", *options.arguments)
    sparse, ratios = Sparse(), []
    print(f"{results['units']} units\n{'':>44} {'ours':>9} {'dense':>9} {'cuSPARSE':>9} microseconds")
    for row in results["rows"]:
        found = ell_seconds(sparse, row, results["units"])
        row["blocked_ell_us"] = found and found * 1e6
        if found:
            ratios.append(row["blocked_ell_us"] / row["ours_us"])
            print(f"{row['product']} {row['gates']} gates, {row['pattern']:>14}, block {row['block']:3d}, "
                  f"{row['density']:6.4f}, N {row['columns']:4d} {row['ours_us']:9.1f} {row['dense_us']:9.1f} "
                  f"{row['blocked_ell_us']:9.1f}", flush=True)
    if ratios:
        print(f"{sum(r > 1 for r in ratios)} of {len(ratios)} cells are faster than cuSPARSE's; ratios from {min(ratios):.2f}, "
              f"median {statistics.median(ratios):.2f}")
    return results


# -------------------------------------------------------------------------------------------- conv --

def compare_conv(options):
    """`bench conv` beside the dense convolution of the same shape, forward, gradient of the input and gradient of the weights,
    in bf16 and the faster of PyTorch's two memory formats, cuDNN choosing its algorithms by trial."""
    ours = bench(options.program, "conv", *options.arguments)
    if ours["precision"] != "bf16":
        sys.exit("peer: expected bf16, in which the dense convolution is measured")
    features, size, side, images = (int(ours[key]) for key in ("features", "size", "filter", "images"))
    torch.backends.cudnn.benchmark = True
    dense = {}
    for form in torch.contiguous_format, torch.channels_last:
        make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16).to(memory_format=form)
        x, dy = make(images, features, size, size), make(images, features, size, size)
        w, pad = make(features, features, side, side), side // 2
        products = {"fprop": lambda _: nn.functional.conv2d(x, w, padding=pad),
                    "dgrad": lambda _: nn.grad.conv2d_input(x.shape, w, dy, padding=pad),
                    "wgrad": lambda _: nn.grad.conv2d_weight(x, w.shape, dy, padding=pad)}
        for name, compute in products.items():
            dense[name] = min(dense.get(name, float("inf")), replayed(compute))
    print(f"{features} features in blocks of {ours['block']:g}, filter {side}, {size} x {size} pixels, {images} images\n"
          f"{'density':>8}" + "".join(f" {name:>9} {'of cuDNN':>8}" for name in dense))
    print(f"{'dense':>8}" + "".join(f" {seconds * 1e6:6.0f} us {1:8.3f}" for seconds in dense.values()))
    for row in ours["rows"]:
        print(f"{row['density']:8.4f}" + "".join(f" {row[name + '_us']:6.0f} us {row[name + '_us'] / 1e6 / seconds:8.3f}"
                                                 for name, seconds in dense.items()))
    return ours


# ------------------------------------------------------------------------------------------ layers --

COPIES_BYTES = 200e6  # layers are taken in turn until so many bytes of weights lie between two uses of one


def median_us(call, layers, rounds=40):
    """The median over rounds of the time of one call, of layer after layer."""
    for layer in layers + layers[:3]:
        call(layer)
    times = []
    for k in range(rounds):
        torch.cuda._sleep(4000000)  # until all is issued
        times.append(1e6 * timed(lambda: call(layers[k % len(layers)])))
    return statistics.median(times)


def overhead_us(call, count=500):
    """What a call costs the CPU, while the GPU has less to do than that."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        for _ in range(count):
            call()
        times.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    return 1e6 * statistics.median(times[1:]) / count


def both(x, dy):
    def step(layer):
        layer.weight.grad = x.grad = None
        layer(x).backward(dy)
    return step


def copies(make, bytes_each):
    return [make() for _ in range(min(16, 1 + int(COPIES_BYTES / bytes_each)))]


def layer_row(features, block, density, tokens):
    from smallworld.torch import BlockSparseLinear
    nodes = features // block
    mask = (torch.rand(nodes, nodes) < density).fill_diagonal_(True).numpy()
    how = {"device": "cuda", "dtype": torch.bfloat16}
    sparse = copies(lambda: BlockSparseLinear(mask, block, bias=False, **how), mask.sum() * block * block * 2)
    dense = copies(lambda: nn.Linear(features, features, bias=False, **how), features * features * 2)
    # Features first in memory, as one of our layers leaves them; and rows first, as nn.Linear does.
    first = torch.randn(features, tokens, **how).t().requires_grad_(True)
    rows = first.detach().contiguous().requires_grad_(True)
    found = {"block": block, "density": round(float(mask.mean()), 3), "tokens": tokens}
    y, expected = sparse[0](first), nn.functional.linear(rows, sparse[0].to_dense())
    difference = float((y.detach().float() - expected.detach().float()).norm() / expected.detach().float().norm())
    if not difference < 1e-2:
        sys.exit(f"{found}: relative difference {difference:.1e}")
    with torch.no_grad():
        found["ours"] = median_us(lambda layer: layer(first), sparse)
        found["ours_rows"] = median_us(lambda layer: layer(rows), sparse)
        found["dense"] = median_us(lambda layer: layer(rows), dense)
        try:
            weights = copies(lambda: sparse[0].to_dense().detach().to_sparse_bsr((block, block)), mask.sum() * block * block * 2)
            found["bsr"] = median_us(lambda weight: nn.functional.linear(rows, weight), weights)
        except (RuntimeError, NotImplementedError) as problem:
            found["bsr"], found["why"] = None, str(problem).splitlines()[0][:80]
    dy_first, dy_rows = torch.randn_like(y), torch.randn_like(expected)
    found["ours_both"] = median_us(both(first, dy_first), sparse)
    found["dense_both"] = median_us(both(rows, dy_rows), dense)
    return found


def compare_layers(options):
    """smallworld.torch.BlockSparseLinear beside nn.Linear and PyTorch's own BSR weights, in bf16: a forward pass, and forward
    and backward, with weights that no cache holds; and what a call costs the CPU. PyTorch's BSR has no backward."""
    from smallworld.torch import BlockSparseLinear
    small = BlockSparseLinear(torch.eye(2).numpy(), 32, bias=False, device="cuda", dtype=torch.bfloat16)
    linear = nn.Linear(64, 64, bias=False, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16).t()
    with torch.no_grad():
        plain = [overhead_us(lambda layer=layer: layer(x)) for layer in (small, linear)]
    x.requires_grad_(True)
    print("us of a call's CPU: ours {:.1f}, nn.Linear {:.1f}; with gradients to come {:.1f}, {:.1f}".format(
        *plain, *(overhead_us(lambda layer=layer: layer(x)) for layer in (small, linear))))
    print("us, forward                                        forward and backward\n"
          "block density tokens    ours  rows first   dense     BSR      ours   dense")
    rows = []
    for tokens in 512, 8192:
        for block in 16, 32, 64:
            for density in 0.5, 0.2, 0.1, 0.05:
                r = layer_row(options.features, block, density, tokens)
                rows.append(r)
                bsr = f"{r['bsr']:8.1f}" if r["bsr"] else "       -"
                print(f"{block:5} {r['density']:7.3f} {tokens:6} {r['ours']:7.1f} {r['ours_rows']:11.1f} {r['dense']:7.1f} {bsr}"
                      f"  {r['ours_both']:8.1f} {r['dense_both']:7.1f}  {r.get('why', '')}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    kinds = parser.add_subparsers(required=True, metavar="KIND")
    for name, compare in ("lstm", compare_lstm), ("sparse", compare_sparse), ("conv", compare_conv), ("layers", compare_layers):
        kind = kinds.add_parser(name, help=compare.__doc__.split(",")[0], description=compare.__doc__)
        kind.set_defaults(compare=compare)
        kind.add_argument("--json", metavar="OUT", help="file for all rows")
        if name == "layers":
            kind.add_argument("--features", type=int, default=4096)
            continue
        kind.add_argument("--program", required=True, help="the smallworld program")
        if name == "lstm":
            kind.add_argument("config", help="the smallworld model's config")
            kind.add_argument("--set", action="append", default=[], metavar="KEY.PATH=VALUE", help="override a key of the config")
            kind.add_argument("--also", action="append", metavar="KEY.PATH=VALUE,...", help="add a row with these keys")
            kind.add_argument("--batch", type=int, help="streams; default: the config's")
            kind.add_argument("--steps", type=int, help="bytes of a stream; default: likewise")
            kind.add_argument("--seconds", type=float, default=5, help="measuring time of each model")
            kind.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
            kind.add_argument("--threads", type=int, help="of a CPU, for both; default: what each chooses")
        else:
            kind.add_argument("arguments", nargs="*", help="of the benchmark, after --")
    options = parser.parse_args()
    if getattr(options, "device", "cuda") == "cuda":
        if not torch.cuda.is_available():
            sys.exit("peer: no GPU found")
        torch.zeros(1, device="cuda")
        print(torch.cuda.get_device_name(), end=", ")
    torch.manual_seed(1)
    print(f"PyTorch {torch.__version__}")
    results = options.compare(options)
    if options.json:
        with open(options.json, "w") as out:
            json.dump(results, out)


if __name__ == "__main__":
    main()
