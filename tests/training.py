#!/usr/bin/env python3
"""The optimizer's arithmetic, after each of a few updates of the program: what weights, moments and average become, given
the gradient that the moments tell, with unusual values of every number of a config; and what pruning keeps.

    tests/training.py BUILD/smallworld

Nothing is shared with the program but docs/training.md and docs/checkpoint.md. Gradients themselves are those of
test_gradients.c. Skipped (77) without NumPy.
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


# --------------------------------------------------------------------------------------- training --

DOCUMENTS = [f"{word} {word[::-1]} the {word} sat on {k} {'mats' * (k % 3)}" for k, word in
             enumerate("cat dog bird horse mouse lion ape otter newt seal".split())]
TRAIN = {"batch": 5, "bptt": 7, "lr": 0.017, "lr_head": 2.3, "warmup": 2, "schedule": "constant", "beta1": 0.83, "beta2": 0.937,
         "epsilon": 0.0041, "weight_decay": 0.71, "input_decay": 0.23, "clip": 0.37, "average": 0.61, "log_every": 1, "recompute": 2,
         "optimizer": "adam", "muon_lr": 0.031, "muon_momentum": 0.87}
STEPS = 4


def rate(t, step):
    return t["lr"] * min(1, (step + 1) / t["warmup"])


def orthogonal(x):
    """Five Newton-Schulz iterations, for matrices of any shape."""
    x = x / (np.linalg.norm(x) + 1e-7)
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


def is_recurrent(name):
    return name.startswith("cell.") and name.endswith("weight")


def is_input(name):
    return name.startswith("input.") and name.endswith(("embedding", "projection"))


def of_muon(t, name, shape):
    """Muon trains recurrent weights of one dense block."""
    return t["optimizer"] == "muon" and is_recurrent(name) and shape[0] == 1


def in_blocks(weight, pattern):
    """Weights [block][gate][row][column], or [block][row][column], as a sparse pattern keeps them, also of a dense one."""
    if len(weight) == len(pattern):
        return weight
    nodes = pattern.max() + 1
    side = weight.shape[-1] // nodes
    parts = weight.reshape(*weight.shape[1:-2], nodes, side, nodes, side)  # [gate] node row node column
    return np.stack([parts[..., i, :, j, :] for i, j in pattern])


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
        """Trains one update after another, from unusual weights, and compares each with the one before."""
        t = TRAIN | changes
        model = {"seed": 77, "block": 8, "hidden": 24, "embedding": 3} | model
        with tempfile.TemporaryDirectory() as folder:
            start = self.begin(folder, model, t)
            _, initial = read_tensors(f"{folder}/init.safetensors")
            shapes = {name: v.shape for name, v in initial.items() if not name.startswith("pattern.")}
            before = {"weights": initial, "average": initial,
                      **{name: {k: np.zeros(shape) for k, shape in shapes.items()} for name in ("moment1", "moment2")}}
            for step in range(STEPS):
                self.run_program(folder, *start, "--set", "train.init=init.safetensors", "--set", f"train.steps={step + 1}",
                                 "--out", "run", *(["--resume"] if step else []))
                after = self.arenas(f"{folder}/run/last.state", shapes, t)
                lines = Path(f"{folder}/run/metrics.jsonl").read_text().splitlines()
                self.compare(t, step, before, after, json.loads(lines[step]))
                before = after
            for name, value in read_tensors(f"{folder}/run/last.safetensors")[1].items():
                if name in shapes:
                    np.testing.assert_array_equal(value, after["average"][name].astype(np.float32))

    def arenas(self, path, shapes, t):
        """{arena: {parameter: values}} of a state, whose arenas hold each parameter from a multiple of 256 on: first what
        Adam trains, then what Muon does, which has no second moment."""
        _, tensors = read_tensors(path)
        found = {what: {} for what in ("weights", "moment1", "moment2", "average")}
        for what, values in found.items():
            at = 0
            for name in sorted(shapes, key=lambda name: of_muon(t, name, shapes[name])):
                if what == "moment2" and of_muon(t, name, shapes[name]):
                    continue
                count = int(np.prod(shapes[name]))
                values[name] = tensors[what].ravel()[at:at + count].reshape(shapes[name]).astype(float)
                at += -(-count // 256) * 256
            self.assertEqual(len(tensors[what]), at, what)
        return found

    def compare(self, t, step, before, after, line):
        self.close("learning rate", line["lr"], rate(t, step), 1e-6)
        d, square, clip = min(t["average"], (1 + step) / (10 + step)), 0, 1
        if t["clip"] and line["grad_norm"] > t["clip"]:
            clip = t["clip"] / line["grad_norm"]
        for name, w in after["weights"].items():
            was = {what: before[what].get(name) for what in after}
            m, v = after["moment1"][name], after["moment2"].get(name)
            if of_muon(t, name, w.shape):
                g = m - t["muon_momentum"] * was["moment1"]
                turned = (g + t["muon_momentum"] * m).reshape(-1, w.shape[-1])
                u = 0.2 * np.sqrt(max(turned.shape)) * orthogonal(turned).reshape(w.shape)
                size = rate(t, step) / t["lr"] * t["muon_lr"]
                expected = was["weights"] - size * (u + t["weight_decay"] * was["weights"])
                square += (g * g).sum()
            else:
                g = (m - t["beta1"] * was["moment1"]) / (1 - t["beta1"])
                self.close(f"moment2 of {name}", v, t["beta2"] * was["moment2"] + (1 - t["beta2"]) * g * g, 1e-3)
                root = np.sqrt(v / (1 - t["beta2"] ** (step + 1))) + t["epsilon"]
                decay = t["weight_decay"] if is_recurrent(name) else t["input_decay"] if is_input(name) else 0
                own = t["lr_head"] if name == "head.weight" else 1
                expected = (1 - rate(t, step) * decay) * was["weights"] - \
                    own * rate(t, step) * m / (1 - t["beta1"] ** (step + 1)) / root
                square += (g * g).sum() / clip ** 2
            self.close(f"weights of {name}", w, expected, 2e-5)
            self.close(f"average of {name}", after["average"][name], d * was["average"] + (1 - d) * w, 2e-6)
        self.close("gradient norm", line["grad_norm"], np.sqrt(square), 1e-3)

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

    def test_adam(self):
        self.check({"cell": "lstm", "graph": "random", "density": 0.7, "layers": 2, "dropout": 0.31})
        self.check({"cell": "mlstm", "graph": "dense", "norm": "weight", "coupled_gates": "true"}, clip=0, recompute=1)

    def test_muon(self):
        self.check({"cell": "mlstm", "hidden": 32, "hubs": 16, "layers": 2, "norm": "weight", "coupled_gates": "true"},
                   optimizer="muon")
        self.check({"cell": "deep", "graph": "dense", "internal_steps": 2}, optimizer="muon", clip=0.05)

    def test_pruning(self):
        for model in ({"cell": "lstm"}, {"cell": "lstm", "layers": 2, "coupled_gates": "true", "norm": "weight"},
                      {"cell": "deep", "norm": "weight"}, {"cell": "mlstm", "graph": "dense", "norm": "weight", "layers": 2}):
            wiring = {} if "graph" in model else {"graph": "random", "density": 0.9}
            model = {"block": 8, "hidden": 48, "embedding": 3} | wiring | model
            with self.subTest(model), tempfile.TemporaryDirectory() as folder:
                self.begin(folder, model, TRAIN)
                self.run_program(folder, "prune", "init.safetensors", "--density", "0.4", "--out", "pruned.safetensors")
                tensors, pruned = (read_tensors(f"{folder}/{name}.safetensors")[1] for name in ("init", "pruned"))
                patterns = {name[8:]: v for name, v in tensors.items() if name.startswith("pattern.")}
                weights = {name: v.astype(float) for name, v in tensors.items() if not name.startswith("pattern.")}
                for name, pattern in patterns.items():
                    weights[f"cell.{name}.weight"] = in_blocks(weights[f"cell.{name}.weight"], pattern)
                self.prune(model, 0.4, patterns, weights)
                for name, pattern in patterns.items():
                    np.testing.assert_array_equal(pruned[f"pattern.{name}"], pattern)
                for name, value in weights.items():
                    self.close(name, pruned[name], value, 1e-6)


def main():
    global PROGRAM
    PROGRAM = Path(sys.argv.pop(1)).resolve()
    unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
