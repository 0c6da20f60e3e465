"""The block-sparse product and convolution, on arrays that speak DLPack."""

import ctypes
import sys
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_char_p, c_int, c_int32, c_int64, c_uint8, c_uint16,
                    c_uint64, c_void_p)

import numpy

from ._library import INT, ConvShape, Handle, c, integer, options

# -------------------------------------------------------------------------------------- DLPack --
# https://dmlc.github.io/dlpack/latest/c_api.html: how NumPy, PyTorch, CuPy and JAX hand each other
# arrays without a copy.


class _DLTensor(Structure):
    _fields_ = [("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32),
                ("ndim", c_int32), ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16),
                ("shape", POINTER(c_int64)), ("strides", POINTER(c_int64)),
                ("byte_offset", c_uint64)]


class _DLManaged(Structure):
    pass


_DLManaged._fields_ = [("tensor", _DLTensor), ("context", c_void_p),
                       ("deleter", CFUNCTYPE(None, POINTER(_DLManaged)))]

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [ctypes.py_object, c_char_p]
_CPU, _CUDA, _FLOAT, _BFLOAT = 1, 2, 2, 4


class _Array:
    """A view of an array that speaks DLPack, dense and in C's order."""

    def __init__(self, name, array, stream):
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"{name}: expected an array with __dlpack__, got "
                            f"{type(array).__name__}")
        device = int(array.__dlpack_device__()[0])
        on_gpu = device == _CUDA
        # 1 is the default stream; nothing else is asked of the exporter on the CPU.
        self.capsule = array.__dlpack__(stream=stream or 1) if on_gpu else array.__dlpack__()
        tensor = _DLManaged.from_address(_capsule_pointer(self.capsule, b"dltensor")).tensor
        self.name, self.device = name, device
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.type = (tensor.code, tensor.bits)
        self.data = (tensor.data or 0) + tensor.byte_offset
        expected = 1
        for i in reversed(range(tensor.ndim)):
            if tensor.strides and self.shape[i] > 1 and tensor.strides[i] != expected:
                raise ValueError(f"{name}: expected a contiguous array")
            expected *= self.shape[i]
        if self.data % 16:
            raise ValueError(f"{name}: expected memory aligned to 16 bytes")


# ------------------------------------------------------------------------------------ products --


class _Product(Handle):
    """What a Pattern and a Conv share: the three products, on arrays of these shapes without their last
    dimension, the columns."""

    def _begin(self, handle, weight_shape, x_shape, y_shape):
        self._keep(c.check(handle), c.product_free)
        self.weight_shape, self.x_shape, self.y_shape = weight_shape, x_shape, y_shape
        self.on_gpu = c.product_on_gpu(self._handle)
        self.columns = c.product_columns(self._handle)
        self.wgrad_columns = c.product_wgrad_columns(self._handle)
        self._operand = ((_FLOAT, 32) if c.product_element_size(self._handle) == 4
                         else (_BFLOAT, 16))

    @staticmethod
    def _blocks(mask, block):
        """The pairs of a mask, and the block's side, checked."""
        mask = numpy.asarray(mask)
        if mask.ndim != 2 or 0 in mask.shape:
            raise ValueError(f"mask: expected (output nodes, input nodes), got {mask.shape}")
        blocks = numpy.ascontiguousarray(numpy.argwhere(mask), numpy.int32)
        if len(blocks) > INT:
            raise ValueError(f"mask: expected at most {INT} blocks, got {len(blocks)}")
        return mask.shape, blocks, integer("block", block, 8, 128)

    def _view(self, name, array, shape, stream, kind=None):
        kind = kind or self._operand
        if isinstance(array, numpy.ndarray):
            if name != "out" and (array.dtype == numpy.float64 or not array.flags.writeable):
                array = numpy.array(array, numpy.float32, order="C")  # DLPack hands on no read-only array
            if not array.flags.writeable:
                raise ValueError(f"{name}: expected a writable array")
        view = _Array(name, array, stream)
        words = {(_FLOAT, 32): "float32", (_BFLOAT, 16): "bfloat16"}
        if view.device != (_CUDA if self.on_gpu else _CPU):
            raise ValueError(f"{name}: expected an array on the {'GPU' if self.on_gpu else 'CPU'}")
        if view.type != kind:
            raise ValueError(f"{name}: expected {words[kind]}, got "
                             f"{words.get(view.type, view.type)}")
        if view.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {view.shape}")
        return view

    @staticmethod
    def _columns(name, array, rows):
        """The number of columns of an array [*rows, columns]."""
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"{name}: expected an array with __dlpack__, got {type(array).__name__}")
        shape = tuple(array.shape)
        if shape[:-1] != rows or shape[-1] < 1:
            expected = ", ".join(map(str, rows))
            raise ValueError(f"{name}: expected shape ({expected}, columns), got {shape}")
        return shape[-1]

    def _out(self, out, shape, like, kind=None):
        """The array for the result, on a GPU of PyTorch or CuPy, as `like` is."""
        if out is not None:
            return out
        if not self.on_gpu:
            return numpy.empty(shape, numpy.float32)
        module = sys.modules[type(like).__module__.partition(".")[0]]
        if hasattr(like, "new_empty"):
            return like.new_empty(shape, dtype=module.float32 if kind else like.dtype)
        if module.__name__ == "cupy":
            return module.empty(shape, "float32" if kind else like.dtype)
        raise ValueError("out: expected an array for the result, which is made for PyTorch and CuPy alone")

    def fprop(self, w, x, out=None, stream=None):
        """y = W x, of any number of columns. `stream` is the number of a CUDA stream, None the default one."""
        return self._multiply(c.fprop, w, "x", x, self.x_shape, self.y_shape, out, stream)

    def dgrad(self, w, dy, out=None, stream=None):
        """dx = W' dy."""
        return self._multiply(c.dgrad, w, "dy", dy, self.y_shape, self.x_shape, out, stream)

    def _multiply(self, function, w, name, x, from_shape, to_shape, out, stream):
        columns = self._columns(name, x, from_shape)
        out = self._out(out, (*to_shape, columns), x)
        views = (self._view("w", w, self.weight_shape, stream),
                 self._view(name, x, (*from_shape, columns), stream),
                 self._view("out", out, (*to_shape, columns), stream))
        c.check(function(self._handle, *(view.data for view in views), columns, stream))
        return out

    def wgrad(self, dy, x, out=None, stream=None):
        """dW = dy x', on the blocks that are there; float32."""
        columns = self._columns("x", x, self.x_shape)
        out = self._out(out, self.weight_shape, x, (_FLOAT, 32))
        views = (self._view("dy", dy, (*self.y_shape, columns), stream),
                 self._view("x", x, (*self.x_shape, columns), stream),
                 self._view("out", out, self.weight_shape, stream, (_FLOAT, 32)))
        c.check(c.wgrad(self._handle, *(view.data for view in views), columns, stream))
        return out

    def wait(self):
        """Waits for what was issued to a GPU, and raises its errors."""
        c.check(c.product_wait(self._handle))


