"""Block-sparse layers for PyTorch, and trained models as modules.

    import smallworld.torch
    layer = smallworld.torch.BlockSparseLinear(mask, block=32)      # mask (output nodes, input nodes), of bool
    y = layer(x)                                                    # as nn.Linear: (..., in) to (..., out)
    model = smallworld.torch.SmallWorldLSTM.load("runs/quickstart") # see lstm.py

float32 on a CPU; float32 and bfloat16 on the first GPU, on PyTorch's current stream, where a float32 weight
serves bfloat16 activations too and gets a float32 gradient. float64, bfloat16 on a CPU and tensors on meta are
multiplied by PyTorch as dense ones, and so is what torch.jit.trace and ONNX record. From PyTorch 2.4 on the
products are registered operators, through which torch.compile and torch.export see.

The kernels want the features of activations first in memory and what they are features of, tokens or images,
together. Layers return such tensors, seen as PyTorch's usual shapes, and what works on elements keeps the
order; so nothing is copied between two layers, and tensors in another order are copied once.
"""

import math
import weakref
from functools import partial
from typing import List

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional

from . import products
from ._library import Error, c
from .lstm import SmallWorldLSTM
from .products import Conv, Pattern, pads, pair

__all__ = ["BlockSparseConv2d", "BlockSparseLinear", "Error", "SmallWorldLSTM", "block_sparse", "conv_shape"]


# ------------------------------------------------------------------------------------ products --

_products = {}  # id of a tensor of blocks: (a weak reference to it, its version, {(shape, type, on a GPU): product})


def _product(blocks, shape, like):
    """The Pattern or Conv of these blocks for tensors such as `like`; made once for each tensor of blocks."""
    version = 0 if blocks.is_inference() else blocks._version
    known = _products.get(id(blocks))
    if known is None or known[0]() is not blocks or known[1] != version:
        drop = lambda reference, key=id(blocks): _products.pop(key, None)
        known = _products[id(blocks)] = (weakref.ref(blocks, drop), version, {})
    key = (tuple(shape), like.dtype, like.is_cuda)
    product = known[2].get(key)
    if product is None:
        product = known[2][key] = _make_product(blocks, shape, like)
    return product


def _make_product(blocks, shape, like):
    if like.is_cuda and like.device.index != 0:
        raise ValueError(f"x: expected cuda:0, smallworld's GPU ($CUDA_VISIBLE_DEVICES), got {like.device}")
    if like.dtype not in (torch.float32, torch.bfloat16):
        raise ValueError(f"x: expected float32 or bfloat16, got {like.dtype}")
    nodes, pairs = tuple(shape[:2]), blocks.cpu().numpy()
    mask = numpy.zeros(nodes, bool)
    mask[pairs[:, 0], pairs[:, 1]] = True
    if not numpy.array_equal(numpy.argwhere(mask), pairs):
        raise ValueError("blocks: expected (output node, input node) of each block, ascending")
    how = {"device": like.device.type, "precision": "bf16" if like.dtype == torch.bfloat16 else "fp32"}
    if len(shape) == 3:
        return Pattern(mask, shape[2], **how)
    return Conv(mask, shape[2], *_convolution(shape), **how)


def conv_shape(nodes, block, size, kernel_size, stride=1, dilation=1, padding=0):
    """The numbers that describe a convolution to block_sparse. nodes: of the output, of the input; size: rows
    and columns of the input; padding: a number, a pair, or ((above, below), (left, right))."""
    flat = [number for name, value in (("size", size), ("kernel_size", kernel_size), ("stride", stride),
                                       ("dilation", dilation)) for number in pair(name, value, 1)]
    return [*nodes, block, *flat, *(number for one in pads(padding) for number in one)]


def _convolution(shape):
    """size, kernel_size, stride, dilation and padding of what conv_shape returned."""
    size, kernel, stride, dilation, *pad = (tuple(shape[i:i + 2]) for i in range(3, 15, 2))
    return size, kernel, stride, dilation, tuple(pad)


def _rows(shape, of_input):
    """The shape of x, or of y, without its last dimension."""
    features = shape[1 if of_input else 0] * shape[2]
    if len(shape) == 3:
        return (features,)
    return (*(shape[3:5] if of_input else products.conv_geometry(*_convolution(shape))[1]), features)


def _weight_shape(blocks, shape):
    return (len(blocks), *shape[5:7], shape[2], shape[2])


