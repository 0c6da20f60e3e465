"""Models that `smallworld train` made, and the block-sparse product, from Python.

    import smallworld
    model = smallworld.Model.load("runs/quickstart/last.safetensors")
    model.bits_per_character("A warm, bold film.")
    model.features(["A warm, bold film.", "A flat, dull film."])   # NumPy, (2, 2 x units)
    smallworld.classify("reviews.csv", "reviews", minutes=10)["both_error"]

Needs NumPy, and libsmallworld beside this module, in the prefix it was installed to, where the system
looks for libraries, or at $SMALLWORLD_LIBRARY. train, classify and Probe.fit run the program `smallworld`,
which is looked for in the same places, on the PATH, and at $SMALLWORLD_PROGRAM.
"""

import ctypes
import functools
import json
import operator
import os
import re
import shutil
import subprocess
import sys
import tempfile
import weakref
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char_p, c_double, c_float, c_int,
                    c_int32, c_int64, c_size_t, c_uint8, c_uint16, c_uint64, c_void_p)
from pathlib import Path

import numpy

__all__ = ["Conv", "Error", "Model", "Pattern", "Probe", "bsmm", "classify", "program", "train", "version"]


class Error(Exception):
    """What libsmallworld refused, in its own words."""


# --------------------------------------------------------------------------------- the library --


_INT = 2 ** 31 - 1


class _Options(Structure):
    _fields_ = [("device", c_char_p), ("precision", c_char_p), ("threads", c_int),
                ("streams", c_int)]


def _load():
    name, here = "libsmallworld.so.0", Path(__file__).resolve().parent
    given = os.environ.get("SMALLWORLD_LIBRARY")
    near = [folder / name for up in (here, *list(here.parents)[:3])
            for folder in (up, *up.glob("*-linux-gnu"))]
    for path in [given] if given else [*(p for p in near if p.exists()), name]:
        try:
            return ctypes.CDLL(str(path))
        except OSError as problem:
            reason = problem
    raise ImportError(f"smallworld: cannot load libsmallworld: {reason}; "
                      "SMALLWORLD_LIBRARY can name it")


class _ConvShape(Structure):
    _fields_ = [("in_", c_int * 2), ("filter", c_int * 2), ("stride", c_int * 2), ("dilation", c_int * 2),
                ("pad", c_int * 2 * 2)]


_texts = [c_void_p, POINTER(c_char_p), POINTER(c_size_t), c_size_t]
_product = [c_void_p, c_void_p, c_void_p, c_void_p, c_int, c_void_p]
_functions = {  # name: (result, arguments)
    "version": (c_char_p, []),
    "error": (c_char_p, []),
    "load": (c_void_p, [c_char_p, POINTER(_Options)]),
    "free": (None, [c_void_p]),
    "units": (c_int, [c_void_p]),
    "parameters": (c_int64, [c_void_p]),
    "device": (c_char_p, [c_void_p]),
    "frame": (c_size_t, [c_void_p, c_char_p, c_size_t, c_char_p]),
    "score": (c_bool, [*_texts, c_void_p]),
    "states": (c_bool, [*_texts, c_int, c_void_p]),
    "features": (c_bool, [*_texts, c_int, c_int, c_void_p]),
    "on_wait": (None, [c_void_p]),
    "probe_load": (c_void_p, [c_void_p, c_char_p]),
    "probe_free": (None, [c_void_p]),
    "probe_classes": (c_int, [c_void_p]),
    "probe_class": (c_char_p, [c_void_p, c_int]),
    "predict": (c_bool, [*_texts, c_void_p]),
    "generate": (c_bool, [c_void_p, c_char_p, c_size_t, c_size_t, c_double, c_int, c_double,
                          c_uint64, c_char_p]),
    "product_create": (c_void_p, [c_int, c_int, c_void_p, c_int, POINTER(_Options)]),
    "conv_create": (c_void_p, [c_int, c_int, c_int, c_void_p, c_int, POINTER(_ConvShape), POINTER(_Options)]),
    "conv_out": (c_bool, [POINTER(_ConvShape), c_int * 2]),
    "product_free": (None, [c_void_p]),
    "product_on_gpu": (c_bool, [c_void_p]),
    "product_element_size": (c_int, [c_void_p]),
    "product_columns": (c_int, [c_void_p]),
    "product_wgrad_columns": (c_int, [c_void_p]),
    "fprop": (c_bool, _product),
    "dgrad": (c_bool, _product),
    "wgrad": (c_bool, _product),
    "product_wait": (c_bool, [c_void_p]),
}


