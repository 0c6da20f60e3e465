#!/usr/bin/env python3
"""smallworld.torch.BlockSparseLinear beside nn.Linear and PyTorch's own BSR weights, on a GPU, in bf16.

    scripts/peer_layers.py [--features 4096] [--json]

Medians of a forward pass, and of forward and backward, with weights that no cache holds; and what a call costs the
CPU. PyTorch's BSR has no backward. Exit status 1 where results differ by more than rounding.
"""

import argparse
import json
import statistics
import sys
import time

import numpy
import torch
from torch import nn

from smallworld.torch import BlockSparseLinear

COPIES_BYTES = 200e6  # layers are taken in turn until so many bytes of weights lie between two uses of one


def median_us(call, layers, rounds=40):
    """The median over rounds of the time of one call, of layer after layer."""
    times = []
    for layer in layers + layers[:3]:
        call(layer)
    torch.cuda.synchronize()
    for k in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(4000000)  # until all is issued
        start.record()
        call(layers[k % len(layers)])
        end.record()
        end.synchronize()
        times.append(1000 * start.elapsed_time(end))
    return statistics.median(times)


def overhead_us(call, count=500):
    """What a call costs the CPU, while the GPU has less to do than that."""
    for _ in range(100):
        call()
    torch.cuda.synchronize()
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(count):
            call()
        times.append(time.perf_counter() - start)
        torch.cuda.synchronize()
    return 1e6 * statistics.median(times) / count


def both(x, dy):
    def step(layer):
        layer.weight.grad = x.grad = None
        layer(x).backward(dy)
    return step


def copies(make, bytes_each):
    return [make() for _ in range(min(16, 1 + int(COPIES_BYTES / bytes_each)))]


def row(features, block, density, tokens, random):
    nodes = features // block
    mask = random.random((nodes, nodes)) < density
    numpy.fill_diagonal(mask, True)
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
            weights = copies(lambda: sparse[0].to_dense().detach().to_sparse_bsr((block, block)),
                             mask.sum() * block * block * 2)
            out = nn.functional.linear(rows, weights[0])
            assert (out.float() - expected.float()).norm() < 1e-2 * expected.float().norm()
            found["bsr"] = median_us(lambda weight: nn.functional.linear(rows, weight), weights)
        except (RuntimeError, NotImplementedError, AssertionError) as problem:
            found["bsr"], found["why"] = None, str(problem).splitlines()[0][:80]
    dy_first, dy_rows = torch.randn_like(y), torch.randn_like(expected)
    found["ours_both"] = median_us(both(first, dy_first), sparse)
    found["dense_both"] = median_us(both(rows, dy_rows), dense)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=4096)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.manual_seed(1)
    random, rows = numpy.random.default_rng(1), []
    print(torch.cuda.get_device_name(), torch.__version__)
    small = BlockSparseLinear(numpy.eye(2), 32, bias=False, device="cuda", dtype=torch.bfloat16)
    linear = nn.Linear(64, 64, bias=False, device="cuda", dtype=torch.bfloat16)
    x = torch.randn(64, 64, device="cuda", dtype=torch.bfloat16).t()
    with torch.no_grad():
        plain = [overhead_us(lambda layer=layer: layer(x)) for layer in (small, linear)]
    x.requires_grad_(True)
    print("us of a call's CPU: ours {:.1f}, nn.Linear {:.1f}; with gradients to come {:.1f}, {:.1f}".format(
        *plain, *(overhead_us(lambda layer=layer: layer(x)) for layer in (small, linear))))
    print("us, forward                                        forward and backward")
    print("block density tokens    ours  rows first   dense     BSR      ours   dense")
    for tokens in 512, 8192:
        for block in 16, 32, 64:
            for density in 0.5, 0.2, 0.1, 0.05:
                r = row(options.features, block, density, tokens, random)
                rows.append(r)
                bsr = f"{r['bsr']:8.1f}" if r["bsr"] else "       -"
                print(f"{block:5} {r['density']:7.3f} {tokens:6} {r['ours']:7.1f} {r['ours_rows']:11.1f} "
                      f"{r['dense']:7.1f} {bsr}  {r['ours_both']:8.1f} {r['dense_both']:7.1f}  {r.get('why', '')}",
                      flush=True)
    if options.json:
        print(json.dumps(rows))


if __name__ == "__main__":
    main()