def _ready(name, tensor, like, shape, product):
    """The tensor, checked, in C's order at a multiple of 16 bytes."""
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {tuple(shape)}, got {tuple(tensor.shape)}")
    if tensor.dtype != like.dtype or tensor.device != like.device:
        raise ValueError(f"{name}: expected {like.dtype} on {like.device}, got {tensor.dtype} on {tensor.device}")
    if tensor.is_cuda and not tensor.is_contiguous():
        rows = tensor.movedim(-1, 0)  # of samples; PyTorch's own copy of them takes four times as long
        count = rows.shape[0]
        columns = rows.numel() // max(count, 1)
        if rows.is_contiguous() and rows.numel() and not (count % 8 or columns % 8 or rows.data_ptr() % 16):
            turned = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            c.check(c.transpose(product._handle, rows.data_ptr(), count, columns, turned.data_ptr(), _stream()))
            return turned
    tensor = tensor.contiguous()
    return tensor if tensor.data_ptr() % 16 == 0 else tensor.clone()


def _ready_x(product, x, transposed):
    return _ready("x", x, x, (*(product.y_shape if transposed else product.x_shape), x.shape[-1]), product)


def _stream():
    """The current stream of cuda:0, as Triton asks for it: torch.cuda.current_stream takes 3 us."""
    return torch._C._cuda_getCurrentRawStream(0)


def _call(function, product, first, second, out):
    columns = second.shape[-1]
    if columns:
        stream = _stream() if out.is_cuda else None
        c.check(function(product._handle, first.data_ptr(), second.data_ptr(), out.data_ptr(), columns, stream))
        return out
    return out.zero_()  # the gradient of weights that saw nothing


def _multiply(product, w, x, transposed):
    """W x, or W' x, of an x that is ready; w is of x's type."""
    target = product.x_shape if transposed else product.y_shape
    return _call(c.dgrad if transposed else c.fprop, product, _ready("w", w, x, product.weight_shape, product), x,
                 x.new_empty((*target, x.shape[-1])))


def _wgrad(product, dy, x):
    """dy x' of what is ready, on the blocks that are there, in float32."""
    return _call(c.wgrad, product, dy, x, torch.empty(product.weight_shape, dtype=torch.float32, device=x.device))


def _gradients(ctx, operand, x, dy, multiply, wgrad):
    """Those of w and of x, by multiply(w, x, transposed) and wgrad(dy, x)."""
    dw = dx = None
    if ctx.needs_input_grad[0]:
        dw = wgrad(*((x, dy) if ctx.transposed else (dy, x))).to(ctx.type)
    if ctx.needs_input_grad[2]:
        dx = multiply(operand, dy, not ctx.transposed)
    return dw, None, dx, None, None, None


class _Multiply(torch.autograd.Function):
    """The product for autograd, without what a registered operator costs in each call. `operand` is w in x's
    type, and w only what the gradient goes to."""

    @staticmethod
    def forward(ctx, w, operand, x, blocks, shape, transposed):
        ctx.product, ctx.transposed, ctx.type = _product(blocks, shape, x), transposed, w.dtype
        x = _ready_x(ctx.product, x, transposed)
        ctx.save_for_backward(operand, x)
        return _multiply(ctx.product, operand, x, transposed)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        product, (operand, x) = ctx.product, ctx.saved_tensors
        dy = _ready_x(product, dy, not ctx.transposed)
        return _gradients(ctx, operand, x, dy, partial(_multiply, product), partial(_wgrad, product))


def _register():
    """The same as an operator, with what torch.compile and torch.export ask of it."""

    @torch.library.custom_op("smallworld::multiply", mutates_args=())
    def multiply(w: Tensor, operand: Tensor, x: Tensor, blocks: Tensor, shape: List[int],
                 transposed: bool) -> Tensor:
        product = _product(blocks, shape, x)
        return _multiply(product, operand, _ready_x(product, x, transposed), transposed)

    @torch.library.custom_op("smallworld::wgrad", mutates_args=())
    def wgrad(dy: Tensor, x: Tensor, blocks: Tensor, shape: List[int]) -> Tensor:
        product = _product(blocks, shape, x)
        return _wgrad(product, _ready_x(product, dy, True), _ready_x(product, x, False))

    def keep(ctx, inputs, output):
        w, operand, x, blocks, ctx.shape, ctx.transposed = inputs
        ctx.save_for_backward(operand, x, blocks)
        ctx.type = w.dtype

    def backward(ctx, dy):
        operand, x, blocks = ctx.saved_tensors
        return _gradients(ctx, operand, x, dy,
                          lambda w, dy, transposed: multiply(w, w, dy, blocks, ctx.shape, transposed),
                          lambda dy, x: wgrad(dy, x, blocks, ctx.shape))

    multiply.register_autograd(backward, setup_context=keep)
    multiply.register_fake(lambda w, operand, x, blocks, shape, transposed:
                           x.new_empty((*_rows(shape, transposed), x.shape[-1])))
    wgrad.register_fake(lambda dy, x, blocks, shape:
                        x.new_empty(_weight_shape(blocks, shape), dtype=torch.float32))
    return multiply


