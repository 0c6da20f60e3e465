"""libsmallworld by ctypes, and the checks that everything that calls it shares."""

import ctypes
import operator
import os
import shutil
import tempfile
import weakref
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char_p, c_double, c_int, c_int64, c_size_t,
                    c_uint64, c_void_p)
from pathlib import Path

import numpy

INT = 2 ** 31 - 1


class Error(Exception):
    """What libsmallworld refused, in its own words."""


class _Options(Structure):
    _fields_ = [("device", c_char_p), ("precision", c_char_p), ("threads", c_int),
                ("streams", c_int)]


def near(*names):
    """Paths where a file of ours may be: in the package, in the prefix of an installation, or in a checkout."""
    here = Path(__file__).resolve().parent
    folders = [here, *here.parents[1:4], here.parents[1] / "build"]
    return [found for folder in folders for name in names for found in sorted(folder.glob(name)) if found.is_file()]


def _load():
    given = os.environ.get("SMALLWORLD_LIBRARY")
    name = "libsmallworld.so.0"
    for path in [given] if given else [*near(name, f"*-linux-gnu/{name}"), name]:
        try:
            return ctypes.CDLL(str(path))
        except OSError as problem:
            reason = problem
    raise ImportError(f"smallworld: cannot load libsmallworld: {reason}; "
                      "SMALLWORLD_LIBRARY can name it")


class ConvShape(Structure):
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
    "conv_create": (c_void_p, [c_int, c_int, c_int, c_void_p, c_int, POINTER(ConvShape), POINTER(_Options)]),
    "conv_out": (c_bool, [POINTER(ConvShape), c_int * 2]),
    "product_free": (None, [c_void_p]),
    "product_on_gpu": (c_bool, [c_void_p]),
    "product_element_size": (c_int, [c_void_p]),
    "product_columns": (c_int, [c_void_p]),
    "product_wgrad_columns": (c_int, [c_void_p]),
    "fprop": (c_bool, _product),
    "dgrad": (c_bool, _product),
    "wgrad": (c_bool, _product),
    "transpose": (c_bool, [c_void_p, c_void_p, c_int, c_int, c_void_p, c_void_p]),
    "product_wait": (c_bool, [c_void_p]),
}


class _Library:
    def __init__(self):
        library = _load()
        for name, (result, arguments) in _functions.items():
            try:
                function = getattr(library, f"smallworld_{name}")
            except AttributeError:
                raise ImportError(f"smallworld: {library._name}: expected a library of this package's version, which "
                                  f"has smallworld_{name}; SMALLWORLD_LIBRARY can name another one") from None
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
c = _Library()
# Asked by C from time to time: whether Ctrl-C was pressed. It runs no Python code, which would raise.
_interrupted = CFUNCTYPE(c_int)(_api.PyOS_InterruptOccurred)
c.on_wait(ctypes.cast(_interrupted, c_void_p))


class Handle:
    """An object of C's, which is freed with its last reference. At the interpreter's end the process frees
    it, as a thread may still be computing with it."""

    def _keep(self, handle, free):
        self._handle = handle
        self._release = weakref.finalize(self, free, handle)
        self._release.atexit = False

    def __reduce_ex__(self, protocol):
        raise TypeError(f"{type(self).__name__}: expected no copy nor pickle of what the library holds; "
                        "make another one")


def version():
    """The library's version, such as "0.2.0"."""
    return c.version().decode()


def integer(name, value, least, most):
    """The value as an int that C's type holds; ctypes would cut off what does not fit."""
    value = operator.index(value)
    if not least <= value <= most:
        raise ValueError(f"{name}: expected {least} to {most}, got {value}")
    return value


def path_bytes(name, value):
    """The value as bytes for C, in which a zero byte would end it."""
    value = os.fsencode(value)
    if b"\0" in value:
        raise ValueError(f"{name}: expected no zero byte, got {value!r}")
    return value


def text_bytes(text):
    """A text as bytes. Whole numbers are refused, of which bytes() would make zeros."""
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, numpy.ndarray) and text.dtype != numpy.uint8:
        raise TypeError(f"text: expected an array of uint8, got {text.dtype}")
    if not isinstance(text, (bytes, bytearray, memoryview, numpy.ndarray)):
        raise TypeError(f"text: expected str, bytes or an array of uint8, got {type(text).__name__}")
    return bytes(text)


def text_list(texts):
    """Texts as a list of bytes. One text is refused, whose characters would be taken for texts."""
    if isinstance(texts, (str, bytes, bytearray, memoryview)):
        raise TypeError(f"texts: expected a list of texts, got one {type(texts).__name__}; [text] is a list of it")
    return [text_bytes(text) for text in texts]


def is_missing(label):
    """Whether a label is none: None, NaN, NaT or pandas' NA."""
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(label, (float, numpy.floating, numpy.datetime64)) and bool(label != label)


def label_list(labels, count):
    """One label for each of `count` texts, in a list; a column, of shape (count, 1), is one too."""
    if isinstance(labels, (str, bytes)):
        raise TypeError(f"labels: expected a list of labels, got one {type(labels).__name__}")
    if not hasattr(labels, "shape"):
        labels = list(labels)
    column = numpy.asarray(labels, object)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.ndim != 1:
        raise ValueError(f"labels: expected one for each text, got an array of shape {column.shape}")
    if len(column) != count:
        raise ValueError(f"labels: expected {count}, got {len(column)}")
    return list(column)


def label_text(label):
    """A label as the program reads it: "" where it is missing."""
    return "" if is_missing(label) else label.decode() if isinstance(label, bytes) else str(label)


def _remove(path, process):
    if os.getpid() == process:  # a forked child's end removes nothing of its parent's
        shutil.rmtree(path, ignore_errors=True)


def folder_of(owner):
    """A temporary folder that goes with its owner."""
    path = tempfile.mkdtemp(prefix="smallworld-")
    weakref.finalize(owner, _remove, path, os.getpid())
    return path


def options(device, precision, threads, streams=0):
    text = lambda name, value: None if value is None else path_bytes(name, str(value))
    return byref(_Options(text("device", device), text("precision", precision),
                          integer("threads", threads, 0, INT), integer("streams", streams, 0, INT)))


def choice(name, value, choices):
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {value!r}")
    return choices.index(value)
