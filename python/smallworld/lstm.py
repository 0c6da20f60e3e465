"""A model that smallworld trained, as a module of PyTorch, which this file alone computes: it needs PyTorch and
nothing of smallworld. `smallworld export RUN --to torch --out DIR` writes it beside the weights.

    model = SmallWorldLSTM.load("DIR/model.safetensors")
    text = torch.tensor([list(b"\\n A warm, bold film. ")])   # as training's documents were framed
    model.bits(text).mean()                                  # bits a byte
    model(text).cell.mean(1)                                 # features for a probe, (texts, units)

    state, text = None, torch.tensor([list(b"\\n ")])         # a sampler
    for _ in range(100):
        logits, _, _, state = model(text, state)
        text = torch.multinomial(logits[:, -1].softmax(-1), 1)

The names of its parameters are those of the tensors in the file, which docs/checkpoint.md describes; and so are the
formulas.
"""

import json
import math
import os
import zlib
from collections import namedtuple

import torch
from torch import nn
from torch.nn import functional

Output = namedtuple("Output", "logits hidden cell state")


def read(path):
    """(metadata, {name: tensor}) of a safetensors file of float32 and int32."""
    with open(path, "rb") as file:
        data = bytearray(file.read())
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start])
        metadata, tensors = header.pop("__metadata__"), {}
        for name, entry in header.items():
            kind = {"F32": torch.float32, "I32": torch.int32}[entry["dtype"]]
            begin, end = entry["data_offsets"]
            values = torch.frombuffer(data, dtype=kind, count=(end - begin) // 4, offset=start + begin)
            tensors[name] = values.reshape(entry["shape"]).clone()
        if (metadata["format"], metadata["version"], metadata["kind"]) != ("smallworld", "1", "model"):
            raise ValueError
        digits = b'"checksum": "' + metadata["checksum"].encode()  # of the file with zeros in its place
        sum_of_all = zlib.crc32(data.replace(digits, b'"checksum": "00000000', 1))
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise ValueError(f"{path}: expected a model of smallworld, version 1") from None
    if f"{sum_of_all:08x}" != metadata["checksum"]:
        raise ValueError(f"{path}: its checksum does not match its content")
    return metadata, tensors


class SmallWorldLSTM(nn.Module):
    """An lstm, mlstm or deep cell over bytes, of one layer or more, dense or of blocks, with hubs or without."""

    def __init__(self, metadata, tensors):
        """metadata and tensors: what `read` returns."""
        super().__init__()
        self.metadata = dict(metadata)
        number = lambda key, default: int(metadata.get(f"model.{key}", default))
        self.kind, self.units, self.layers = metadata["model.cell"], number("hidden", 0), number("layers", 1)
        self.inner = number("hubs", 0) or self.units  # units of internal stages
        self.input_stride, self.output_stride = number("input_stride", 1), number("output_stride", 1)
        self.stages = {"lstm": 0, "mlstm": 1, "deep": number("internal_steps", 1)}[self.kind]
        self.gates = 3 if metadata.get("model.coupled_gates") == "true" else 4
        self.weight_norm = metadata.get("model.norm") == "weight"
        self.class_names = [metadata[f"class.{k}"] for k in range(int(metadata.get("classes", 0)))]
        for name, tensor in tensors.items():
            module, (*path, last) = self, name.split(".")
            for part in path:
                if not hasattr(module, part):
                    module.add_module(part, nn.Module())
                module = getattr(module, part)
            if tensor.is_floating_point():
                module.register_parameter(last, nn.Parameter(tensor))
            else:
                module.register_buffer(last, tensor)

    @classmethod
    def load(cls, path):
        """A checkpoint, or a folder with model.safetensors or last.safetensors."""
        if os.path.isdir(path):
            names = [os.path.join(path, name) for name in ("model.safetensors", "last.safetensors")]
            path = names[0] if os.path.exists(names[0]) else names[1]
        return cls(*read(path))

    def _at(self, name):
        """The parameter or buffer of that name, or None."""
        module = self
        for part in name.split("."):
            module = getattr(module, part, None)
        return module

    def _norm(self, name, x):
        """Layer norm over features, where the model has it, and the bias. x: (..., features) or (texts, gates,
        features)."""
        gain, bias = self._at(f"{name}.gain"), self._at(f"{name}.bias")
        if gain is not None and not (self.weight_norm and name.endswith("gates")):
            x = functional.layer_norm(x, x.shape[-1:], eps=1e-6) * gain
        return x if bias is None else x + bias

    def _weights(self, layer):
        """{stage: the weights that its product reads} of a layer: of normed rows gain w / |w|."""
        names = [*(f"step{k}" for k in range(self.stages)), "gates", *(["below"] if layer else [])]
        weights = {layer + name: self._at(f"cell.{layer}{name}.weight") for name in names}
        return {stage: self._normed(stage, weight) if self.weight_norm and weight.dim() == 4 else weight
                for stage, weight in weights.items()}

    def _product(self, stage, weight, x):
        """W x, (texts, gates, units): weights are (blocks, gates, rows, columns) or (blocks, rows, columns)."""
        pattern = self._at(f"pattern.{stage}")
        gates = weight.shape[1] if weight.dim() == 4 else 1
        rows, columns = weight.shape[-2:]
        if len(weight) != len(pattern):  # dense: one block of the whole size
            return functional.linear(x, weight.reshape(gates * rows, columns)).view(len(x), gates, rows)
        made, read_ = pattern.long().unbind(1)
        units = self.inner if self.stages > 0 and gates == 1 else self.units
        parts = x.view(len(x), -1, columns)[:, read_].transpose(0, 1)                # block, text, column
        parts = parts @ weight.reshape(len(weight), gates * rows, columns).transpose(1, 2)
        sums = parts.new_zeros(units // rows, len(x), gates * rows).index_add(0, made, parts)
        return sums.view(-1, len(x), gates, rows).permute(1, 2, 0, 3).reshape(len(x), gates, units)

    def _normed(self, stage, weight):
        """The weights with rows gain w / |w|, w with what the same row reads of the layer below."""
        own = stage.replace("below", "gates")
        square = 1e-6
        for part in (own, own.replace("gates", "below")):
            blocks = self._at(f"cell.{part}.weight")
            if blocks is None or blocks.dim() < 4:
                continue
            made = self._at(f"pattern.{part}")[:, 0].long()
            if len(blocks) != len(made):  # dense
                square = square + blocks.square().sum((0, 3)).unsqueeze(1)          # gates, 1, units
                continue
            rows = blocks.shape[2]
            sums = blocks.new_zeros(self.units // rows, self.gates, rows).index_add(0, made, blocks.square().sum(3))
            square = square + sums.transpose(0, 1)                                  # gates, nodes, rows
        scale = self._at(f"cell.{own}.gain").view(self.gates, -1) * square.reshape(self.gates, -1).rsqrt()
        if len(weight) != len(self._at(f"pattern.{stage}")):
            return weight * scale[None, :, :, None]
        scale = scale.view(self.gates, -1, weight.shape[2]).transpose(0, 1)         # nodes, gates, rows
        return weight * scale[self._at(f"pattern.{stage}")[:, 0].long()].unsqueeze(3)

    def _tables(self, layer):
        """What each byte adds or multiplies, of each table (256, units / input_stride); internal stages' first."""
        name = f"input.{layer}"
        parts = [self._at(f"{name}hubs.projection"), self._at(f"{name}projection")]
        embedding = self._at(f"{name}embedding").t()
        tables = [embedding @ table.t() for part in parts if part is not None for table in part]
        if self.kind == "deep":
            tables = [self._norm(f"{name}multiply", tables[0]), self._norm(f"{name}add", tables[1])]
        return tables

    def _fed(self, x, value, multiply=False):
        """x with the input's values multiplied by or added to every input_stride-th unit."""
        if self.input_stride > 1:
            full = torch.ones_like(x) if multiply else torch.zeros_like(x)
            full[..., ::self.input_stride] = value
            value = full
        return x * value if multiply else x + value

    def _layer(self, layer, weights, tables, byte, h, c, below):
        """A cell's next h and c, from h of the layer below, None for the first one."""
        for k in range(self.stages + 1):
            stage = layer + (f"step{k}" if k < self.stages else "gates")
            h = self._product(stage, weights[stage], h)
            if k == 0 and below is not None:
                h = h + self._product(f"{layer}below", weights[f"{layer}below"], below)
            if k == self.stages:
                break
            h = h[:, 0]
            if k == 0 and self.weight_norm:
                h = self._fed(h, tables[0][byte], multiply=True)
            h = self._norm(f"cell.{stage}", h)
            if (k == 0 and not self.weight_norm) or (k == 1 and len(tables) > 1):
                h = self._fed(h, tables[k][byte], multiply=k == 0)
            h = h.relu() if k > 0 else h
        z = self._norm(f"cell.{stage}", h)
        if self.kind != "deep":
            z = self._fed(z, torch.stack([table[byte] for table in tables[-self.gates:]], 1))
        *i, f, o, u = z.unbind(1)
        f = f.sigmoid()
        c = f * c + (i[0].sigmoid() if i else 1 - f) * u.tanh()
        return o.sigmoid() * c.tanh(), c

    def forward(self, text, state=None):
        """text: integers (texts, bytes). state: what an earlier call returned, None for zeros. Returns logits of
        the byte after each (texts, bytes, 256), the last layer's hidden and cell states after each (texts, bytes,
        units), and the state, (h, c) of (layers, texts, units)."""
        zeros = self.head.weight.new_zeros(self.layers, len(text), self.units)
        h, c = (list(part) for part in (state if state is not None else (zeros, zeros)))
        names = [f"layer{k + 1}." if k else "" for k in range(self.layers)]
        tables, weights = [self._tables(name) for name in names], [self._weights(name) for name in names]
        hidden, cell = [], []
        for byte in text.long().unbind(1):
            for k, name in enumerate(names):
                h[k], c[k] = self._layer(name, weights[k], tables[k], byte, h[k], c[k], h[k - 1] if k else None)
            hidden.append(h[-1])
            cell.append(c[-1])
        hidden, cell = torch.stack(hidden, 1), torch.stack(cell, 1)
        logits = functional.linear(hidden[..., ::self.output_stride], self.head.weight, self.head.bias)
        return Output(logits, hidden, cell, (torch.stack(h), torch.stack(c)))

    def bits(self, text):
        """The bits of each byte given those before it, (texts, bytes - 1): none of the first one."""
        logits = self(text[:, :-1]).logits
        return functional.cross_entropy(logits.transpose(1, 2), text[:, 1:].long(), reduction="none") / math.log(2)

    def classes(self, text):
        """The probability of each of `class_names` after the last byte of documents, integers (texts, bytes), that
        begin with b"\\n " and end with b" ": (texts, classes). Of a model that was trained with labels."""
        head = self._at("class")
        if head is None:
            raise ValueError("expected a model that was trained with train.label_weight")
        return functional.linear(self(text).hidden[:, -1, ::self.output_stride], head.weight, head.bias).softmax(-1)
