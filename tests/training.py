#!/usr/bin/env python3
"""Updates of the program against a model of its own in NumPy: loss, gradient norm, weights, moments, average
and state after a few of them, with unusual values of every number of a config.

    tests/training.py BUILD/smallworld

Nothing is shared with the program but docs/training.md and docs/checkpoint.md: gradients are those of a small
reverse-mode differentiation in double. Skipped (77) without NumPy.
"""

import json
import subprocess
import sys
import tempfile
import unittest
import zlib
from pathlib import Path

import needs

np = needs.module("numpy")

PROGRAM = None  # set by main

# -------------------------------------------------------------------------------- differentiation --


class Var:
    """A value, and how its gradient gives those of the values that it was made of."""

    def __init__(self, value, *parents):
        self.value, self.parents, self.grad = np.asarray(value, float), parents, None

    def __add__(self, other):
        return binary(self, other, np.add, lambda g, a, b: g, lambda g, a, b: g)

    def __sub__(self, other):
        return binary(self, other, np.subtract, lambda g, a, b: g, lambda g, a, b: -g)

    def __mul__(self, other):
        return binary(self, other, np.multiply, lambda g, a, b: g * b, lambda g, a, b: g * a)

    def __matmul__(self, other):
        return binary(self, other, np.matmul, lambda g, a, b: g @ b.T, lambda g, a, b: a.T @ g)

    def __getitem__(self, key):
        def back(g):
            whole = np.zeros_like(self.value)
            np.add.at(whole, key, g)
            return whole
        return Var(self.value[key], (self, back))

    def at(self, key, shape):
        """Zeros of this shape, with the value at `key`."""
        whole = np.zeros(shape)
        whole[key] = self.value
        return Var(whole, (self, lambda g: g[key]))

    def map(self, value, slope):
        return Var(value, (self, lambda g: g * slope))

    def tanh(self):
        y = np.tanh(self.value)
        return self.map(y, 1 - y * y)

    def sigmoid(self):
        y = 1 / (1 + np.exp(-self.value))
        return self.map(y, y * (1 - y))

    def relu(self):
        return self.map(np.maximum(self.value, 0), self.value > 0)

    def power(self, p):
        return self.map(self.value ** p, p * self.value ** (p - 1))

    def mean(self):
        """Over the last axis, which is kept."""
        n = self.value.shape[-1]
        return Var(self.value.mean(-1, keepdims=True), (self, lambda g: np.repeat(g, n, -1) / n))

    def log_softmax(self):
        y = self.value - np.logaddexp.reduce(self.value, axis=-1, keepdims=True)
        return Var(y, (self, lambda g: g - np.exp(y) * g.sum(-1, keepdims=True)))

    def backward(self):
        order, seen = [], set()

        def visit(root):
            stack = [(root, False)]
            while stack:
                node, done = stack.pop()
                if done:
                    order.append(node)
                elif id(node) not in seen:
                    seen.add(id(node))
                    stack.append((node, True))
                    stack.extend((parent, False) for parent, _ in node.parents)

        visit(self)
        self.grad = np.ones_like(self.value)
        for node in reversed(order):
            for parent, back in node.parents:
                part = back(node.grad)
                parent.grad = part if parent.grad is None else parent.grad + part


def binary(a, b, operation, back_a, back_b):
    a, b = (v if isinstance(v, Var) else Var(v) for v in (a, b))

    def shrink(g, like):
        while g.ndim > like.ndim:
            g = g.sum(0)
        return g.sum(tuple(i for i, n in enumerate(like.shape) if n == 1 and g.shape[i] > 1), keepdims=True)

    return Var(operation(a.value, b.value), (a, lambda g: shrink(back_a(g, a.value, b.value), a.value)),
               (b, lambda g: shrink(back_b(g, a.value, b.value), b.value)))


# ---------------------------------------------------------------------------------- random numbers --


def philox(key, counter):
    (c0, c1, c2, c3), low = counter, 0xFFFFFFFF
    k0, k1 = key & low, key >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = p1 >> 32 ^ c1 ^ k0, p1 & low, p0 >> 32 ^ c3 ^ k1, p0 & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return c0, c1, c2, c3


def shuffled(items, seed, epoch):
    items, draw = list(items), 0
    for i in range(len(items), 1, -1):
        while True:
            words = philox(seed, (draw, 0, epoch, 3 << 24))
            value, draw = words[1] << 32 | words[0], draw + 1
            if value < 2 ** 64 // i * i:
                break
        items[i - 1], items[value % i] = items[value % i], items[i - 1]
    return items


