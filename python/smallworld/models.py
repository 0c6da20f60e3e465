"""Models that the program trained: bits, states, features, classes and text of them."""

import ctypes
from ctypes import c_char_p, c_size_t

import numpy

from ._library import INT, Handle, c, choice, integer, options, path_bytes, text_bytes


class Model(Handle):
    """A trained model. Texts are str (encoded as UTF-8), bytes or arrays of uint8, one or a list of
    them; each is read from a zero state. `framed` texts are read as training documents were: "\\n " + text + " "."""

    STATES = ("cell", "hidden")
    POOLS = ("last", "mean", "max")

    @classmethod
    def load(cls, path, device=None, precision=None, threads=0, streams=0):
        """A checkpoint, such as last.safetensors. device: "auto", "cpu" or "cuda"; precision: "auto",
        "fp32" or "bf16"; threads: of the CPU, 0 for all; streams: texts side by side, 0 for
        32."""
        chosen = device, precision, threads, streams
        return cls(c.check(c.load(path_bytes("path", path), options(*chosen))), path, chosen)

    def __init__(self, handle, path, chosen=()):
        self._keep(handle, c.free)
        self.path, self._chosen = path, chosen

    def __reduce_ex__(self, protocol):
        return Model.load, (self.path, *self._chosen)

    def __deepcopy__(self, memo):
        return self  # it never changes

    units = property(lambda self: c.units(self._handle), doc="The width of states.")
    parameters = property(lambda self: c.parameters(self._handle))
    device = property(lambda self: c.device(self._handle).decode())

    def __repr__(self):
        return f"<smallworld.Model: {self.units} units, {self.parameters:,} parameters, {self.device}>"

    def _texts(self, texts, framed):
        """([bytes], the arguments that the library's functions begin with)"""
        one = isinstance(texts, (str, bytes, bytearray, memoryview))
        if one or (isinstance(texts, numpy.ndarray) and texts.dtype == numpy.uint8 and texts.ndim == 1):
            texts = [texts]
        texts = [text_bytes(text) for text in texts]
        if framed:
            texts = [self._frame(text) for text in texts]
        pointers = (c_char_p * len(texts))(*texts)
        lengths = (c_size_t * len(texts))(*map(len, texts))
        return texts, (self._handle, pointers, lengths, len(texts))

    def _frame(self, text):
        room = ctypes.create_string_buffer(len(text) + 3)
        length = c.frame(self._handle, text, len(text), room)
        return room.raw[:length]

    @staticmethod
    def _split(texts, rows):
        return numpy.split(rows, numpy.cumsum([len(text) for text in texts])[:-1])

    def score(self, texts, framed=True):
        """For each text, float32 (bytes,): the bits of each byte given those before it, of a first
        byte NaN."""
        texts, arguments = self._texts(texts, framed)
        bits = numpy.empty(sum(map(len, texts)), numpy.float32)
        c.check(c.score(*arguments, bits.ctypes.data))
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
        c.check(c.states(*arguments, choice("state", state, self.STATES), rows.ctypes.data))
        return self._split(texts, rows) if texts else []

    def features(self, texts, state="cell", pool="mean,last", framed=True):
        """float32 (texts, pools x units): the state after the last byte, its mean or its max over the
        bytes, or several of them, joined by commas; what `smallworld features` writes."""
        pools = pool.split(",") if isinstance(pool, str) else [pool]
        if len(set(pools)) < len(pools):
            raise ValueError(f"pool: expected different ones, got {pool!r}")
        chosen = [choice("pool", one, self.POOLS) for one in pools]
        texts, arguments = self._texts(texts, framed)
        rows = numpy.empty((len(chosen), len(texts), self.units), numpy.float32)
        for part, one in zip(rows, chosen):
            c.check(c.features(*arguments, choice("state", state, self.STATES), one, part.ctypes.data))
        return rows.swapaxes(0, 1).reshape(len(texts), len(chosen) * self.units)

    def predict(self, texts, probe=None, framed=True):
        """For each text a dict of the probability of each class, likeliest first. probe: a Probe, or the
        path of a .probe.safetensors that `smallworld probe --out` wrote for this model; by default the
        class head of a model that was trained with labels."""
        texts, (_, *arguments) = self._texts(texts, framed)
        path = None if probe is None else path_bytes("probe", getattr(probe, "path", probe))
        saved = c.check(c.probe_load(self._handle, path))
        try:
            names = [c.probe_class(saved, k).decode("utf-8", "replace") for k in range(c.probe_classes(saved))]
            likely = numpy.empty((len(texts), len(names)))
            c.check(c.predict(saved, *arguments, likely.ctypes.data))
        finally:
            c.probe_free(saved)
        return [dict(sorted(zip(names, map(float, row)), key=lambda pair: -pair[1])) for row in likely]

    def generate(self, count=500, prompt=b"\n ", temperature=1.0, top_k=0, top_p=1.0, seed=1):
        """`count` bytes that follow the prompt."""
        prompt = text_bytes(prompt)
        count = integer("count", count, 0, 2 ** 40)
        top_k = integer("top_k", top_k, 0, INT)
        seed = integer("seed", seed, 0, 2 ** 64 - 1)
        text = ctypes.create_string_buffer(max(count, 1))
        c.check(c.generate(self._handle, prompt, len(prompt), count, temperature, top_k, top_p,
                             seed, text))
        return text.raw[:count]
