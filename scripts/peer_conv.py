#!/usr/bin/env python3
"""Measures cuDNN's dense convolution, by PyTorch, beside `smallworld bench conv`.

    python3 scripts/peer_conv.py --program build/smallworld -- --features 1024 --size 32

runs `smallworld bench conv --json` with the arguments after `--`, then the dense convolution of the same
shape: forward, gradient of the input and gradient of the weights, in bf16 and the faster of PyTorch's two
memory formats, cuDNN choosing its algorithms by trial. Times are medians over replays of a CUDA graph.
"""

import argparse
import json
import statistics
import subprocess
import sys

import torch
from torch.nn import grad

REPEATS, ROUNDS = 10, 9


def seconds_of(compute):
    for _ in range(3):
        compute()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            compute()
    times = []
    for _ in range(ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 1e3 / REPEATS)
    return statistics.median(times)


def dense_times(features, size, size_filter, images):
    """{product: seconds} of the faster format."""
    best = {}
    for form in (torch.contiguous_format, torch.channels_last):
        make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16).to(memory_format=form)
        x, dy = make(images, features, size, size), make(images, features, size, size)
        w, pad = make(features, features, size_filter, size_filter), size_filter // 2
        products = {"fprop": lambda: torch.nn.functional.conv2d(x, w, padding=pad),
                    "dgrad": lambda: grad.conv2d_input(x.shape, w, dy, padding=pad),
                    "wgrad": lambda: grad.conv2d_weight(x, w.shape, dy, padding=pad)}
        for name, compute in products.items():
            best[name] = min(best.get(name, float("inf")), seconds_of(compute))
    return best


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--program", required=True, help="the smallworld program")
    parser.add_argument("arguments", nargs="*", help="of bench conv, after --")
    options = parser.parse_args()
    command = [options.program, "bench", "conv", "--json", *options.arguments]
    ours = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    if ours["precision"] != "bf16":
        sys.exit("peer_conv: expected bf16, in which the dense convolution is measured")
    torch.backends.cudnn.benchmark = True
    dense = dense_times(int(ours["features"]), int(ours["size"]), int(ours["filter"]), int(ours["images"]))
    print(f"{ours['device']}; {ours['features']:g} features in blocks of {ours['block']:g}, filter "
          f"{ours['filter']:g}, {ours['size']:g} x {ours['size']:g} pixels, {ours['images']:g} images; "
          f"PyTorch {torch.__version__}\n{'density':>8}" +
          "".join(f" {name:>9} {'of cuDNN':>8}" for name in dense))
    print(f"{'dense':>8}" + "".join(f" {time * 1e6:6.0f} us {1:8.3f}" for time in dense.values()))
    for row in ours["rows"]:
        print(f"{row['density']:8.4f}" +
              "".join(f" {row[name + '_us']:6.0f} us {row[name + '_us'] / 1e6 / time:8.3f}"
                      for name, time in dense.items()))


if __name__ == "__main__":
    main()
