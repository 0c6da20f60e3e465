#!/usr/bin/env python3
"""smallworld's block-sparse product as an autograd function of PyTorch, checked against a dense one.

    examples/bsmm_torch.py              on the CPU
    examples/bsmm_torch.py --device cuda

Exit status 1 if y, dx or dW differ from what torch makes of the dense matrix.
"""

import argparse
import sys
from pathlib import Path

import numpy
import torch

try:
    import smallworld
except ImportError:  # not installed: from this checkout
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
    import smallworld


class BlockSparseProduct(torch.autograd.Function):
    """y = W x for a smallworld.Pattern; w (blocks, block, block) float32, x (features, columns)."""

    @staticmethod
    def forward(context, pattern, w, x):
        operand = w.to(x.dtype)  # bfloat16 where x is, while w stays float32
        context.pattern = pattern
        context.save_for_backward(operand, x)
        return pattern.fprop(operand.detach(), x.detach(), torch.empty_like(x), stream_of(x))

    @staticmethod
    def backward(context, dy):
        w, x = context.saved_tensors
        pattern, dy, stream = context.pattern, dy.contiguous(), stream_of(dy)
        dw = dx = None
        if context.needs_input_grad[1]:
            dw = torch.empty(w.shape, dtype=torch.float32, device=w.device)
            pattern.wgrad(dy, x.detach(), dw, stream)
        if context.needs_input_grad[2]:
            dx = pattern.dgrad(w.detach(), dy, torch.empty_like(x), stream)
        return None, dw, dx


def stream_of(tensor):
    return torch.cuda.current_stream(tensor.device).cuda_stream if tensor.is_cuda else None


def dense(pattern_mask, w):
    """The matrix with w's blocks in their places and zeros elsewhere; differentiable."""
    nodes, block = len(pattern_mask), w.shape[-1]
    full = torch.zeros(nodes, nodes, block, block, dtype=w.dtype, device=w.device)
    i, j = map(torch.as_tensor, numpy.nonzero(pattern_mask))
    return full.index_put((i, j), w).permute(0, 2, 1, 3).reshape(nodes * block, nodes * block)


def difference(a, b):
    return float((a.float() - b.float()).norm() / b.float().norm())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--nodes", type=int, default=24)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--columns", type=int, default=128)
    parser.add_argument("--density", type=float, default=0.2)
    options = parser.parse_args()

    random = numpy.random.default_rng(1)
    mask = random.random((options.nodes,) * 2) < options.density
    numpy.fill_diagonal(mask, True)
    failed = False
    for precision in ["fp32"] + ["bf16"] * (options.device == "cuda"):
        pattern = smallworld.Pattern(mask, options.block, options.device, precision)
        kind = torch.bfloat16 if precision == "bf16" else torch.float32
        torch.manual_seed(1)
        w = torch.randn(pattern.weight_shape, device=options.device, requires_grad=True)
        x = torch.randn(pattern.features, options.columns, device=options.device).to(kind)
        x.requires_grad_(True)
        dy = torch.randn_like(x)

        y = BlockSparseProduct.apply(pattern, w, x)
        dw, dx = torch.autograd.grad(y, (w, x), dy)
        expected = dense(mask, w.to(kind).float()) @ x.float()
        expected_dw, expected_dx = torch.autograd.grad(expected, (w, x), dy.float())

        limit = 1e-5 if precision == "fp32" else 1e-2
        for name, a, b in ("y", y, expected), ("dx", dx, expected_dx), ("dW", dw, expected_dw):
            error = difference(a, b)
            failed |= not error < limit
            print(f"{options.device} {precision} {name:2}: relative difference {error:.1e}, "
                  f"expected below {limit:g}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
