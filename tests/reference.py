"""scripts/reference.py, which knows a checkpoint only by its format, and what `export` writes for PyTorch, against
`eval --exact`.

    /usr/bin/python3 tests/reference.py BUILD/smallworld

Trains a tiny model of each kind of cell, scores documents with all three, and exits with 1 where their
bits per character differ by 1e-4 or more, or PyTorch's by 1e-5. Without PyTorch that one is left out.
"""

import gzip
import importlib.util
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import needs

needs.module("numpy")
try:
    import torch
except ImportError:
    torch = None

REFERENCE = Path(__file__).resolve().parent.parent / "scripts" / "reference.py"
TOLERANCE = 1e-4
TORCH_TOLERANCE = 1e-5

MODELS = {
    "lstm": {"degree": 4},
    "lstm with strides, no layer norm": {"degree": 4, "input_stride": 2, "output_stride": 4,
                                         "norm": "none"},
    "dense lstm": {"graph": "dense"},
    "mlstm": {"cell": "mlstm", "degree": 2, "input_stride": 2},
    "dense mlstm, no layer norm": {"cell": "mlstm", "graph": "dense", "norm": "none"},
    "lstm of three layers": {"degree": 2, "layers": 3},
    "mlstm of two layers, no layer norm": {"cell": "mlstm", "degree": 2, "layers": 2,
                                           "norm": "none", "input_stride": 2},
    "deep of two layers": {"cell": "deep", "degree": 2, "layers": 2, "init_noise": 0.1},
    "deep": {"cell": "deep", "internal_steps": 3, "degree": 2, "init_noise": 0.1,
             "input_stride": 2, "output_stride": 2},
    "mlstm with hubs": {"cell": "mlstm", "graph": "dense", "hubs": 16, "layers": 2},
    "deep with hubs, of sparse wiring": {"cell": "deep", "graph": "random", "density": 0.5, "hubs": 32,
                                         "input_stride": 2, "init_noise": 0.1},
    "lstm, weight norm and coupled gates": {"degree": 4, "norm": "weight", "coupled_gates": True, "init_gain": 2,
                                            "layers": 2, "input_stride": 2},
    "dense lstm of two layers, weight norm": {"graph": "dense", "norm": "weight", "layers": 2, "init_noise": 0.1},
    "mlstm with hubs, weight norm and coupled gates": {"cell": "mlstm", "graph": "dense", "hubs": 16, "norm": "weight",
                                                       "coupled_gates": True, "layers": 2},
    "deep with hubs, coupled gates": {"cell": "deep", "graph": "random", "density": 0.5, "hubs": 32,
                                      "coupled_gates": True, "init_noise": 0.1},
    "deep, weight norm": {"cell": "deep", "degree": 4, "norm": "weight", "init_noise": 0.1},
    "deep, no layer norm": {"cell": "deep", "degree": 4, "norm": "none", "init_noise": 0.1},
}


def documents(count, seed):
    draw = random.Random(seed)
    words = ["the", "cat &amp; dog", "sat", "\u00e9t\u00e9", "&#x2019;", "&#55555;", "&no;", "on\r"]
    lines = (" ".join(draw.choice(words) for _ in range(12)) for _ in range(count))
    return "".join(f"{i % 2}\t{line}\n" for i, line in enumerate(lines)).encode()


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit status {done.returncode}\n{done.stderr}")
    return done.stdout.splitlines()[-1]


