#!/usr/bin/env python3
"""Scores text with a checkpoint, in NumPy alone: the proof of the checkpoint's format.

    scripts/reference.py CHECKPOINT.safetensors FILE...

Prints the same as `smallworld eval CHECKPOINT --data FILE... --exact`, computed byte by byte.
"""

import gzip
import json
import re
import sys
import zlib

import numpy as np

# ------------------------------------------------------------------------------------- the file --


def read_checkpoint(path):
    """Metadata and tensors: an 8-byte length, a JSON header, the tensors' bytes."""
    with open(path, "rb") as file:
        data = file.read()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = header.pop("__metadata__")
    digits = b'"checksum": "' + metadata["checksum"].encode()  # of the file with zeros in its place
    if zlib.crc32(data.replace(digits, b'"checksum": "00000000', 1)) != int(digits[-8:], 16):
        sys.exit(f"{path}: its checksum does not match its content")
    types = {"F32": ("<f4", "f8"), "I32": ("<i4", "i4")}  # in the file, in the computation
    tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        stored, wanted = types[entry["dtype"]]
        values = np.frombuffer(data[start + begin:start + end], stored)
        tensors[name] = values.reshape(entry["shape"]).astype(wanted)
    return metadata, tensors


# ------------------------------------------------------------------------------------- the text --

ENTITIES = {b"amp": 38, b"lt": 60, b"gt": 62, b"quot": 34, b"apos": 39, b"nbsp": 160}


def decode_entity(match):
    name = match[1].lower()
    if name.startswith(b"#"):
        code = int(name[2:], 16) if name.startswith(b"#x") else int(name[1:])
    else:
        code = ENTITIES[name]
    return chr(code).encode() if 0 < code < 0xD800 or 0xDFFF < code < 0x110000 else match[0]


def read_text(path, html_entities):
    """A file's bytes; the documents of a .tsv[.gz], lines LABEL<TAB>TEXT, framed and joined."""
    with open(path, "rb") as file:
        data = file.read()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    if not path.endswith((".tsv", ".tsv.gz")):
        return data
    framed = b""
    for line in data.replace(b"\r\n", b"\n").removesuffix(b"\n").split(b"\n"):
        text = line.split(b"\t", 1)[1]
        if html_entities:
            pattern = rb"&(amp|lt|gt|quot|apos|nbsp|#[0-9]+|#[xX][0-9a-fA-F]+);"
            text = re.sub(pattern, decode_entity, text)
        framed += b"\n " + text.translate(bytes.maketrans(b"\r\n", b"  ")) + b" "
    return framed


# ------------------------------------------------------------------------------------ the model --


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


