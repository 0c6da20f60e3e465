"""What the program `smallworld` does, from Python: training, classifiers and probes."""

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy

from ._library import Error, folder_of, label_list, label_text, near, text_list
from .models import Model


def program():
    """The path of the program `smallworld`."""
    found = os.environ.get("SMALLWORLD_PROGRAM") or next(iter(near("smallworld", "bin/smallworld")), None)
    found = found or shutil.which("smallworld")
    if not found:
        raise FileNotFoundError("smallworld: expected the program `smallworld` on the PATH, or at "
                                "$SMALLWORLD_PROGRAM")
    return str(found)


def main():
    """The command `smallworld` that pip installs: becomes the program."""
    path = program()
    if os.path.realpath(path) == os.path.realpath(sys.argv[0]):
        sys.exit("smallworld: the package has no program; pip install smallworld again")
    os.execv(path, ["smallworld", *sys.argv[1:]])


def _run(command, *arguments, quiet=False):
    """What a command prints, as JSON. Its progress goes to standard error, unless `quiet`, and its last line
    there is the reason if it fails."""
    given = [str(one) for one in arguments]
    process = subprocess.Popen([program(), command, *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    said = b""
    try:
        while piece := process.stderr.read1(4096):
            said = (said + piece)[-8192:]
            if not quiet:
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
        lines = re.findall(rb"(?m)^smallworld(?: \w+)?: (.*)", said.replace(b"\r", b"\n"))
        raise Error((lines or [b"failed"])[-1].decode("utf-8", "replace"))
    return json.loads(out.splitlines()[-1]) if out else None


def write_table(path, texts, labels=None):
    """Writes texts, and their labels or None, as a CSV table that the program reads."""
    texts = text_list(texts)
    labels = [""] * len(texts) if labels is None else [label_text(one) for one in label_list(labels, len(texts))]
    quoted = lambda field: b'"' + field.replace(b'"', b'""') + b'"'
    rows = [quoted(label.encode()) + b"," + quoted(text) + b"\n" for label, text in zip(labels, texts)]
    Path(path).write_bytes(b"label,text\n" + b"".join(rows))


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
    plain = lambda one: one.tolist() if isinstance(one, (numpy.generic, numpy.ndarray)) else os.fspath(one)
    return ["--set", f"{found[0]}={json.dumps(value, default=plain)}"]


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
    return Model.load(_run("train", *given, "--json")["checkpoint"])


def classify(train, out, test=None, text=None, model=None, minutes=None, steps=None, text_column=None, label_column=None,
             class_weight=None, drop_rare=None, device=None, overwrite=False, verbose=True):
    """Makes a classifier of labelled documents in the folder `out`, as `smallworld classify` does. Returns
    its errors beside those of n-grams and of the commonest class, in per cent (None: not tried), and which
    was saved. The model also learns from `text`, a file without labels; minutes=0 fits n-grams
    alone, as a CPU does unless minutes, steps or a model are given. steps: updates of the model; then no clock decides.
    class_weight="balanced" has all classes count alike; drop_rare=N leaves out classes of fewer than N documents. overwrite: replace a classifier that is there; verbose:
    progress on standard error.
    Classifier.load(OUT) and `smallworld predict OUT` class more text."""
    given = ["--train", train, "--out", out]
    for flag, value in (("--minutes", minutes), ("--steps", steps), ("--test", test), ("--text", text), ("--model", model.path if isinstance(model, Model) else model),
                        ("--text-column", text_column), ("--label-column", label_column), ("--class-weight", class_weight),
                        ("--drop-rare", drop_rare), ("--device", device)):
        given += [flag, value] if value is not None else []
    return _run("classify", *given, *["--overwrite"] * overwrite, "--json", quiet=not verbose)


class Classifier:
    """What `classify` saved in a folder, or a run that learnt labels beside its text. classes_: the names of
    the classes, in the order of predict_proba's columns."""

    def __init__(self, path, device=None):
        self.path, self.device = os.fspath(path), device
        self.classes_ = numpy.array(list(self._said([""])[0]["probability"]))

    @classmethod
    def load(cls, path, device=None):
        """A classifier's folder, or a run. device: "auto", "cpu" or "cuda"."""
        return cls(path, device)

    def __repr__(self):
        return f"<smallworld.Classifier: {self.path}, {len(self.classes_)} classes>"

    def _said(self, texts):
        texts = text_list(texts)
        device = ["--device", self.device] if self.device else []
        if len(texts) == 0:
            return []
        with tempfile.TemporaryDirectory(prefix="smallworld-") as here:
            table, said = Path(here) / "texts.csv", Path(here) / "said.jsonl"
            write_table(table, texts)
            _run("predict", self.path, "--text", table, "--out", said, *device, quiet=True)
            return [json.loads(line) for line in said.read_bytes().splitlines()]

    def predict(self, texts):
        """The name of each text's likeliest class."""
        return numpy.array([line["class"] for line in self._said(texts)], self.classes_.dtype)

    def predict_proba(self, texts):
        """float64 (texts, classes): the probability of each class."""
        rows = [list(line["probability"].values()) for line in self._said(texts)]
        return numpy.array(rows).reshape(-1, len(self.classes_))


class _Folder:
    """A temporary folder that goes with the last probe of it, also of copies."""

    def __init__(self):
        self.path = folder_of(self)

    def __deepcopy__(self, memo):
        return self


def _umask():
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


class Probe:
    """A linear classifier on a model's features. path: its file; result: what `smallworld probe --json`
    says of it, with its `valid_error` on held-out texts."""

    def __init__(self, path, result=None):
        self.path, self.result = path, result

    @classmethod
    def fit(cls, model, texts, labels):
        """Fits logistic regression on the features of texts, mean and last, whose labels are integers or
        names, or None or NaN; C and the better features are chosen on a fifth of them."""
        probe, here = cls._in_folder()
        write_table(here / "texts.csv", texts, labels)
        _run("features", model.path, "--data", here / "texts.csv", "--out", here / "x", "--json")
        probe.result = _run("probe", "--train", here / "x", "--test", here / "x", "--out", here / "p", "--json")
        for left in "x.npy", "x.labels.npy", "texts.csv":
            (here / left).unlink()
        return probe

    @classmethod
    def load(cls, path):
        """A .probe.safetensors that save or `smallworld probe --out` wrote."""
        if not os.path.isfile(path):
            raise FileNotFoundError(f"{os.fspath(path)}: expected the file of a probe")
        return cls(os.fspath(path))

    @classmethod
    def _in_folder(cls, result=None):
        """A probe in a temporary folder of its own, which goes with it; and the folder."""
        folder = _Folder()
        probe = cls(os.path.join(folder.path, "p.probe.safetensors"), result)
        probe._folder = folder
        return probe, Path(folder.path)

    @classmethod
    def _of_bytes(cls, content, result):
        probe, _ = cls._in_folder(result)
        Path(probe.path).write_bytes(content)
        return probe

    def __reduce__(self):
        return self._of_bytes, (Path(self.path).read_bytes(), self.result)

    def save(self, path):
        """Writes the probe to a file, PREFIX.probe.safetensors by custom, for `smallworld predict` and show."""
        path = os.fspath(path)
        with tempfile.NamedTemporaryFile(dir=os.path.dirname(path) or os.curdir, prefix=os.path.basename(path),
                                         delete=False) as file:
            try:
                file.write(Path(self.path).read_bytes())
                file.flush()
                os.fsync(file.fileno())
                os.chmod(file.name, 0o666 & ~_umask())
                os.replace(file.name, path)
            except BaseException:
                os.unlink(file.name)
                raise