class _Library:
    def __init__(self):
        library = _load()
        for name, (result, arguments) in _functions.items():
            function = getattr(library, f"smallworld_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)

    def check(self, result):
        if not result:
            reason = self.error().decode("utf-8", "replace")
            if reason == "interrupted":
                _api.PyErr_SetInterrupt()
                _api.PyErr_CheckSignals()  # raises what Python's handler of Ctrl-C does
            raise Error(reason)
        return result


_api = ctypes.pythonapi
_c = _Library()
# Asked by C from time to time: whether Ctrl-C was pressed. It runs no Python code, which would raise.
_interrupted = CFUNCTYPE(c_int)(_api.PyOS_InterruptOccurred)
_c.on_wait(ctypes.cast(_interrupted, c_void_p))


class _Handle:
    """An object of C's, which is freed with its last reference. At the interpreter's end the process frees
    it, as a thread may still be computing with it."""

    def _keep(self, handle, free):
        self._handle = handle
        self._release = weakref.finalize(self, free, handle)
        self._release.atexit = False

    def __reduce_ex__(self, protocol):
        raise TypeError(f"{type(self).__name__}: expected no copy nor pickle of what the library holds; "
                        "make another one")


def __getattr__(name):
    if name == "__version__":
        return version()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def version():
    """The library's version, such as "0.1.0"."""
    return _c.version().decode()


def _integer(name, value, least, most):
    """The value as an int that C's type holds; ctypes would cut off what does not fit."""
    value = operator.index(value)
    if not least <= value <= most:
        raise ValueError(f"{name}: expected {least} to {most}, got {value}")
    return value


def _name(name, value):
    """The value as bytes for C, in which a zero byte would end it."""
    value = os.fsencode(value)
    if b"\0" in value:
        raise ValueError(f"{name}: expected no zero byte, got {value!r}")
    return value


def _bytes(text):
    """A text as bytes. Whole numbers are refused, of which bytes() would make zeros."""
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, numpy.ndarray) and text.dtype != numpy.uint8:
        raise TypeError(f"text: expected an array of uint8, got {text.dtype}")
    if not isinstance(text, (bytes, bytearray, memoryview, numpy.ndarray)):
        raise TypeError(f"text: expected str, bytes or an array of uint8, got {type(text).__name__}")
    return bytes(text)


def _options(device, precision, threads, streams=0):
    text = lambda name, value: None if value is None else _name(name, str(value))
    return byref(_Options(text("device", device), text("precision", precision),
                          _integer("threads", threads, 0, _INT), _integer("streams", streams, 0, _INT)))


def _choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
    return choices.index(value)


# -------------------------------------------------------------------------------------- models --