class Model:
    def __init__(self, metadata, tensors):
        self.tensors = tensors
        self.cell = metadata["model.cell"]
        self.hidden = int(metadata["model.hidden"])
        self.inner = int(metadata.get("model.hubs", 0)) or self.hidden  # units of internal stages
        self.input_stride = int(metadata["model.input_stride"])
        self.output_stride = int(metadata["model.output_stride"])
        self.steps = {"lstm": 0, "mlstm": 1, "deep": int(metadata["model.internal_steps"])}[self.cell]
        layers = int(metadata.get("model.layers", 1))
        self.layers = [f"layer{k + 1}." if k else "" for k in range(layers)]  # in tensors' names
        self.weight_norm = metadata.get("model.norm") == "weight"
        for name in self.layers if self.weight_norm else []:
            self.norm_rows(name)
        self.tables = [self.input_tables("input." + name) for name in self.layers]

    def norm_rows(self, name):
        """Makes each row w of the gates' weights gain w / |w|: with what it reads of the layer below, if that is
        added to the gates."""
        gain = self.tensors.pop(f"cell.{name}gates.gain")                      # [gates][units]
        parts = [f"cell.{name}{part}.weight" for part in ("gates", "below")]
        parts = [part for part in parts if part in self.tensors and self.tensors[part].ndim == 4]
        nodes = {}
        for part in parts:
            weight, pattern = self.tensors[part], self.tensors[part.replace("cell.", "pattern.").removesuffix(".weight")]
            nodes[part] = pattern[:, 0] if len(weight) == len(pattern) else np.zeros(1, int)
        square = 1e-6
        for part in parts:
            weight = self.tensors[part]                                        # [block][gate][row][column]
            sums = np.zeros((self.hidden // weight.shape[2], *weight.shape[1:3]))
            np.add.at(sums, nodes[part], (weight ** 2).sum(3))
            square = square + sums.swapaxes(0, 1).reshape(gain.shape)
        scale = gain / np.sqrt(square)
        for part in parts:
            rows = scale.reshape(len(gain), -1, self.tensors[part].shape[2]).swapaxes(0, 1)  # [node][gate][row]
            self.tensors[part] = self.tensors[part] * rows[nodes[part], :, :, None]

    def input_tables(self, name):
        """Of each table [units / input_stride][byte], those of internal stages first."""
        tables = [table for part in ("hubs.projection", "projection") if name + part in self.tensors
                  for table in self.tensors[name + part] @ self.tensors[name + "embedding"]]
        if self.cell == "deep":
            tables = [self.norm(name + "multiply", tables[0].T).T, self.norm(name + "add", tables[1].T).T]
        return tables

    def norm(self, name, v):
        """Layer norm over the last axis, if the checkpoint has a gain; and the bias, if it has one."""
        if name + ".gain" in self.tensors:
            v = (v - v.mean(-1, keepdims=True)) / np.sqrt(v.var(-1, keepdims=True) + 1e-6)
            v = v * self.tensors[name + ".gain"]
        return v + self.tensors.get(name + ".bias", 0)

    def product(self, stage, x):
        """W x, [gates][units]: weights [block][gate][row][column], at (output, input) nodes."""
        weight, pattern = self.tensors[f"cell.{stage}.weight"], self.tensors[f"pattern.{stage}"]
        if len(weight) != len(pattern):
            pattern = np.zeros((1, 2), int)  # a dense pattern: one block of the whole size
        blocks, height, side = len(weight), *weight.shape[-2:]
        weight = weight.reshape(blocks, -1, side)  # gates and rows together
        parts = weight @ x.reshape(-1, side)[pattern[:, 1], :, None]
        rows = self.hidden if stage.endswith("gates") or self.steps == 0 else self.inner
        y = np.zeros((rows // height, weight.shape[1]))
        np.add.at(y, pattern[:, 0], parts[:, :, 0])
        return y.reshape(rows // height, -1, height).swapaxes(0, 1).reshape(-1, rows)

    def layer(self, number, byte, h, c, below):
        """A cell's next h and c, from h of the layer below, None for the first one."""
        fed = np.s_[..., ::self.input_stride]
        name, tables = self.layers[number], self.tables[number]
        for k in range(self.steps + 1):
            stage = name + (f"step{k}" if k < self.steps else "gates")
            h = self.product(stage, h)
            if k == 0 and below is not None:
                h += self.product(name + "below", below)
            if k == 0 < self.steps and self.weight_norm:
                h[fed] *= tables[0][:, byte]
            h = self.norm(f"cell.{stage}", h)
            if k == self.steps:
                break
            h = h[0]
            if k == 0 and not self.weight_norm:
                h[fed] *= tables[0][:, byte]
            elif k == 1:
                h[fed] += tables[1][:, byte]
            h = np.maximum(h, 0) if k > 0 else h
        if self.cell != "deep":
            h[fed] += np.stack(tables[-len(h):])[:, :, byte]
        *i, f, o, u = h  # coupled gates have no i
        c = sigmoid(f) * c + (sigmoid(i[0]) if i else 1 - sigmoid(f)) * np.tanh(u)
        return sigmoid(o) * np.tanh(c), c

    def step(self, byte, h, c):
        """Reads a byte: the next state [layer][hidden], and the natural logarithms of the next
        byte's distribution."""
        h, c, below = h.copy(), c.copy(), None
        for k in range(len(self.layers)):
            h[k], c[k] = self.layer(k, byte, h[k], c[k], below)
            below = h[k]
        logits = self.tensors["head.weight"] @ below[::self.output_stride] + self.tensors["head.bias"]
        return h, c, logits - np.logaddexp.reduce(logits)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    try:
        metadata, tensors = read_checkpoint(sys.argv[1])
        if metadata.get("kind") != "model":
            raise ValueError
    except (KeyError, ValueError, MemoryError, OverflowError):
        sys.exit(f"{sys.argv[1]}: not a checkpoint of smallworld")
    except OSError as problem:
        sys.exit(f"{sys.argv[1]}: {problem.strerror}")
    model = Model(metadata, tensors)
    html_entities = metadata["data.html_entities"] == "true"
    try:
        text = b"".join(read_text(path, html_entities) for path in sys.argv[2:])
    except OSError as problem:
        sys.exit(f"{problem.filename or 'text'}: {problem.strerror or problem}")
    h = np.zeros((len(model.layers), model.hidden))
    c, nats = np.zeros_like(h), 0.0
    for byte, following in zip(text, text[1:]):
        h, c, logarithms = model.step(byte, h, c)
        nats -= logarithms[following]
    predicted = len(text) - 1
    print(f"{nats / predicted / np.log(2):.6f} bits per character over {predicted} bytes")


if __name__ == "__main__":
    main()