_operator = _register() if hasattr(torch.library, "custom_op") else None  # from PyTorch 2.4 on


def _dense(w, blocks, shape):
    """The weight as PyTorch's dense layers have it, (out_features, in_features, *taps), with zeros where no block
    is."""
    full = w.new_zeros(*shape[:2], *w.shape[1:])
    i, j = blocks.long().to(full.device).unbind(1)
    full = full.index_put((i, j), w)
    full = full.movedim(-2, 1).movedim(-1, 3)  # output node, row, input node, column, taps
    return full.reshape(shape[0] * shape[2], shape[1] * shape[2], *w.shape[1:-2])


def _by_pytorch(w, x, blocks, shape, transposed):
    """What block_sparse returns, by PyTorch's dense operations alone."""
    full = _dense(w.to(x.dtype), blocks, shape)
    if len(shape) == 3:
        return (full.t() if transposed else full) @ x
    if transposed:
        raise ValueError(f"transposed: expected a product, or a convolution of float32, not traced; got {x.dtype}")
    _, _, stride, dilation, ((above, below), (left, right)) = _convolution(shape)
    x = functional.pad(x.permute(3, 2, 0, 1), (left, right, above, below))
    return functional.conv2d(x, full, stride=stride, dilation=dilation).permute(2, 3, 1, 0)


def _is_pytorchs(x):
    """Whether there is no kernel for x, or its address is none to compute with."""
    return (torch.jit.is_tracing() or x.is_meta or x.dtype == torch.float64
            or (x.dtype == torch.bfloat16 and not x.is_cuda))


def block_sparse(w, x, blocks, shape, transposed=False):
    """y = W x, or with `transposed` W' x; differentiable in w and x.

    w: (blocks, block, block), of a convolution (blocks, *kernel_size, block, block); float32, or of x's type. x:
    (features, columns), of a convolution (rows, columns, features, images). blocks: int32 (blocks, 2), of each its
    output and input node, ascending; the product is kept with this tensor. shape: output nodes, input nodes and
    block, or what conv_shape returns."""
    if _is_pytorchs(x):
        return _by_pytorch(w, x, blocks, shape, transposed)
    operand = w if w.dtype == x.dtype else w.detach().to(x.dtype)
    if _operator and torch.compiler.is_compiling():
        return _operator(w, operand, x.contiguous(), blocks, list(shape), transposed)
    if torch.is_grad_enabled():
        return _Multiply.apply(w, operand, x, blocks, shape, transposed)
    product = _product(blocks, shape, x)
    return _multiply(product, operand, _ready_x(product, x, transposed), transposed)


# -------------------------------------------------------------------------------------- layers --


def _mask(graph):
    """bool (output nodes, input nodes) of a mask, or of a networkx graph, whose nodes read their neighbours
    (of a directed graph: those that point to them) and themselves."""
    if hasattr(graph, "adj"):
        place = {node: i for i, node in enumerate(graph)}
        mask = numpy.eye(len(place), dtype=bool)
        for node, near in graph.adj.items():
            for other in near:
                mask[place[other], place[node]] = True
        return mask
    graph = graph.toarray() if hasattr(graph, "toarray") else graph  # SciPy's
    mask = numpy.asarray(graph.cpu() if isinstance(graph, Tensor) else graph) != 0
    if mask.ndim != 2 or not mask.any():
        raise ValueError(f"mask: expected (output nodes, input nodes) with at least one block, got {mask.shape}"
                         f" with {numpy.count_nonzero(mask)}")
    return mask


BLOCKS = (8, 16, 32, 64, 128)