class Pattern(_Product):
    """Which blocks of a matrix are there.

    mask: NumPy (output nodes, input nodes), any, true where there is a block. w is (blocks, block, block), x is
    (in_features, columns) and y (out_features, columns). Arrays are PyTorch's, CuPy's or any with DLPack, of the
    device; NumPy's on the CPU, where float64 is converted. A GPU's are float32 or, with precision="bf16" (the
    default there), bfloat16; the gradient of the weights is float32 always.
    """

    def __init__(self, mask, block, device=None, precision=None, threads=0):
        nodes, blocks, self.block = self._blocks(mask, block)
        self.count = len(blocks)
        self.out_features, self.in_features = (n * self.block for n in nodes)
        self._begin(c.conv_create(*nodes, self.block, blocks.ctypes.data, self.count, None,
                                  options(device, precision, threads)),
                    (self.count, self.block, self.block), (self.in_features,), (self.out_features,))


def pair(name, value, least):
    """One number for rows and columns, or a pair."""
    pair = tuple(value) if numpy.iterable(value) else (value, value)
    if len(pair) != 2 or any(map(numpy.iterable, pair)):
        raise ValueError(f"{name}: expected a number or a pair, got {value!r}")
    return tuple(integer(name, number, least, INT) for number in pair)


def pads(value):
    """((above, below), (left, right)) of a number, of a pair for rows and columns, or of these pairs."""
    both = tuple(value) if numpy.iterable(value) else (value, value)
    if len(both) != 2:
        raise ValueError(f"pad: expected a number, a pair, or two pairs, got {value!r}")
    return tuple(pair("pad", one, 0) for one in both)


def conv_geometry(size, filter, stride, dilation, pad):
    """(the numbers of a convolution as C has them, the rows and columns of its output)"""
    shape = ConvShape(pair("size", size, 1), pair("filter", filter, 1), pair("stride", stride, 1),
                      pair("dilation", dilation, 1), pads(pad))
    out = (c_int * 2)()
    c.check(c.conv_out(byref(shape), out))
    return shape, tuple(out)


class Conv(_Product):
    """A convolution that is block-sparse in its features, and dense in its filter.

    mask: NumPy (output nodes, input nodes), any. size: rows and columns of the input, (1, n) for a signal;
    filter, stride, dilation: numbers or pairs; pad: a number, a pair, or ((above, below), (left, right)).
    w is (blocks, filter rows, filter columns, block, block), x (rows, columns, input features, images) and
    y (*out, output features, images): a pixel's images lie together. dgrad is the transposed convolution.
    Arrays are as of a Pattern.
    """

    def __init__(self, mask, block, size, filter=3, stride=1, dilation=1, pad=0, device=None, precision=None,
                 threads=0):
        nodes, blocks, self.block = self._blocks(mask, block)
        shape, self.out = conv_geometry(size, filter, stride, dilation, pad)
        self.size, self.filter, self.count = tuple(shape.in_), tuple(shape.filter), len(blocks)
        self.out_features, self.in_features = (n * self.block for n in nodes)
        self._begin(c.conv_create(*nodes, self.block, blocks.ctypes.data, self.count, byref(shape),
                                   options(device, precision, threads)),
                    (self.count, *self.filter, self.block, self.block), (*self.size, self.in_features),
                    (*self.out, self.out_features))


def bsmm(pattern, w, x, out=None, stream=None):
    """The block-sparse product y = W x; see Pattern.fprop."""
    return pattern.fprop(w, x, out, stream)