class Model(_Handle):
    """A trained model. Texts are str (encoded as UTF-8), bytes or arrays of uint8, one or a list of
    them; each is read from a zero state. `framed` texts are read as training documents were: "\\n " + text + " "."""

    STATES = ("cell", "hidden")
    POOLS = ("last", "mean", "max")

    @classmethod
    def load(cls, path, device=None, precision=None, threads=0, streams=0):
        """A checkpoint, such as last.safetensors. device: "auto", "cpu" or "cuda"; precision: "auto",
        "fp32" or "bf16"; threads: of the CPU, 0 for all; streams: texts side by side, 0 for
        32."""
        return cls(_c.check(_c.load(_name("path", path),
                                    _options(device, precision, threads, streams))), path)

    def __init__(self, handle, path):
        self._keep(handle, _c.free)
        self.path = path

    units = property(lambda self: _c.units(self._handle), doc="The width of states.")
    parameters = property(lambda self: _c.parameters(self._handle))
    device = property(lambda self: _c.device(self._handle).decode())

    def __repr__(self):
        return f"<smallworld.Model: {self.units} units, {self.parameters:,} parameters, {self.device}>"

    def _texts(self, texts, framed):
        """([bytes], the arguments that the library's functions begin with)"""
        one = isinstance(texts, (str, bytes, bytearray, memoryview))
        if one or (isinstance(texts, numpy.ndarray) and texts.dtype == numpy.uint8 and texts.ndim == 1):
            texts = [texts]
        texts = [_bytes(text) for text in texts]
        if framed:
            texts = [self._frame(text) for text in texts]
        pointers = (c_char_p * len(texts))(*texts)
        lengths = (c_size_t * len(texts))(*map(len, texts))
        return texts, (self._handle, pointers, lengths, len(texts))

    def _frame(self, text):
        room = ctypes.create_string_buffer(len(text) + 3)
        length = _c.frame(self._handle, text, len(text), room)
        return room.raw[:length]

    @staticmethod
    def _split(texts, rows):
        return numpy.split(rows, numpy.cumsum([len(text) for text in texts])[:-1])

    def score(self, texts, framed=True):
        """For each text, float32 (bytes,): the bits of each byte given those before it, of a first
        byte NaN."""
        texts, arguments = self._texts(texts, framed)
        bits = numpy.empty(sum(map(len, texts)), numpy.float32)
        _c.check(_c.score(*arguments, bits.ctypes.data))
        return self._split(texts, bits) if texts else []

    def bits_per_character(self, texts, framed=True):
        """The mean over all bytes that are predicted: all but the first of each text."""
        bits = numpy.concatenate([b[1:] for b in self.score(texts, framed)] or [[]])
        if bits.size == 0:
            raise ValueError("texts: expected at least two bytes, of which one is predicted")
        return float(numpy.mean(bits, dtype=numpy.float64))

    def states(self, texts, state="cell", framed=True):
        """For each text, float32 (bytes, units): the state after each byte."""
        texts, arguments = self._texts(texts, framed)
        rows = numpy.empty((sum(map(len, texts)), self.units), numpy.float32)
        _c.check(_c.states(*arguments, _choice("state", state, self.STATES), rows.ctypes.data))
        return self._split(texts, rows) if texts else []

    def features(self, texts, state="cell", pool="mean,last", framed=True):
        """float32 (texts, pools x units): the state after the last byte, its mean or its max over the
        bytes, or several of them, joined by commas; what `smallworld features` writes."""
        pools = pool.split(",") if isinstance(pool, str) else [pool]
        if len(set(pools)) < len(pools):
            raise ValueError(f"pool: expected different ones, got {pool!r}")
        chosen = [_choice("pool", one, self.POOLS) for one in pools]
        texts, arguments = self._texts(texts, framed)
        rows = numpy.empty((len(chosen), len(texts), self.units), numpy.float32)
        for part, one in zip(rows, chosen):
            _c.check(_c.features(*arguments, _choice("state", state, self.STATES), one, part.ctypes.data))
        return rows.swapaxes(0, 1).reshape(len(texts), len(chosen) * self.units)

    def predict(self, texts, probe, framed=True):
        """For each text a dict of the probability of each class, likeliest first. probe: a Probe, or the
        path of a .probe.safetensors that `smallworld probe --out` wrote for this model."""
        texts, (_, *arguments) = self._texts(texts, framed)
        probe = probe.path if isinstance(probe, Probe) else probe
        saved = _c.check(_c.probe_load(self._handle, _name("probe", probe)))
        try:
            names = [_c.probe_class(saved, k).decode("utf-8", "replace") for k in range(_c.probe_classes(saved))]
            likely = numpy.empty((len(texts), len(names)))
            _c.check(_c.predict(saved, *arguments, likely.ctypes.data))
        finally:
            _c.probe_free(saved)
        return [dict(sorted(zip(names, map(float, row)), key=lambda pair: -pair[1])) for row in likely]

    def generate(self, count=500, prompt=b"\n ", temperature=1.0, top_k=0, top_p=1.0, seed=1):
        """`count` bytes that follow the prompt."""
        prompt = _bytes(prompt)
        count = _integer("count", count, 0, 2 ** 40)
        top_k = _integer("top_k", top_k, 0, _INT)
        seed = _integer("seed", seed, 0, 2 ** 64 - 1)
        text = ctypes.create_string_buffer(max(count, 1))
        _c.check(_c.generate(self._handle, prompt, len(prompt), count, temperature, top_k, top_p,
                             seed, text))
        return text.raw[:count]


