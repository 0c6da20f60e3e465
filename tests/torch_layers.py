"""smallworld.torch: layers against PyTorch's dense ones, finite differences, and registered operators.

    /usr/bin/python3 tests/torch_layers.py BUILD/libsmallworld.so cpu|cuda

On a GPU in bf16 too. Skipped (77) without PyTorch, or a GPU of its; compile and export need PyTorch 2.4.
"""

import copy
import io
import os
import sys
import types
import unittest
from pathlib import Path

import needs

numpy, torch, networkx = (needs.module(name) for name in ("numpy", "torch", "networkx"))
from torch import nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))
os.environ["SMALLWORLD_LIBRARY"] = sys.argv.pop(1)
DEVICE = sys.argv.pop(1)
if DEVICE == "cuda" and not torch.cuda.is_available():
    print("skipped: no GPU")
    sys.exit(needs.SKIPPED)

from smallworld.torch import BlockSparseConv2d, BlockSparseLinear, block_sparse

torch.backends.cudnn.allow_tf32 = False  # which the dense convolutions would take

TYPES = [torch.float32] + [torch.bfloat16] * (DEVICE == "cuda")
LIMIT = {torch.float32: 1e-5, torch.bfloat16: 1e-2}  # relative differences


def mask(rows, columns, share=0.4, seed=1):
    """Any pattern, with an empty row and an empty column."""
    found = numpy.random.default_rng(seed).random((rows, columns)) < share
    found[rows // 2], found[:, 0] = False, False
    found[0, -1] = True
    return found


class Layers(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(1)

    def close(self, found, expected, limit, name=""):
        self.assertEqual(found.shape, expected.shape)
        difference = (found.float() - expected.float()).norm() / expected.float().norm()
        self.assertLess(float(difference), limit, name)

    def compare(self, layer, dense, shape, kind):
        """Outputs and all gradients, with x and the gradient in several orders of memory."""
        layer = layer.to(DEVICE)
        for memory in ("rows", "layer") if len(shape) == 2 else ("images", "layer", "channels last"):
            x = torch.randn(*shape, device=DEVICE).to(kind)
            if memory == "layer":  # as another layer leaves it
                x = x.t().contiguous().t() if x.dim() == 2 else x.permute(2, 3, 1, 0).contiguous().permute(3, 2, 0, 1)
            if memory == "channels last":
                x = x.to(memory_format=torch.channels_last)
            x.requires_grad_(True)
            weights = [layer.weight, layer.bias]
            y = layer(x)
            self.assertEqual(y.dtype, kind)
            dy = torch.randn_like(y.float()).to(kind)
            found = torch.autograd.grad(y, [x, *weights], dy)
            whole = layer.to_dense().to(kind).float()
            expected_y = dense(x.float(), whole, layer.bias)
            expected = torch.autograd.grad(expected_y, [x, *weights], dy.float())
            self.close(y, expected_y, LIMIT[kind])
            for name, a, b in zip(("x", "weight", "bias"), found, expected):
                self.close(a, b, LIMIT[kind], name)
            self.assertEqual(found[1].dtype, torch.float32)

    def test_linear(self):
        for kind in TYPES:
            for block, rows, columns, tokens in (8, 5, 7, 3), (32, 4, 3, 64), (64, 2, 2, 200), (128, 1, 2, 1):
                pattern = mask(rows, columns) if rows > 1 else numpy.ones((1, 2))
                layer = BlockSparseLinear(pattern, block)
                self.compare(layer, functional.linear, (tokens, columns * block), kind)

    def test_leading_dimensions(self):
        layer = BlockSparseLinear(mask(3, 4), 8).to(DEVICE)
        x = torch.randn(2, 5, 32, device=DEVICE)
        y = layer(x)
        self.close(y, functional.linear(x, layer.to_dense(), layer.bias), 1e-5)
        self.close(layer(x[0, 0]), y[0, 0], 1e-5)
        empty = torch.zeros(0, 32, device=DEVICE, requires_grad=True)
        out = layer(empty)
        self.assertEqual(tuple(out.shape), (0, 24))
        out.sum().backward()
        self.assertEqual(float(layer.weight.grad.abs().sum()), 0)

    def test_no_copies_between_layers(self):
        """What a layer returns is in the order that the next one reads."""
        one, two = BlockSparseLinear(mask(4, 4), 8).to(DEVICE), BlockSparseLinear(mask(4, 4), 8).to(DEVICE)
        between = functional.gelu(one(torch.randn(2, 16, 32, device=DEVICE)))
        flat = between.reshape(-1, 32).t()
        self.assertEqual(flat.contiguous().data_ptr(), between.data_ptr())
        two(between)

    def test_conv(self):
        for kind in TYPES:
            for how in ({}, {"stride": 2, "padding": 1}, {"kernel_size": (1, 3), "dilation": 2, "padding": (0, 2)}):
                layer = BlockSparseConv2d(mask(3, 4), 8, **how)
                given = {"stride": 1, "padding": 0, "dilation": 1, **how}
                given.pop("kernel_size", None)
                self.compare(layer, lambda x, w, b: functional.conv2d(x, w, b, **given), (8, 32, 9, 8), kind)

    def test_causal_padding(self):
        layer = BlockSparseConv2d(mask(3, 4), 8, (2, 3), padding=((1, 0), (1, 1))).to(DEVICE)
        x = torch.randn(3, 32, 6, 5, device=DEVICE)
        expected = functional.conv2d(functional.pad(x, (1, 1, 1, 0)), layer.to_dense(), layer.bias)
        self.close(layer(x), expected, 1e-5)
        self.close(layer(x[1]), expected[1], 1e-5)

    def test_transposed(self):
        layer = BlockSparseLinear(mask(3, 4), 8, bias=False).to(DEVICE)
        x = torch.randn(24, 32, device=DEVICE, requires_grad=True)
        y = block_sparse(layer.weight, x, layer.blocks, (3, 4, 8), transposed=True)
        expected = layer.to_dense().t() @ x
        self.close(y, expected, 1e-5)
        dy = torch.randn_like(y)
        for a, b in zip(*(torch.autograd.grad(of, (layer.weight, x), dy) for of in (y, expected))):
            self.close(a, b, 1e-5)

    def test_traced(self):
        """What is traced, with gradients or without, computes: as dense operations, for other batches too."""
        layers = ((BlockSparseLinear(mask(3, 4), 8), (5, 32), (9, 32)),
                  (BlockSparseConv2d(mask(3, 4), 8, 2, stride=2, padding=((1, 0), (0, 1))), (2, 32, 5, 6), (3, 32, 5, 6)))
        for layer, shape, other in layers:
            layer = layer.to(DEVICE)
            with torch.no_grad():
                traced = torch.jit.trace(layer, torch.randn(*shape, device=DEVICE))
            x = torch.randn(*other, device=DEVICE)
            self.close(traced(x), layer(x), 1e-5)
            written = io.BytesIO()
            try:
                torch.onnx.export(layer, (x,), written, dynamo=False) if "dynamo" in torch.onnx.export.__doc__ else \
                    torch.onnx.export(layer, (x,), written)
            except (ImportError, RuntimeError) as missing:  # the package onnx, which newer versions need
                if "onnx" not in str(missing).lower():
                    raise
                continue
            self.assertNotIn(b"smallworld", written.getvalue())
            self.assertGreater(len(written.getvalue()), layer.weight.numel() * 4)

    def test_other_types(self):
        """float64, so that gradcheck works as it is; on a CPU bfloat16 and autocast; tensors without values."""
        linear, conv = BlockSparseLinear(mask(2, 3), 8), BlockSparseConv2d(mask(2, 3), 8, 2, padding="same")
        for layer, shape in (linear, (3, 24)), (conv, (2, 24, 3, 2)):
            x = torch.randn(*shape)
            expected = layer(x)
            double = copy.deepcopy(layer).double()
            self.close(double(x.double()), expected, 1e-6)
            self.assertTrue(torch.autograd.gradcheck(double, (x.double().requires_grad_(True),)))
            y = layer(x.bfloat16())
            self.assertEqual(y.dtype, torch.bfloat16)
            self.close(y, expected, 2e-2)
            with torch.autocast("cpu", torch.bfloat16):
                self.assertEqual(layer(x).dtype, torch.bfloat16)
            self.assertEqual(copy.deepcopy(layer).to("meta")(x.to("meta")).shape, expected.shape)

    def test_same_padding_and_masks(self):
        for kernel, dilation in (3, 1), (2, 1), (2, 3), ((2, 5), 2), ((4, 2), 1):
            layer = BlockSparseConv2d(mask(3, 4), 8, kernel, dilation=dilation, padding="same").to(DEVICE)
            x = torch.randn(2, 32, 6, 7, device=DEVICE)
            expected = functional.conv2d(x, layer.to_dense(), layer.bias, padding="same", dilation=dilation)
            self.close(layer(x), expected, 1e-5)
        scipy = types.SimpleNamespace(toarray=lambda: mask(3, 4))
        self.assertTrue(torch.equal(BlockSparseLinear(scipy, 8).blocks, BlockSparseLinear(mask(3, 4), 8).blocks))

    def test_finite_differences(self):
        linear, conv = BlockSparseLinear(mask(2, 2), 8).to(DEVICE), BlockSparseConv2d(mask(2, 2), 8, 2).to(DEVICE)
        for layer, shape in (linear, (3, 16)), (conv, (2, 16, 3, 2)):
            x = torch.randn(*shape, device=DEVICE, requires_grad=True)
            self.assertTrue(torch.autograd.gradcheck(lambda x, w, b: layer(x), (x, layer.weight, layer.bias),
                                                     eps=0.1, atol=2e-3, rtol=1e-3))

    def test_graphs_and_start(self):
        ring = networkx.cycle_graph(6)
        layer = BlockSparseLinear(ring, 16)
        self.assertEqual(len(layer.blocks), 18)
        self.assertIn("density=0.5", repr(layer))
        directed = networkx.DiGraph([(0, 1)])  # 0 speaks to 1
        self.assertEqual(BlockSparseLinear(directed, 8).blocks.tolist(), [[0, 0], [1, 0], [1, 1]])
        bound = (3 * 16) ** -0.5
        self.assertLess(float(layer.weight.abs().max()), bound)
        self.assertGreater(float(layer.weight.abs().max()), 0.95 * bound)

    def test_state(self):
        one, two = BlockSparseLinear(mask(4, 4), 8), BlockSparseLinear(mask(4, 4, seed=1), 8)
        file = io.BytesIO()
        torch.save(one.state_dict(), file)
        file.seek(0)
        x = torch.randn(5, 32)
        two(x)
        two.load_state_dict(torch.load(file))
        self.assertTrue(torch.equal(one(x), two(x)))
        moved = BlockSparseLinear(numpy.eye(4), 8, bias=False)
        before = moved(x)
        with torch.no_grad():  # other blocks, as many: the product follows
            moved.blocks.copy_(torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]]))
        after = moved(x)
        self.close(after, functional.linear(x, moved.to_dense()), 1e-5)
        self.assertFalse(torch.equal(before, after))

    def test_inference_and_autocast(self):
        layer = BlockSparseLinear(mask(3, 4), 8).to(DEVICE)
        x = torch.randn(16, 32, device=DEVICE)
        with torch.inference_mode():
            self.close(layer(x), functional.linear(x, layer.to_dense(), layer.bias), 1e-5)
        if DEVICE == "cuda":
            with torch.autocast("cuda", torch.bfloat16):
                self.assertEqual(layer(x).dtype, torch.bfloat16)

    @unittest.skipUnless(DEVICE == "cuda", "needs a GPU")
    def test_cuda_graph(self):
        """A captured forward and backward pass, replayed with other inputs."""
        layer = BlockSparseLinear(mask(4, 4), 32).to(DEVICE)
        x = torch.randn(64, 128, device=DEVICE, requires_grad=True)

        def step():
            return torch.autograd.grad(layer(x).square().sum(), [x, layer.weight])

        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = step()
        with torch.no_grad():
            x.copy_(torch.randn_like(x))
        graph.replay()
        for a, b in zip(found, step()):
            self.assertTrue(torch.equal(a, b))

    def test_refusals(self):
        layer = BlockSparseLinear(mask(3, 4), 8).to(DEVICE)
        x = torch.randn(5, 32, device=DEVICE)
        wrong = layer.blocks.flip(0)
        for kind, message, call in (
                (ValueError, "mask: expected", lambda: BlockSparseLinear(numpy.zeros((2, 2)), 8)),
                (ValueError, "block: expected 8, 16, 32, 64 or 128, got 4", lambda: BlockSparseLinear(numpy.eye(2), 4)),
                (ValueError, "x: expected float32 or bfloat16", lambda: layer(x.half())),
                (ValueError, r"x: expected \(\.\.\., 32\), got \(5, 31\)", lambda: layer(x[:, :31])),
                (ValueError, "x: expected 16 channels", lambda: BlockSparseConv2d(numpy.eye(2), 8)(x[None, None])),
                (ValueError, "padding: expected numbers where stride", lambda: BlockSparseConv2d(numpy.eye(2), 8, stride=2, padding="same")),
                (ValueError, "x: expected shape", lambda: block_sparse(layer.weight, x, layer.blocks, (3, 4, 8))),
                (ValueError, "blocks: expected", lambda: block_sparse(layer.weight, x.t(), wrong, (3, 4, 8))),
                (ValueError, "x: expected shape", lambda: BlockSparseConv2d(numpy.eye(2), 8)(x)),
                (ValueError, "kernel_size: expected", lambda: BlockSparseConv2d(numpy.eye(2), 8, 0))):
            with self.assertRaisesRegex(kind, message):
                call()

    @unittest.skipUnless(hasattr(torch.library, "custom_op"), "needs PyTorch 2.4")
    def test_compile_and_export(self):
        net = nn.Sequential(BlockSparseLinear(mask(4, 4), 32), nn.GELU(), BlockSparseLinear(mask(4, 4), 32)).to(DEVICE)
        x = torch.randn(64, 128, device=DEVICE, requires_grad=True)
        expected = net(x)
        dy = torch.randn_like(expected)
        wanted = torch.autograd.grad(expected, [x, *net.parameters()], dy)
        compiled = torch.compile(net, fullgraph=True)
        found = compiled(x)
        self.close(found, expected, 1e-5)
        for a, b in zip(torch.autograd.grad(found, [x, *net.parameters()], dy), wanted):
            self.close(a, b, 1e-5)
        program = torch.export.export(net, (x.detach(),))
        self.assertIn("smallworld.multiply", str(program))
        self.close(program.module()(x.detach()), expected, 1e-5)
        conv = BlockSparseConv2d(mask(3, 4), 32, padding=1).to(DEVICE)
        images = torch.randn(8, 128, 6, 5, device=DEVICE)
        self.close(torch.compile(conv, fullgraph=True)(images), conv(images), 1e-5)
        self.close(torch.export.export(conv, (images,)).module()(images), conv(images), 1e-5)
        layer = net[0]
        torch.library.opcheck(torch.ops.smallworld.multiply.default,
                              (layer.weight, layer.weight.detach(), x.detach().t().contiguous(), layer.blocks,
                               [4, 4, 32], False))


if __name__ == "__main__":
    unittest.main(verbosity=2)