# ------------------------------------------------------------------------------------------ files --


def read_tensors(path):
    data = Path(path).read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    said = header.pop("__metadata__")
    return said, {name: np.frombuffer(data[start + t["data_offsets"][0]:start + t["data_offsets"][1]],
                                      {"F32": "<f4", "I32": "<i4"}[t["dtype"]]).reshape(t["shape"])
                  for name, t in header.items()}


def randomise(path, out, draw):
    """A checkpoint with unusual values everywhere."""
    data = bytearray(Path(path).read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__")
    for name, t in header.items():
        if t["dtype"] != "F32":
            continue
        begin, end = t["data_offsets"]
        old = np.frombuffer(bytes(data[start + begin:start + end]), "<f4")
        base = old if name.endswith(("embedding", "projection", "head.weight")) else \
            1 if name.endswith("gain") else 0
        new = (base + draw.normal(0, 0.3, old.shape)).astype("<f4")
        data[start + begin:start + end] = new.tobytes()
    at = data.index(b'"checksum": "') + 13
    data[at:at + 8] = b"00000000"
    data[at:at + 8] = f"{zlib.crc32(bytes(data)):08x}".encode()
    Path(out).write_bytes(data)


# ------------------------------------------------------------------------------------------ model --


class Model:
    """`weights`: {name: array} as in a checkpoint; `patterns`: {stage: [blocks][2]}."""

    def __init__(self, config, weights, patterns):
        self.o, self.patterns = config, patterns
        self.vars = {name: Var(value) for name, value in weights.items()}
        self.steps = {"lstm": 0, "mlstm": 1, "deep": config.get("internal_steps", 2)}[config["cell"]]
        self.layers = config.get("layers", 1)
        self.dense = {}
        for stage in patterns:
            self.dense[stage] = self.matrices(stage)
        self.weight_norm = config.get("norm") == "weight"
        for k in range(self.layers if self.weight_norm else 0):
            self.norm_rows("" if k == 0 else f"layer{k + 1}.")
        self.tables = [self.input_tables("input." + ("" if k == 0 else f"layer{k + 1}.")) for k in range(self.layers)]

    def norm_rows(self, name):
        """Makes each row w of the gates' matrices gain w / |w|, with what it reads of the layer below."""
        gain, parts = self.vars[f"cell.{name}gates.gain"], [name + "gates"]
        if self.steps == 0 and name:
            parts.append(name + "below")
        for gate in range(len(self.dense[parts[0]])):
            square = Var(1e-6)
            for part in parts:
                w = self.dense[part][gate]
                total = w * w
                square = square + Var(total.value.sum(0), (total, lambda g, n=len(total.value): np.tile(g, (n, 1))))
            for part in parts:
                self.dense[part][gate] = self.dense[part][gate] * (square.power(-0.5) * gain[gate])

    def matrices(self, stage):
        """The [inputs][outputs] matrix of each gate."""
        weight, pattern = self.vars[f"cell.{stage}.weight"], self.patterns[stage]
        shape, rows, columns = weight.value.shape, self.rows(stage), self.columns(stage)
        if len(pattern) != shape[0]:
            pattern = np.zeros((1, 2), int)
        side, across = shape[-2:]
        gates = shape[1] if len(shape) == 4 else 1
        made = []
        for gate in range(gates):
            keys, whole = [], np.zeros((columns, rows))
            for k, (i, j) in enumerate(pattern):
                key = np.s_[j * across:(j + 1) * across, i * side:(i + 1) * side]
                keys.append(key)
                whole[key] = (weight.value[k, gate] if len(shape) == 4 else weight.value[k]).T

            def back(g, keys=keys, gate=gate):
                out = np.zeros(shape)
                for k, key in enumerate(keys):
                    out[(k, gate) if len(shape) == 4 else k] = g[key].T
                return out
            made.append(Var(whole, (weight, back)))
        return made

    def rows(self, stage):
        return self.o["hidden"] if stage.endswith("gates") or self.steps == 0 else self.o.get("hubs", self.o["hidden"])

    def columns(self, stage):
        outer = stage.endswith(("step0", "below")) or self.steps == 0
        return self.o["hidden"] if outer else self.o.get("hubs", self.o["hidden"])

    def input_tables(self, name):
        """Each [256][units]."""
        embedding = self.vars[name + "embedding"]
        turned = Var(embedding.value.T, (embedding, lambda g: g.T))
        tables = []
        for units in "hubs.projection", "projection":
            for k in range(len(self.vars[name + units].value) if name + units in self.vars else 0):
                part = self.vars[name + units][k]
                tables.append(turned @ Var(part.value.T, (part, lambda g: g.T)))
        if self.o["cell"] == "deep":
            tables = [self.norm(name + "multiply", tables[0]), self.norm(name + "add", tables[1])]
        return tables

    def norm(self, name, v, gate=None):
        pick = lambda which: self.vars[name + which] if gate is None else self.vars[name + which][gate]
        if name + ".gain" in self.vars and not (self.weight_norm and name.endswith("gates")):
            centred = v - v.mean()
            v = centred * ((centred * centred).mean() + 1e-6).power(-0.5) * pick(".gain")
        return v + pick(".bias") if name + ".bias" in self.vars else v

    def fed(self, table, byte, like):
        """A table's entries for the bytes of all streams, at the units that the input feeds."""
        stride = self.o.get("input_stride", 1)
        return table[byte].at(np.s_[:, ::stride], like.value.shape) if stride > 1 else table[byte]

    def layer(self, number, byte, h, c, below, drop):
        name, tables = "" if number == 0 else f"layer{number + 1}.", self.tables[number]
        unfed = np.ones(self.o.get("hubs", self.o["hidden"]))
        unfed[::self.o.get("input_stride", 1)] = 0
        for k in range(self.steps):
            stage = f"{name}step{k}"
            v = h @ self.dense[stage][0]
            if k == 0 and below is not None:
                v = v + below @ self.dense[name + "below"][0]
            if k == 0 and self.weight_norm:
                v = v * (self.fed(tables[0], byte, v) + unfed)
            v = self.norm(f"cell.{stage}", v)
            if k == 0 and not self.weight_norm:
                v = v * (self.fed(tables[0], byte, v) + unfed)
            elif k == 1:
                v = v + self.fed(tables[1], byte, v)
            h = v.relu() if k > 0 else v
        z = []
        gates = len(self.dense[name + "gates"])
        for gate in range(gates):
            v = h @ self.dense[name + "gates"][gate]
            if self.steps == 0 and below is not None:
                v = v + below @ self.dense[name + "below"][gate]
            v = self.norm(f"cell.{name}gates", v, gate)
            if self.o["cell"] != "deep":
                v = v + self.fed(tables[len(tables) - gates + gate], byte, v)
            z.append(v)
        *i, f, o, u = z
        f = f.sigmoid()
        c = f * c + (i[0].sigmoid() if i else f * -1 + 1) * (u * drop).tanh()
        return o.sigmoid() * c.tanh(), c

    def drops(self, layer, t, update, streams):
        p, seed = self.o.get("dropout", 0), self.o["seed"] + (layer << 48)
        scale = np.ones((streams, self.o["hidden"]))
        for unit in range(self.o["hidden"] if p else 0):
            for n in range(0, streams, 4):
                words = philox(seed, (unit, n // 4, update, 4 << 24 | t))
                for i in range(min(4, streams - n)):
                    scale[n + i, unit] = 0 if words[i] < int(p * 2 ** 32) else 1 / (1 - p)
        return scale

    def read(self, byte, update):
        """The input's bytes [step][stream], of which some are dropped."""
        byte, p = byte.copy(), self.o.get("input_dropout", 0)
        for t in range(len(byte)):
            for n in range(0, byte.shape[1], 4):
                words = philox(self.o["seed"], (t, n // 4, update, 11 << 24))
                for i in range(min(4, byte.shape[1] - n)):
                    if words[i] < int(p * 2 ** 32):
                        byte[t, n + i] = 0
        return byte

    def loss(self, byte, target, h, c, update):
        """The mean loss in nats, and h and c [layer][stream][hidden] after the last step."""
        h, c = [Var(v) for v in h], [Var(v) for v in c]
        total, byte = Var(0), self.read(byte, update)
        head = self.vars["head.weight"]
        turned = Var(head.value.T, (head, lambda g: g.T))
        for t in range(len(byte)):
            below = None
            for k in range(self.layers):
                h[k], c[k] = self.layer(k, byte[t], h[k], c[k], below, self.drops(k, t, update, byte.shape[1]))
                below = h[k]
            logits = below[:, ::self.o.get("output_stride", 1)] @ turned + self.vars["head.bias"]
            hit = logits.log_softmax()[np.arange(byte.shape[1]), target[t]]
            total = total + Var(hit.value.sum(), (hit, lambda g, n=len(hit.value): np.repeat(g, n)))
        total = total * (-1 / byte.size)
        return total, [v.value for v in h], [v.value for v in c]


# --------------------------------------------------------------------------------------- training --

DOCUMENTS = [f"{word} {word[::-1]} the {word} sat on {k} {'mats' * (k % 3)}" for k, word in
             enumerate("cat dog bird horse mouse lion ape otter newt seal".split())]
TRAIN = {"batch": 5, "bptt": 7, "steps": 5, "lr": 0.017, "lr_final": 0.23, "warmup": 2, "schedule": "cosine",
         "beta1": 0.83, "beta2": 0.937, "epsilon": 0.0041, "weight_decay": 0.71, "clip": 0.37, "average": 0.61,
         "log_every": 1, "recompute": 2, "optimizer": "adam", "muon_lr": 0.031, "muon_momentum": 0.87}


def minibatches(seed, batch, bptt):
    """(whether an epoch begins, inputs, targets [step][stream]), for ever."""
    epoch = 0
    while True:
        text = b"".join(b"\n %s " % d.encode() for d in shuffled(DOCUMENTS, seed, epoch))
        length = (len(text) - 1) // batch
        stripes = [np.frombuffer(text[k * length:(k + 1) * length + 1], np.uint8) for k in range(batch)]
        for u in range(length // bptt):
            part = np.array([s[u * bptt:(u + 1) * bptt + 1] for s in stripes]).T.astype(int)
            yield u == 0, part[:-1], part[1:]
        epoch += 1


def rate(t, step):
    if step < t["warmup"]:
        return t["lr"] * (step + 1) / t["warmup"]
    done = (step - t["warmup"]) / (t["steps"] - t["warmup"])
    left = {"linear": 1 - done, "cosine": (1 + np.cos(np.pi * done)) / 2, "constant": 1}[t["schedule"]]
    return t["lr"] * (t["lr_final"] + (1 - t["lr_final"]) * left) if t["schedule"] != "constant" else t["lr"]


def orthogonal(x):
    """Five Newton-Schulz iterations, for matrices of any shape."""
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


class Training(unittest.TestCase):
    def run_program(self, folder, *arguments):
        done = subprocess.run([PROGRAM, *map(str, arguments)], cwd=folder, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def close(self, what, found, expected, tolerance):
        found, expected = np.asarray(found, float), np.asarray(expected, float)
        self.assertEqual(found.shape, expected.shape, what)
        error = np.linalg.norm(found - expected) / (np.linalg.norm(expected) + 1e-30)
        self.assertLess(error, tolerance, what)

    def begin(self, folder, model, t):
        """Writes init.safetensors, a model of unusual weights. Returns the command that trains such a model."""
        settings = {f"model.{k}": v for k, v in model.items() if k != "seed"} | {f"train.{k}": v for k, v in t.items()}
        (Path(folder) / "text.tsv").write_text("".join(f"0\t{d}\n" for d in DOCUMENTS))
        config = ["run.seed=77", "run.device=cpu", "run.threads=1", "data.train=text.tsv", "data.valid_fraction=0",
                  *(f"{k}={v}" for k, v in settings.items())]
        (Path(folder) / "c.yaml").write_text("data: {train: text.tsv}\n")
        start = ["train", "c.yaml", *(word for s in config for word in ("--set", s))]
        self.run_program(folder, *start, "--set", "train.steps=1", "--out", "first")
        randomise(f"{folder}/first/last.safetensors", f"{folder}/init.safetensors", np.random.default_rng(5))
        return start

    def check(self, model, **changes):
        """Trains by the program and by NumPy, from the same unusual weights."""
        t = TRAIN | changes
        model = {"seed": 77, "block": 8, "hidden": 24, "embedding": 3} | model
        with tempfile.TemporaryDirectory() as folder:
            start = self.begin(folder, model, t)
            self.run_program(folder, *start, "--set", "train.init=init.safetensors", "--out", "run")
            _, initial = read_tensors(f"{folder}/init.safetensors")
            self.compare(model, t, initial, Path(folder) / "run")

    def compare(self, model, t, initial, run):
        names = [name for name in initial if not name.startswith("pattern.")]
        patterns = {name[8:]: v for name, v in initial.items() if name.startswith("pattern.")}
        weights = {name: initial[name].astype(float) for name in names}
        m, v, average = ({k: np.zeros_like(w) for k, w in weights.items()} for _ in range(3))
        average = {k: w.copy() for k, w in weights.items()}
        metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        layers, state = model.get("layers", 1), None
        self.assertEqual(len(metrics), t["steps"])
        for step, (begins, byte, target), line in zip(range(t["steps"]), minibatches(77, t["batch"], t["bptt"]), metrics):
            if begins:
                state = [np.zeros((2, layers, t["batch"], model["hidden"]))[i] for i in range(2)]
            net = Model(model, weights, patterns)
            loss, *state = net.loss(byte, target, *state, step)
            loss.backward()
            grads = {name: net.vars[name].grad for name in names}
            norm = np.sqrt(sum((g * g).sum() for g in grads.values()))
            self.close(f"bpc of step {step}", line["bpc"], loss.value / np.log(2), 2e-5)
            self.close("gradient norm", line["grad_norm"], norm, 2e-4)
            self.close("learning rate", line["lr"], rate(t, step), 1e-6)
            shrink = min(1, t["clip"] / norm) if t["clip"] else 1
            d = min(t["average"], (1 + step) / (10 + step))
            for name in names:
                recurrent = name.startswith("cell.") and name.endswith("weight")
                if recurrent and t["optimizer"] == "muon" and len(weights[name]) == 1:  # one dense block
                    m[name] = t["muon_momentum"] * m[name] + grads[name]
                    turned = grads[name] + t["muon_momentum"] * m[name]
                    turned = turned.reshape(-1, turned.shape[-1])
                    step_size = rate(t, step) / t["lr"] * t["muon_lr"]
                    u = 0.2 * np.sqrt(max(turned.shape)) * orthogonal(turned).reshape(weights[name].shape)
                    weights[name] = weights[name] - step_size * (u + t["weight_decay"] * weights[name])
                    average[name] = d * average[name] + (1 - d) * weights[name]
                    continue
                g = grads[name] * shrink
                m[name] = t["beta1"] * m[name] + (1 - t["beta1"]) * g
                v[name] = t["beta2"] * v[name] + (1 - t["beta2"]) * g * g
                decay = t["weight_decay"] if recurrent else 0
                root = np.sqrt(v[name] / (1 - t["beta2"] ** (step + 1))) + t["epsilon"]
                weights[name] = (1 - rate(t, step) * decay) * weights[name] - \
                    rate(t, step) * m[name] / (1 - t["beta1"] ** (step + 1)) / root
                average[name] = d * average[name] + (1 - d) * weights[name]
        _, arenas = read_tensors(run / "last.state")
        for name, pattern in patterns.items():
            np.testing.assert_array_equal(arenas[f"pattern.{name}"], pattern)
        for what, ours, tolerance in ("weights", weights, 1e-4), ("moment1", m, 5e-4), ("moment2", v, 5e-4), \
                                     ("average", average, 1e-4):
            at = 0
            for name in names:
                count = ours[name].size
                self.close(f"{what} of {name}", arenas[what].ravel()[at:at + count], ours[name].ravel(), tolerance)
                at += -(-count // 256) * 256
        for which in 0, 1:
            expected = np.concatenate([s.T for s in state[which]])
            self.close("hc"[which], arenas["hc"[which]][:, :t["batch"]], expected, 1e-4)
        for name, value in read_tensors(run / "last.safetensors")[1].items():
            if name in average:
                self.close(f"model's {name}", value, average[name], 1e-4)

    def row_norms(self, patterns, arena, gates):
        """|w| [gate][node][row in node] of the rows of the gates of a layer of an lstm or deep cell."""
        square = 1e-6
        for stage in gates, gates.replace("gates", "below"):
            w = arena.get(f"cell.{stage}.weight", np.zeros(0))
            if w.ndim == 4:
                sums = np.zeros((patterns[stage].max() + 1, *w.shape[1:3]))
                np.add.at(sums, patterns[stage][:, 0], (w ** 2).sum(3))
                square = square + sums.swapaxes(0, 1)
        return np.sqrt(square)

    def prune(self, model, density, patterns, weights):
        """Drops the blocks of smallest norm. Rows of weight norm are compared as the products read them, and read as
        before."""
        normed = [stage for stage in patterns if stage.endswith("gates") and model.get("norm") == "weight"]
        before = {stage: self.row_norms(patterns, weights, stage) for stage in normed}
        scales = {stage: weights[f"cell.{stage}.gain"].reshape(before[stage].shape) / before[stage] for stage in normed}
        for stage, pattern in patterns.items():
            name = f"cell.{stage}.weight"
            nodes = pattern.max() + 1
            most = max(nodes, round(density * nodes * nodes))
            read, scale = weights[name], scales.get(stage.replace("below", "gates"))
            if scale is not None and read.ndim == 4:
                read = read * scale.swapaxes(0, 1)[pattern[:, 0], :, :, None]
            norms = (read.reshape(len(pattern), -1) ** 2).sum(1)
            others = sorted((norms[k], k) for k, (i, j) in enumerate(pattern) if i != j)
            gone = [k for _, k in others[:max(0, len(pattern) - most)]]
            keep = [k for k in range(len(pattern)) if k not in gone]
            self.assertLess(len(keep), len(pattern))
            patterns[stage] = pattern[keep]
            weights[name] = weights[name][keep]
        for stage in normed:
            gain = weights[f"cell.{stage}.gain"]
            gain *= (self.row_norms(patterns, weights, stage) / before[stage]).reshape(gain.shape)

    def test_lstm_of_two_layers(self):
        self.check({"cell": "lstm", "graph": "random", "density": 0.7, "layers": 2, "dropout": 0.31})

    def test_mlstm(self):
        self.check({"cell": "mlstm", "graph": "dense"}, schedule="linear", recompute=1)

    def test_deep(self):
        self.check({"cell": "deep", "graph": "random", "density": 0.8, "internal_steps": 3, "input_stride": 2,
                    "output_stride": 3, "dropout": 0.2, "input_dropout": 0.1}, schedule="constant", clip=0)

    def test_hubs(self):
        self.check({"cell": "mlstm", "hidden": 32, "hubs": 16, "layers": 2, "dropout": 0.2})
        self.check({"cell": "deep", "graph": "random", "density": 0.7, "hidden": 48, "hubs": 24, "input_stride": 2})

    def test_no_layer_norm(self):
        self.check({"cell": "mlstm", "graph": "random", "density": 0.6, "norm": "none"}, clip=0.05)

    def test_weight_norm(self):
        self.check({"cell": "mlstm", "hidden": 32, "hubs": 16, "layers": 2, "norm": "weight", "coupled_gates": "true"})
        self.check({"cell": "lstm", "graph": "random", "density": 0.7, "layers": 2, "norm": "weight"}, clip=0.05)
        self.check({"cell": "lstm", "graph": "dense", "layers": 2, "norm": "weight", "coupled_gates": "true"}, recompute=1)
        self.check({"cell": "deep", "graph": "random", "density": 0.7, "norm": "weight", "coupled_gates": "true"})

    def test_muon(self):
        self.check({"cell": "mlstm", "hidden": 32, "hubs": 16, "layers": 2, "norm": "weight", "coupled_gates": "true"},
                   optimizer="muon")
        self.check({"cell": "deep", "graph": "dense", "internal_steps": 2}, optimizer="muon", clip=0.05)
        self.check({"cell": "lstm", "graph": "dense", "layers": 2, "norm": "weight"}, optimizer="muon", recompute=1)

    def test_coupled_gates(self):
        self.check({"cell": "mlstm", "graph": "dense", "coupled_gates": "true", "input_stride": 2})

    def test_pruning(self):
        for model in ({"cell": "lstm"}, {"cell": "lstm", "layers": 2, "coupled_gates": "true", "norm": "weight"},
                      {"cell": "deep", "norm": "weight"}):
            model = {"block": 8, "hidden": 48, "embedding": 3, "graph": "random", "density": 0.9} | model
            with self.subTest(model), tempfile.TemporaryDirectory() as folder:
                self.begin(folder, model, TRAIN)
                self.run_program(folder, "prune", "init.safetensors", "--density", "0.4", "--out", "pruned.safetensors")
                tensors, pruned = (read_tensors(f"{folder}/{name}.safetensors")[1] for name in ("init", "pruned"))
                patterns = {name[8:]: v for name, v in tensors.items() if name.startswith("pattern.")}
                weights = {name: v.astype(float) for name, v in tensors.items() if not name.startswith("pattern.")}
                self.prune(model, 0.4, patterns, weights)
                for name, pattern in patterns.items():
                    np.testing.assert_array_equal(pruned[f"pattern.{name}"], pattern)
                for name, value in weights.items():
                    self.close(name, pruned[name], value, 1e-6)

    def test_streams(self):
        """More streams than one group of columns, and an epoch of one update."""
        self.check({"cell": "lstm", "graph": "dense", "input_dropout": 0.23}, batch=19, bptt=9, steps=3)


def main():
    global PROGRAM
    PROGRAM = Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