# ------------------------------------------------------------------------------------- program --


def program():
    """The path of the program `smallworld`."""
    here = Path(__file__).resolve().parent
    near = [here / "smallworld-program", *(up / "bin" / "smallworld" for up in list(here.parents)[:3]),
            here.parent / "build" / "smallworld"]
    found = os.environ.get("SMALLWORLD_PROGRAM") or next((str(p) for p in near if p.is_file()), None)
    found = found or shutil.which("smallworld")
    if not found:
        raise FileNotFoundError("smallworld: expected the program `smallworld` on the PATH, or at "
                                "$SMALLWORLD_PROGRAM")
    return found


def _run(command, *arguments):
    """What a command prints with --json. Its progress goes to standard error, and its last line there is
    the reason if it fails."""
    given = [str(one) for one in arguments]
    process = subprocess.Popen([program(), command, *given, "--json"], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    said = b""
    try:
        while piece := process.stderr.read1(4096):
            said = (said + piece)[-8192:]
            sys.stderr.write(piece.decode("utf-8", "replace"))
            sys.stderr.flush()
        out = process.stdout.read()
    except BaseException:
        process.terminate()  # it saves what it has
        raise
    finally:
        process.wait()
        process.stdout.close()
        process.stderr.close()
    if process.returncode:
        lines = [line for line in re.split(rb"[\r\n]", said) if line.startswith(b"smallworld: ")]
        raise Error((lines or [b"smallworld: failed"])[-1][len(b"smallworld: "):].decode("utf-8", "replace"))
    return json.loads(out.splitlines()[-1])


@functools.lru_cache(maxsize=None)
def _keys():
    """Every key of a config."""
    listed = subprocess.run([program(), "train", "--help-config"], stdout=subprocess.PIPE, check=True)
    return [f"{section}.{key}"
            for section, names in re.findall(r"(?m)^(\w+):\n((?:  .*\n)+)", listed.stdout.decode())
            for key in re.findall(r"(?m)^  (\w+) \(", names)]


def _setting(name, value):
    """--set KEY=VALUE for a key, or for its last part alone where that is unique."""
    found = [key for key in _keys() if name in (key, key.partition(".")[2])]
    if len(found) != 1:
        raise TypeError(f"train: expected the name of a setting, such as lr or model.hidden, got {name!r}"
                        + (f", which may be {' or '.join(found)}" if found else ""))
    return ["--set", f"{found[0]}={json.dumps(value if not isinstance(value, os.PathLike) else str(value))}"]


def train(source, out=None, resume=False, overwrite=False, **settings):
    """Trains a model as `smallworld train` does, with its progress on standard error, and loads it.

    source: a config.yaml, or a text, table or folder, or a list of them, for which a model is chosen. out:
    the run's folder. settings: keys of a config, whole or their last part: minutes=2,
    **{"model.hidden": 512}."""
    texts = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    config = len(texts) == 1 and str(texts[0]).endswith((".yaml", ".yml"))
    given = [texts[0]] if config else [flag for text in texts for flag in ("--data", text)]
    for name, value in settings.items():
        given += _setting(name, value)
    given += ["--out", out] if out is not None else []
    given += ["--resume"] * resume + ["--overwrite"] * overwrite
    return Model.load(_run("train", *given)["checkpoint"])


def classify(train, out, test=None, model=None, minutes=10, text_column=None, label_column=None):
    """Makes a classifier of labelled documents in the folder `out`, as `smallworld classify` does. Returns
    its errors beside those of n-grams and of the commonest class, in per cent, and which was saved.
    `smallworld predict OUT` classes more text."""
    given = ["--train", train, "--out", out, "--minutes", minutes]
    for flag, value in (("--test", test), ("--model", model.path if isinstance(model, Model) else model),
                        ("--text-column", text_column), ("--label-column", label_column)):
        given += [flag, value] if value is not None else []
    return _run("classify", *given)


class Probe:
    """A linear classifier on a model's features. path: its file; result: what `smallworld probe --json`
    says of it, with its `valid_error` on held-out texts."""

    def __init__(self, path, result=None):
        self.path, self.result = path, result

    @classmethod
    def fit(cls, model, texts, labels, penalty="l2"):
        """Fits logistic regression on the features of texts, mean and last, whose labels are integers or
        names; C and the better features are chosen on a fifth of them."""
        texts, labels = [_bytes(text) for text in texts], [str(label) for label in labels]
        if len(texts) != len(labels):
            raise ValueError(f"labels: expected {len(texts)}, got {len(labels)}")
        here = Path(tempfile.mkdtemp(prefix="smallworld-"))
        probe = cls(str(here / "p.probe.safetensors"))
        weakref.finalize(probe, shutil.rmtree, here, ignore_errors=True)
        lines = [label.encode() + b"\t" + re.sub(rb"[\r\n]", b" ", text) + b"\n" for label, text in zip(labels, texts)]
        (here / "texts.tsv").write_bytes(b"".join(lines))
        _run("features", model.path, "--data", here / "texts.tsv", "--out", here / "x")
        probe.result = _run("probe", "--train", here / "x", "--test", here / "x", "--penalty", penalty, "--out",
                            here / "p")
        for left in "x.npy", "x.labels.npy", "texts.tsv":
            (here / left).unlink()
        return probe

    def save(self, path):
        """Writes the probe to a file, PREFIX.probe.safetensors by custom, for `smallworld predict` and show."""
        shutil.copyfile(self.path, path)


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


class _Product(_Handle):
    """What a Pattern and a Conv share: the three products, on arrays of these shapes without their last
    dimension, the columns."""

    def _begin(self, handle, weight_shape, x_shape, y_shape):
        self._keep(_c.check(handle), _c.product_free)
        self.weight_shape, self._x_shape, self._y_shape = weight_shape, x_shape, y_shape
        self.on_gpu = _c.product_on_gpu(self._handle)
        self.columns = _c.product_columns(self._handle)
        self.wgrad_columns = _c.product_wgrad_columns(self._handle)
        self._operand = ((_FLOAT, 32) if _c.product_element_size(self._handle) == 4
                         else (_BFLOAT, 16))

    @staticmethod
    def _blocks(mask, block):
        """The pairs of a mask, and the block's side, checked."""
        mask = numpy.asarray(mask)
        if mask.ndim != 2 or 0 in mask.shape:
            raise ValueError(f"mask: expected (output nodes, input nodes), got {mask.shape}")
        blocks = numpy.ascontiguousarray(numpy.argwhere(mask), numpy.int32)
        if len(blocks) > _INT:
            raise ValueError(f"mask: expected at most {_INT} blocks, got {len(blocks)}")
        return mask.shape, blocks, _integer("block", block, 8, 128)

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
        return self._multiply(_c.fprop, w, "x", x, self._x_shape, self._y_shape, out, stream)

    def dgrad(self, w, dy, out=None, stream=None):
        """dx = W' dy."""
        return self._multiply(_c.dgrad, w, "dy", dy, self._y_shape, self._x_shape, out, stream)

    def _multiply(self, function, w, name, x, from_shape, to_shape, out, stream):
        columns = self._columns(name, x, from_shape)
        out = self._out(out, (*to_shape, columns), x)
        views = (self._view("w", w, self.weight_shape, stream),
                 self._view(name, x, (*from_shape, columns), stream),
                 self._view("out", out, (*to_shape, columns), stream))
        _c.check(function(self._handle, *(view.data for view in views), columns, stream))
        return out

    def wgrad(self, dy, x, out=None, stream=None):
        """dW = dy x', on the blocks that are there; float32."""
        columns = self._columns("x", x, self._x_shape)
        out = self._out(out, self.weight_shape, x, (_FLOAT, 32))
        views = (self._view("dy", dy, (*self._y_shape, columns), stream),
                 self._view("x", x, (*self._x_shape, columns), stream),
                 self._view("out", out, self.weight_shape, stream, (_FLOAT, 32)))
        _c.check(_c.wgrad(self._handle, *(view.data for view in views), columns, stream))
        return out

    def wait(self):
        """Waits for what was issued to a GPU, and raises its errors."""
        _c.check(_c.product_wait(self._handle))


class Pattern(_Product):
    """Which blocks of a square matrix are there.

    mask: NumPy (nodes, nodes) of output and input nodes, true where there is a block; every node's own
    block must be there. w is (blocks, block, block); x and y are (features, columns). Arrays are PyTorch's,
    CuPy's or any with DLPack, of the device; NumPy's on the CPU, where float64 is converted. A GPU's are
    float32 or, with precision="bf16" (the default there), bfloat16; the gradient of the weights is float32
    always.
    """

    def __init__(self, mask, block, device=None, precision=None, threads=0):
        (self.nodes, inputs), blocks, self.block = self._blocks(mask, block)
        if self.nodes != inputs:
            raise ValueError(f"mask: expected (nodes, nodes), got {(self.nodes, inputs)}")
        self.count, self.features = len(blocks), self.nodes * self.block
        self._begin(_c.product_create(self.nodes, self.block, blocks.ctypes.data, self.count,
                                      _options(device, precision, threads)),
                    (self.count, self.block, self.block), (self.features,), (self.features,))


def _pair(name, value, least):
    """One number for rows and columns, or a pair."""
    pair = tuple(value) if numpy.iterable(value) else (value, value)
    if len(pair) != 2 or any(map(numpy.iterable, pair)):
        raise ValueError(f"{name}: expected a number or a pair, got {value!r}")
    return tuple(_integer(name, number, least, _INT) for number in pair)


def _pads(value):
    """((above, below), (left, right)) of a number, of a pair for rows and columns, or of these pairs."""
    both = tuple(value) if numpy.iterable(value) else (value, value)
    if len(both) != 2:
        raise ValueError(f"pad: expected a number, a pair, or two pairs, got {value!r}")
    return tuple(_pair("pad", one, 0) for one in both)


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
        self.size, self.filter = _pair("size", size, 1), _pair("filter", filter, 1)
        shape = _ConvShape(self.size, self.filter, _pair("stride", stride, 1), _pair("dilation", dilation, 1),
                           _pads(pad))
        out = (c_int * 2)()
        _c.check(_c.conv_out(byref(shape), out))
        self.out, self.count = tuple(out), len(blocks)
        self.out_features, self.in_features = (n * self.block for n in nodes)
        self._begin(_c.conv_create(*nodes, self.block, blocks.ctypes.data, self.count, byref(shape),
                                   _options(device, precision, threads)),
                    (self.count, *self.filter, self.block, self.block), (*self.size, self.in_features),
                    (*self.out, self.out_features))


def bsmm(pattern, w, x, out=None, stream=None):
    """The block-sparse product y = W x; see Pattern.fprop."""
    return pattern.fprop(w, x, out, stream)