class _BlockSparse(nn.Module):
    def __init__(self, graph, block, taps, bias, device, dtype):
        super().__init__()
        if block not in BLOCKS:
            raise ValueError(f"block: expected {', '.join(map(str, BLOCKS[:-1]))} or {BLOCKS[-1]}, got {block!r}")
        mask = _mask(graph)
        self.nodes, self.block, self.shape = mask.shape, block, (*mask.shape, block)
        self.out_features, self.in_features = (n * block for n in mask.shape)
        self.register_buffer("blocks", torch.from_numpy(numpy.argwhere(mask).astype(numpy.int32)))
        self.weight = nn.Parameter(torch.empty(_weight_shape(self.blocks, [*self.nodes, block, 0, 0, *taps]),
                                               device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(self.out_features, device=device, dtype=dtype)) if bias else None
        self.reset_parameters()

    def reset_parameters(self):
        """As nn.Linear and nn.Conv2d do: uniform within 1 / sqrt(what a feature reads)."""
        reads = torch.bincount(self.blocks[:, 0].long(), minlength=self.nodes[0]) * self.block
        bound = (reads * math.prod(self.weight.shape[1:-2])).clamp(min=1).float().rsqrt().to(self.weight.device)
        with torch.no_grad():
            each = bound[self.blocks[:, 0].long().to(bound.device)]
            self.weight.uniform_(-1, 1).mul_(each.view(-1, *[1] * (self.weight.dim() - 1)))
            if self.bias is not None:
                self.bias.uniform_(-1, 1).mul_(bound.repeat_interleave(self.block))

    @staticmethod
    def _input(x):
        if x.is_cuda and torch.is_autocast_enabled():
            return x.to(torch.get_autocast_gpu_dtype())
        return x.to(torch.get_autocast_cpu_dtype()) if x.device.type == "cpu" and torch.is_autocast_cpu_enabled() else x

    def to_dense(self):
        """The weight as PyTorch's dense layer has it, with zeros where no block is; differentiable."""
        return _dense(self.weight, self.blocks, self.shape)

    def extra_repr(self):
        share = len(self.blocks) / math.prod(self.nodes)
        return (f"{self.in_features}, {self.out_features}, block={self.block}, density={share:.3g}, "
                f"bias={self.bias is not None}")


class BlockSparseLinear(_BlockSparse):
    """nn.Linear whose weight has blocks where a mask says so, and nothing elsewhere.

    graph: a mask (output nodes, input nodes), or a networkx graph. block: 8, 16, 32, 64 or 128 features a node. The
    weight is (blocks, block, block), of [output feature][input feature]; x (..., in_features), y (...,
    out_features)."""

    def __init__(self, graph, block=32, bias=True, device=None, dtype=None):
        super().__init__(graph, block, (), bias, device, dtype)

    def forward(self, x):
        if not torch.jit.is_tracing() and x.shape[-1] != self.in_features:
            raise ValueError(f"x: expected (..., {self.in_features}), got {tuple(x.shape)}")
        x = self._input(x)
        rows = x if x.dim() == 2 else x.reshape(-1, self.in_features)
        y = block_sparse(self.weight, rows.t(), self.blocks, self.shape)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)[:, None]
        return y.t() if x.dim() == 2 else y.t().view(*x.shape[:-1], self.out_features)


class BlockSparseConv2d(_BlockSparse):
    """nn.Conv2d that is block-sparse in its features and dense in its filter, as BlockSparseLinear is.

    kernel_size, stride, dilation: numbers or pairs; padding: a number, a pair, ((above, below), (left, right)), or
    "same" or "valid" as nn.Conv2d has them.
    The weight is (blocks, *kernel_size, block, block); x (images, in_features, rows, columns), or of one image without
    the first."""

    def __init__(self, graph, block=32, kernel_size=3, stride=1, padding=0, dilation=1, bias=True, device=None,
                 dtype=None):
        super().__init__(graph, block, pair("kernel_size", kernel_size, 1), bias, device, dtype)
        self.kernel_size = self.weight.shape[1:3]
        if padding == "same":
            if pair("stride", stride, 1) != (1, 1):
                raise ValueError(f"padding: expected numbers where stride is not 1, got {padding!r}")
            both = [step * (taps - 1) for taps, step in zip(self.kernel_size, pair("dilation", dilation, 1))]
            padding = tuple((all // 2, all - all // 2) for all in both)
        self.how = (stride, dilation, 0 if padding == "valid" else padding)
        self.shape = conv_shape(self.nodes, block, (1, 1), self.kernel_size, *self.how)  # but for the size of x

    def forward(self, x):
        if x.dim() == 3:  # an image without a batch
            return self.forward(x[None])[0]
        if x.dim() != 4:
            raise ValueError(f"x: expected shape (N, C, H, W) or (C, H, W), got {tuple(x.shape)}")
        if not torch.jit.is_tracing() and x.shape[1] != self.in_features:
            raise ValueError(f"x: expected {self.in_features} channels, got shape {tuple(x.shape)}")
        x = self._input(x)
        shape = (*self.shape[:3], *x.shape[2:], *self.shape[5:])
        y = block_sparse(self.weight, x.permute(2, 3, 1, 0), self.blocks, shape)
        if self.bias is not None:
            y = y + self.bias.to(y.dtype)[:, None]
        return y.permute(3, 2, 0, 1)

    def extra_repr(self):
        stride, dilation, padding = self.how
        return (f"{super().extra_repr()}, kernel_size={tuple(self.kernel_size)}, stride={stride}, padding={padding}, "
                f"dilation={dilation}")