def module_of(path):
    """A Python file as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def exported_bits(program, checkpoint, files, entities):
    """Bits per character by what `export` writes, which evaluates as the checkpoint does."""
    out = checkpoint.parent / "exported"
    run(program, "export", checkpoint, "--to", "torch", "--out", out)
    if (out / "model.safetensors").read_bytes() != checkpoint.read_bytes():
        sys.exit("export: its model.safetensors is not the checkpoint")
    if not torch:
        return None
    model = module_of(out / "smallworld_lstm.py").SmallWorldLSTM.load(out)
    read_text = module_of(REFERENCE).read_text
    text = b"".join(read_text(str(path), entities) for path in files)
    with torch.no_grad():
        whole = model.bits(torch.tensor([list(text)])).double().mean()
        first, *_, state = model(torch.tensor([list(text[:7])]))  # in two parts, beside another text
        rest = model(torch.tensor([list(text[7:])] * 2), tuple(part.repeat(1, 2, 1) for part in state)).logits[1:]
        parts = torch.cat([first, rest], 1)[:, :-1].transpose(1, 2)
        again = torch.nn.functional.cross_entropy(parts, torch.tensor([list(text[1:])]))
        classes = model.classes(torch.tensor([list(b"\n the cat sat on ")]))[0].tolist()
    one = checkpoint.parent / "one.txt"
    one.write_text("the cat sat on\n")
    said = json.loads(run(program, "predict", checkpoint, "--text", one, "--device", "cpu", "--precision", "fp32"))
    for name, probability in zip(model.class_names, classes, strict=True):
        if abs(said["probability"][name] - probability) > TORCH_TOLERANCE:
            sys.exit(f"smallworld_lstm.py: class {name}: {probability}, predict: {said}")
    if abs(float(again) / 0.6931471805599453 - float(whole)) > TORCH_TOLERANCE:
        sys.exit(f"smallworld_lstm.py: in parts {float(again)} nats, at once {float(whole)} bits")
    damaged = bytearray(checkpoint.read_bytes())
    damaged[-3] ^= 1
    (out / "damaged.safetensors").write_bytes(damaged)
    for bad, reason in (out / "damaged.safetensors", "checksum"), (files[0], "expected a model"):
        try:
            type(model).load(str(bad))
            sys.exit(f"smallworld_lstm.py: {bad} was read")
        except ValueError as problem:
            if str(bad) not in str(problem) or reason not in str(problem):
                sys.exit(f"smallworld_lstm.py: {problem}")
    loaded = type(model)(model.metadata, {name: value.clone() for name, value in model.state_dict().items()})
    if list(loaded.state_dict()) != list(model.state_dict()):
        sys.exit("smallworld_lstm.py: another state_dict")
    return float(whole)


def compare(program, folder, model, entities):
    config = folder / "config.yaml"
    config.write_text(json.dumps({  # JSON is YAML
        "run": {"device": "cpu", "precision": "fp32", "threads": 1},
        "data": {"train": str(folder / "train.tsv"), "html_entities": entities},
        "model": {"hidden": 64, "block": 8, "embedding": 6} | model,
        "train": {"batch": 4, "bptt": 32, "steps": 30, "warmup": 5, "lr": 0.01, "average": 0.9, "label_weight": 1},
    }))
    run(program, "train", config, "--out", folder / "run", "--overwrite")
    checkpoint = folder / "run" / "last.safetensors"
    files = [folder / "some.tsv.gz", folder / "raw.txt"]
    ours = json.loads(run(program, "eval", checkpoint, "--data", *files, "--exact", "--json",
                          "--precision", "fp32", "--device", "cpu", "--threads", "1"))
    words = run(sys.executable, REFERENCE, checkpoint, *files).split()
    return ours["bpc"], ours["bytes"], float(words[0]), int(words[-2]), exported_bits(program, checkpoint, files, entities)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "train.tsv").write_bytes(documents(80, 1))
        odd = b"7\t\r\n-1\t\x00\xff"
        (folder / "some.tsv.gz").write_bytes(gzip.compress(documents(5, 2) + odd))
        (folder / "raw.txt").write_bytes(b"raw\r\ntext &amp; \x00\xfe\n")
        for number, (kind, model) in enumerate(MODELS.items()):
            bpc, size, expected, predicted, exported = compare(sys.argv[1], folder, model, number % 2 == 0)
            good = abs(bpc - expected) < TOLERANCE and size == predicted
            good &= exported is None or abs(bpc - exported) < TORCH_TOLERANCE
            failed += not good
            print(f"{'ok    ' if good else 'FAILED'} {kind}: {bpc:.6f} bits per character over "
                  f"{size} bytes, in NumPy {expected:.6f} over {predicted}, in PyTorch {exported}")
        for bad in folder / "none", folder / "raw.txt", folder / "some.tsv.gz":
            done = subprocess.run([sys.executable, REFERENCE, bad, bad], capture_output=True, text=True)
            failed += done.returncode != 1 or done.stderr.count("\n") != 1 or str(bad) not in done.stderr
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
