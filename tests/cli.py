"""The program from outside: options, exit statuses, what goes to stdout and stderr, signals, kills,
full disks, bad input and odd input.

    /usr/bin/python3 tests/cli.py BUILD/smallworld [CLASS.TEST...]
"""

import base64
import csv
import ctypes
import fcntl
import gzip
import io
import json
import lzma
import os
import pty
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import zlib
from pathlib import Path

import needs

numpy = needs.module("numpy")

PROGRAM = None  # set by main, before any test
COMMANDS = ["train", "eval", "features", "probe", "predict", "generate", "prune", "graph", "plot",
            "report", "show"]
RUN_FILES = ["best.safetensors", "config.yaml", "last.safetensors", "last.state", "metrics.jsonl"]
TIMED = ["seconds", "bytes_per_second"]

# ------------------------------------------------------------------------------------- helpers --


def documents(count, seed):
    """Labelled lines of a few words, of which a tiny model learns a little in a few updates."""
    draw = random.Random(seed)
    words = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat"]
    return "".join(f"{i % 2}\t{' '.join(draw.choices(words, k=draw.randint(3, 11)))}.\n"
                   for i in range(count)).encode()


def settings(**changes):
    """A tiny config. A change names a key as SECTION_KEY; None leaves the key out."""
    config = {
        "run": {"device": "cpu", "threads": 1},
        "data": {"train": "train.tsv", "valid": "valid.tsv"},
        "model": {"hidden": 32, "block": 8, "degree": 2, "embedding": 4},
        "train": {"batch": 2, "bptt": 16, "steps": 12, "warmup": 2, "lr": 0.01, "log_every": 3,
                  "valid_every": 5, "average": 0.9},
    }
    for path, value in changes.items():
        section, key = path.split("_", 1)
        if value is None:
            del config[section][key]
        else:
            config[section][key] = value
    return config


def sized(count):
    """An amount of work. Sanitized programs are several times slower, so they get less."""
    return count // 8 if "sanitize" in str(PROGRAM) else count


def limit_files(size):
    """A function for a new process, whose files then cannot grow past `size`, as on a full disk."""
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


class Case(unittest.TestCase):
    """Each test has its own folder, in which the program runs."""

    cpu = ["--device", "cpu", "--threads", "1"]  # for commands without a config

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.write("train.tsv", documents(60, 1))
        self.write("valid.tsv", documents(9, 2))
        self.config("config.yaml")

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return name

    def read(self, name):
        return (self.folder / name).read_bytes()

    def config(self, name, **changes):
        return self.write(name, json.dumps(settings(**changes)))  # JSON is YAML

    def start(self, *arguments, **options):
        return subprocess.Popen([PROGRAM, *map(str, arguments)], cwd=self.folder, text=True,
                                errors="surrogateescape", stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, **options)

    def run_program(self, *arguments, status=0, **options):
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=120)
        self.assertEqual(process.returncode, status, f"{arguments}: {err}")
        return out, err

    def results(self, *arguments, **options):
        """The JSON object that --json ends with."""
        out, _ = self.run_program(*arguments, "--json", **options)
        return json.loads(out.rstrip("\n").split("\n")[-1])

    def on_terminal(self, *arguments, columns=0):
        """Returns what the program shows on a terminal with so many columns; 0 means an unknown width."""
        terminal, other = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        process = subprocess.Popen([PROGRAM, *arguments], cwd=self.folder, stdout=other,
                                   stderr=other)
        os.close(other)
        text = b""
        try:
            while piece := os.read(terminal, 4096):
                text += piece
        except OSError:  # the other end is closed
            pass
        self.assertEqual(process.wait(), 0)
        os.close(terminal)
        return text.decode()

    def train(self, *arguments, **options):
        return self.results("train", "config.yaml", "--out", "run", *arguments, **options)

    def snapshot(self):
        return {str(path.relative_to(self.folder)): path.lstat().st_mtime_ns if path.is_dir()
                else (path.lstat().st_mtime_ns, path.read_bytes())
                for path in sorted(self.folder.rglob("*")) if not path.is_symlink()}

    def refused(self, expected, *arguments, status=1, **options):
        """Asserts that one line says `expected`, nothing else is printed, and no file changes."""
        before = self.snapshot()
        out, err = self.run_program(*arguments, status=status, **options)
        self.assertEqual(out, "", arguments)
        lines = err.splitlines()
        self.assertTrue(lines and lines[0].startswith("smallworld"), err)
        self.assertIn(expected, lines[0])
        if status == 2:  # then a hint at --help, which argp may wrap
            self.assertRegex(" ".join(lines[1:]), r"^Try .*--help.* for more information\.$")
        else:
            self.assertEqual(len(lines), 1, err)
        self.assertEqual(self.snapshot(), before)

    def assert_same_run(self, one, other):
        """Asserts that two runs left the same files, but for the times in them."""
        for name in ["config.yaml", "last.safetensors", "best.safetensors"]:
            self.assertEqual(self.read(f"{one}/{name}"), self.read(f"{other}/{name}"), name)
        metrics = []
        for run in one, other:
            lines = self.read(f"{run}/metrics.jsonl").splitlines()
            metrics.append([json.loads(line) for line in lines])
            for line in metrics[-1]:
                for key in TIMED:
                    del line[key]
        self.assertEqual(metrics[0], metrics[1])
        states = []
        for run in one, other:
            header, data = split_safetensors(self.read(f"{run}/last.state"))
            for key in ["seconds", "elapsed", "checksum", "metrics_bytes"]:
                del header["__metadata__"][key]
            states.append((header, data))
        self.assertEqual(states[0], states[1])


def split_safetensors(content):
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), content[start:]


def change_metadata(content, key, value):
    """Returns a checkpoint with another value of the same length and the right checksum."""
    changed = content.replace(f'"{key}": "'.encode(), f'"{key}": "{value}'.encode(), 1)
    at = changed.index(f'"{key}": "{value}'.encode()) + len(f'"{key}": "{value}')
    changed = changed[:at] + changed[at + len(value):]
    at = changed.index(b'"checksum": "') + len(b'"checksum": "')
    changed = changed[:at] + b"00000000" + changed[at + 8:]
    return changed[:at] + f"{zlib.crc32(changed):08x}".encode() + changed[at + 8:]


# --------------------------------------------------------------------------------------- usage --


class Usage(Case):
    def test_help_and_version(self):
        for option in "--help", "-h", "help":
            out, err = self.run_program(option)
            self.assertEqual(err, "")
            for command in COMMANDS:
                self.assertRegex(out, rf"(?m)^  {command} ")
        version = self.run_program("--version")[0]
        self.assertRegex(version, r"^smallworld \d+\.\d+\.\d+\n")
        for command in COMMANDS:
            out, err = self.run_program(command, "--help")
            self.assertEqual(err, "")
            self.assertIn(f"Usage: smallworld {command} ", out)
            self.assertIn("Example:\n", out)
            self.assertEqual(self.run_program(command, "--version")[0], version)

    def test_help_config(self):
        out, err = self.run_program("train", "--help-config")
        self.assertEqual(err, "")
        for section, keys in settings().items():
            self.assertRegex(out, rf"(?m)^{section}:$")
            for key in keys:
                self.assertRegex(out, rf"(?m)^  {key} \(.+, .+\): \S")

    def test_bad_usage(self):
        for expected, *arguments in [
            ("expected a command",),
            ("unknown command 'trian'; the nearest is 'train'", "trian"),
            ("unrecognized option '--fast'", "train", "--fast"),
            ("expected a CONFIG.yaml", "train"),
            ("expected one CONFIG.yaml, got also 'b'", "train", "a", "b"),
            ("--resume: not together with --overwrite", "train", "a", "--resume", "--overwrite"),
            ("--set model.hidden: expected key.path=value", "train", "config.yaml", "--set",
             "model.hidden"),
            ("--set: modle.hidden: unknown key; the nearest is model.hidden", "train",
             "config.yaml", "--set", "modle.hidden=8"),
            ("--batch: train.batch: expected an integer", "train", "config.yaml", "--batch", "0"),
            ("--device: run.device: expected one of: auto cpu cuda, got 'tpu'", "train",
             "config.yaml", "--device", "tpu"),
            ("expected a CHECKPOINT", "eval"),
            ("expected --data FILE...", "eval", "a.safetensors"),
            ("--limit: expected an integer from 2", "eval", "a", "--data", "b", "--limit", "1"),
            ("--limit: expected an integer", "eval", "a", "--data", "b", "--limit", "9" * 30),
            ("--dynamic-...: expected --dynamic beside it", "eval", "a", "--data", "b", "--dynamic-rate", "1"),
            ("--dynamic-decay: expected a number from 0 to 1", "eval", "a", "--data", "b", "--dynamic",
             "--dynamic-decay", "2"),
            ("expected --out PREFIX", "features", "a", "--data", "b"),
            ("--pool: expected last, mean or max, or different ones joined by commas; got 'sum'",
             "features", "a", "--pool", "sum"),
            ("--pool: expected last, mean or max", "features", "a", "--pool", ""),
            ("--pool: expected last, mean or max", "features", "a", "--pool", "last,"),
            ("--pool: expected last, mean or max", "features", "a", "--pool", "max,mean,max"),
            ("--out: expected the beginning of files' names, got ''", "features", "a", "--data",
             "b", "--out", ""),
            ("--out: expected the beginning of files' names, got 'f/'", "features", "a", "--data",
             "b", "--out", "f/"),
            ("--out: expected the beginning", "probe", "--train", "a", "--test", "b", "--out", ""),
            ("--edges: expected the beginning", "graph", "a", "--edges", ""),
            ("--out: expected a folder, got ''", "train", "config.yaml", "--out", ""),
            ("--threads: run.threads: expected an integer at least 0, at most 1024, got '60000'",
             "train", "config.yaml", "--threads", "60000"),
            ("--state: expected one of: cell hidden; got ''", "features", "a", "--state", ""),
            ("--temperature: expected a number", "generate", "a", "--temperature", "nan"),
            ("--temperature: expected a number", "generate", "a", "--temperature", "-1"),
            ("--prompt: expected at least one byte", "generate", "a", "--prompt", ""),
            ("--bytes: expected an integer", "generate", "a", "--bytes", "1e3"),
            ("expected a CONFIG.yaml or CHECKPOINT.safetensors", "graph"),
            ("expected --density SHARE", "prune", "a", "--out", "b"),
            ("--density: expected a number", "prune", "a", "--density", "1.5"),
            ("expected --out FILE", "prune", "a", "--density", "0.5"),
        ]:
            with self.subTest(arguments=arguments):
                self.refused(expected, *arguments, status=2)


# -------------------------------------------------------------------------------------- running --


class Train(Case):
    def test_what_a_run_leaves(self):
        out, err = self.run_program("train", "config.yaml", "--json")
        self.assertEqual(out.count("\n"), 1)
        result = json.loads(out)
        self.assertEqual(list(result), ["steps", "bytes", "epochs", "seconds", "bytes_per_second",
                                        "valid_bpc", "parameters", "checkpoint"])
        self.assertEqual((result["steps"], result["bytes"]), (12, 12 * 32))
        self.assertEqual(result["checkpoint"], "runs/config/last.safetensors")
        self.assertRegex(err, r"(?m)^memory: weights .*, optimiser .*, activations .*, tables .*: ")
        self.assertRegex(err, r"(?m)^step 12/12  bpc .* lr .* bytes/s ")
        self.assertNotIn("\r", err)
        run = self.folder / "runs" / "config"
        self.assertEqual(sorted(path.name for path in run.iterdir()), RUN_FILES)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], [3, 6, 9, 12])
        for line in lines:
            self.assertEqual(list(line), ["step", "bytes", "epoch", "seconds", "bpc", "lr",
                                          "grad_norm", "bytes_per_second", "valid_bpc"])
        self.assertEqual([line["valid_bpc"] is None for line in lines], [True, False, True, False])
        self.assertEqual(lines[-1]["valid_bpc"], result["valid_bpc"])
        out, _ = self.run_program("train", "config.yaml", "--out", "other")
        self.assertEqual(out, "other/last.safetensors\n")
        self.assert_same_run("runs/config", "other")
        for name in "last.safetensors", "best.safetensors":  # no time, host or path
            header, _ = split_safetensors(self.read(f"other/{name}"))
            self.assertNotIn(str(self.folder), json.dumps(header))
            self.assertNotIn("other", header["__metadata__"].values())

    def test_flags_override(self):
        self.train("--set", "train.steps=2", "--batch", "3", "--precision", "bf16", "--threads",
                   "2", "--set", "data.train=[train.tsv, valid.tsv]", "--set", "data.valid=null",
                   "--set", "data.valid_fraction=0.1")
        text = self.read("run/config.yaml").decode()
        for line in ["steps: 2", "batch: 3", "precision: bf16", "threads: 2", "valid: []",
                     'train: ["train.tsv", "valid.tsv"]', "valid_fraction: 0.1"]:
            self.assertIn(f"  {line}\n", text)
        # The resolved config gives the same run.
        again = self.results("train", "run/config.yaml", "--out", "again")
        self.assertEqual(again["steps"], 2)
        self.assert_same_run("run", "again")

    def test_config_from_a_pipe(self):
        readable, writable = os.pipe()
        os.write(writable, self.read("config.yaml"))
        os.close(writable)
        self.train()
        self.run_program("train", "/dev/stdin", "--out", "piped", stdin=readable)
        os.close(readable)
        self.assert_same_run("run", "piped")

    def test_progress_on_a_terminal(self):
        """Output after the progress line begins on a new line."""
        lines = self.on_terminal("train", "config.yaml", "--out", "run", "--set",
                                 "train.log_every=1").split("\r\n")
        self.assertRegex(lines[-5], r"\r\x1b\[Kstep 12/12 .* left$")
        self.assertRegex(lines[-4], r"^done: [0-9.]+ bits per character .* 12 updates .* parameters$")
        self.assertEqual(lines[-3], "next: smallworld generate run, or smallworld report run")
        self.assertEqual(lines[-2:], ["run/last.safetensors", ""])

    def test_resume_of_a_finished_run(self):
        first = self.train()
        before = self.snapshot()
        out, err = self.run_program("train", "config.yaml", "--out", "run", "--resume", "--json")
        self.assertEqual(json.loads(out), first)
        self.assertIn("already finished at step 12", err)
        self.assertEqual(self.snapshot(), before)

    def test_resume(self):
        self.train("--resume")  # without a checkpoint it starts from the beginning
        for key, value in [("train.lr", "0.02"), ("model.hidden", "64"), ("run.seed", "2"),
                           ("data.train", "valid.tsv"), ("train.valid_bytes", "4")]:
            self.refused(f"{key}: cannot change on resuming", "train", "config.yaml", "--out",
                         "run", "--resume", "--set", f"{key}={value}", "--set", "train.steps=20")
        result = self.train("--resume", "--set", "train.steps=16", "--set", "train.log_every=1",
                            "--set", "train.checkpoint_minutes=3", "--threads", "2")
        self.assertEqual(result["steps"], 16)
        result = self.train("--resume", "--set", "train.steps=null", "--set", "train.epochs=0.5",
                            "--set", "train.log_every=1")
        self.assertEqual(result["epochs"], 0.5)

    def test_two_runs_in_a_folder(self):
        first = self.start("train", "config.yaml", "--out", "run", "--set", "train.steps=100000")
        while not (self.folder / "run/metrics.jsonl").exists():
            time.sleep(0.01)
        for start in [], ["--resume"], ["--overwrite"]:
            out, err = self.run_program("train", "config.yaml", "--out", "run", *start, status=1)
            self.assertEqual((out, err), ("", "smallworld: run: another run is using it\n"))
        first.send_signal(signal.SIGINT)
        first.communicate()
        self.assertEqual(first.returncode, 128 + signal.SIGINT)

    def test_folder_in_use(self):
        self.train()
        self.refused("run: already holds a run; --resume continues it, --overwrite starts over",
                     "train", "config.yaml", "--out", "run")
        (self.folder / "run" / "last.state").unlink()
        self.refused("run: already holds a run", "train", "config.yaml", "--out", "run")
        self.train("--overwrite", "--set", "train.steps=3")
        self.assertEqual(self.read("run/metrics.jsonl").count(b"\n"), 1)

    def test_damaged_run(self):
        self.train()
        for name in "last.state", "config.yaml":
            with self.subTest(name=name):
                whole = self.read(f"run/{name}")
                self.write(f"run/{name}", whole[:-9])
                self.refused(f"run/{name}", "train", "config.yaml", "--out", "run", "--resume",
                             "--set", "train.steps=20")
                self.write(f"run/{name}", whole)
        # Missing files that the state does not need are reported, and the run goes on.
        self.run_program("train", "config.yaml", "--out", "whole")
        self.run_program("train", "config.yaml", "--out", "whole", "--resume", "--set",
                         "train.steps=20")
        self.write("run/last.safetensors", self.read("run/last.safetensors")[:-9])
        (self.folder / "run" / "metrics.jsonl").unlink()
        _, err = self.run_program("train", "config.yaml", "--out", "run", "--resume", "--set",
                                  "train.steps=20")
        self.assertIn("run/last.safetensors: made again from last.state", err)
        self.assertRegex(err, r"(?m)^smallworld: warning: run/metrics.jsonl: \d+ of its \d+ bytes "
                              "are missing")
        for name in "last.safetensors", "best.safetensors":
            self.assertEqual(self.read(f"run/{name}"), self.read(f"whole/{name}"))

    def test_resume_without_a_state(self):
        self.train()
        (self.folder / "run" / "last.state").unlink()
        self.refused("run/last.state: missing, though there is last.safetensors", "train",
                     "config.yaml", "--out", "run", "--resume")

    def test_own_config(self):
        """A config.yaml that no run wrote is never overwritten."""
        for start in [], ["--resume"], ["--overwrite"]:
            self.refused("./config.yaml: this file was not written by a run", "train", "config.yaml", "--out", ".",
                         *start)

    def test_overwrite_from_its_own_model(self):
        first = self.train()
        before = self.snapshot()
        start = ["train", "config.yaml", "--out", "run", "--overwrite", "--set",
                 f"train.init={first['checkpoint']}", "--set"]
        process = self.start(*start, "train.steps=100000", "--set", "train.valid_every=1000000")
        while not (self.folder / "run/next/metrics.jsonl").exists():
            time.sleep(0.01)
        process.kill()
        process.communicate()
        for path, content in before.items():
            if (self.folder / path).is_file():
                self.assertEqual(content[1], self.read(path), path)
        self.assertEqual(self.results(*start, "train.steps=5")["steps"], 5)
        self.assertEqual(sorted(path.name for path in (self.folder / "run").iterdir()), RUN_FILES)

    def test_folders_that_cannot_be(self):
        self.write("file", "")
        self.refused("file: not a folder", "train", "config.yaml", "--out", "file")
        self.refused("file", "train", "config.yaml", "--out", "file/run")
        self.refused("cannot make folder /proc/run", "train", "config.yaml", "--out", "/proc/run")
        if os.geteuid() != 0:  # root may write anywhere
            (self.folder / "locked").mkdir(mode=0o555)
            self.refused("locked", "train", "config.yaml", "--out", "locked")
            self.refused("locked", "train", "config.yaml", "--out", "locked/run")

    def test_full_disk(self):
        self.train()
        before = {name: self.read(f"run/{name}") for name in RUN_FILES}
        for start, place in (["--overwrite"], "run/next"), (["--resume"], "run"):
            out, err = self.run_program("train", "config.yaml", "--out", "run", *start, "--set",
                                        "train.steps=20", status=1, preexec_fn=limit_files(20000))
            self.assertEqual(out, "")
            self.assertRegex(err.splitlines()[-1], f"^smallworld: cannot write {place}/(last.state|best"
                                                   ".safetensors).tmp: File too large$")
            for kept in ["last.state", "last.safetensors", "best.safetensors"]:
                self.assertEqual(before[kept], self.read(f"run/{kept}"))
        self.assertEqual(self.train("--resume", "--set", "train.steps=20")["steps"], 20)

    def test_full_disk_for_metrics(self):
        """If a line of metrics cannot be written, the run is saved and ends."""
        self.config("config.yaml", model_hidden=8, model_graph="dense", model_degree=None,
                    model_embedding=4, train_steps=600, train_log_every=1, train_valid_every=600)
        _, err = self.run_program("train", "config.yaml", "--out", "run", status=1,
                                  preexec_fn=limit_files(80000))
        line = err.splitlines()[-1]
        self.assertRegex(line, r"^smallworld: cannot write run/metrics.jsonl: File too large; "
                               r"the run is saved after step \d+$")
        self.assertEqual(self.train("--resume")["steps"], 600)
        self.run_program("train", "config.yaml", "--out", "whole")
        self.assert_same_run("whole", "run")

    def test_not_finite(self):
        self.train()
        content = self.read("run/last.safetensors")
        header, _ = split_safetensors(content)
        bias = len(content) - header["pattern.gates"]["data_offsets"][1]
        bias += header["head.bias"]["data_offsets"][0]
        content = content[:bias] + b"\0\0\xc0\x7f" + content[bias + 4:]  # a NaN
        self.write("nan.safetensors", change_metadata(content, "version", "1"))
        expected = "nan.safetensors: tensor head.bias: expected finite numbers, found others"
        self.refused(expected, "train", "config.yaml", "--out", "other", "--set",
                     "train.init=nan.safetensors")
        self.refused(expected, "eval", "nan.safetensors", "--data", "valid.tsv")
        self.refused(expected, "generate", "nan.safetensors")

    def test_odd_files(self):
        """Pipes that nobody writes to, names with NUL bytes, and what other programs left."""
        (self.folder / "texts").mkdir()
        os.mkfifo(self.folder / "texts/pipe")
        for expected, *command in (("texts/pipe: empty", "train", "texts/pipe"),
                                   ("texts/pipe: expected a file or a folder", "train", "config.yaml", "--set",
                                    "data.train=texts")):
            self.assertIn(expected, self.run_program(*command, status=1)[1])
        (self.folder / "texts/pipe").unlink()
        self.write("nul.list", b"train\0.tsv\n")
        self.refused("nul.list: expected names of files, found a NUL byte", "train", "config.yaml", "--set",
                     "data.train=nul.list")
        self.write("more.txt.xz", lzma.compress(b"text " * 1000) + b"other")
        self.refused("more.txt.xz: xz cut short, or other bytes follow its end", "train", "config.yaml", "--set", "data.train=more.txt.xz")
        self.train()
        content = self.read("run/last.safetensors")
        self.write("framed.safetensors", change_metadata(content, "framing", "\\\\n text "))
        self.refused("framed.safetensors: metadata framing: expected", "eval", "framed.safetensors", "--data",
                     "valid.tsv")
        self.write("plain.safetensors", change_metadata(content, "model.layer_norm", "null"))
        self.refused("model.layer_norm", "eval", "plain.safetensors", "--data", "valid.tsv")
        self.write("twice.safetensors", change_metadata(content.replace(b'"kind"', b'"step"', 1), "version", "1"))
        self.refused("twice.safetensors", "eval", "twice.safetensors", "--data", "valid.tsv")
        self.refused("--out: expected a name that ends in .html or .svg, got 'x.pdf'", "show", "run", "--text",
                     "valid.tsv", "--out", "x.pdf", status=2)
        _, err = self.run_program("train", "config.yaml", "--out", "it's a run", "--set", "train.steps=2")
        self.assertIn(r"smallworld report 'it'\''s a run'", err)

    def test_hubs(self):
        """What commands say of a model whose cells speak through hubs."""
        hubs = ["--set", "model.cell=mlstm", "--set", "model.hubs=8", "--set", "model.degree=null"]
        self.run_program("train", "config.yaml", "--out", "run", *hubs)
        step, gates = self.results("graph", "run/last.safetensors")["patterns"]
        self.assertEqual([(p["nodes"], p["inputs"], p["blocks"]) for p in (step, gates)], [(1, 4, 4), (4, 1, 4)])
        cells, = self.results("graph", "run/last.safetensors", "--svg", "x.svg", "--html", "x.html")["cells"]
        self.assertEqual((cells["nodes"], cells["path_mean"], cells["degree_max"]), (4, 1, 3))
        for name, rows, columns in ("step0", 1, 4), ("gates", 4, 1):
            picture = self.read(f"x.{name}.svg").decode()
            self.assertIn(f"Matrix of {rows} x {columns} blocks, of which 4 are there", picture)
            self.assertNotIn("on a ring", picture)
        page = self.read("x.html").decode()
        self.assertIn("1 node of 8 units, which read 4 others; 4 blocks, 100.00 % of all.", page)
        self.assertIn("A node reads 3.0 others (3 to 3). Clustering 1.000; shortest paths have 1.00 steps", page)
        header, _ = split_safetensors(self.read("run/last.safetensors"))
        shapes = {name: t["shape"] for name, t in header.items() if name != "__metadata__"}
        self.assertEqual(shapes["cell.step0.weight"], [1, 8, 32])
        self.assertEqual(shapes["cell.gates.weight"], [1, 4, 32, 8])
        self.assertEqual((shapes["input.hubs.projection"], shapes["input.projection"]), ([1, 8, 4], [4, 32, 4]))
        for command in (["eval", "run", "--data", "valid.tsv"], ["generate", "run", "--bytes", "20"],
                        ["features", "run", "--data", "valid.tsv", "--out", "f"], ["report", "run"],
                        ["show", "run", "--text", "valid.tsv", "--out", "p.html"]):
            self.run_program(*command, *self.cpu)
        for expected, status, *command in (
                ("with hubs, whose rectangles cannot be pruned", 1, "prune", "run", "--density", "0.5", "--out", "x"),
                ("train.prune_density: has no meaning with model.hubs", 2, "train", "config.yaml", *hubs, "--set",
                 "train.prune_density=0.5"),
                ("model.hubs: has no meaning for model.cell: lstm", 2, "train", "config.yaml", "--set",
                 "model.hubs=8"),
                ("model.hubs: expected a multiple of model.block 8", 2, "train", "config.yaml", *hubs, "--set",
                 "model.hubs=12"),
                ("at most model.hidden 32, got 40", 2, "train", "config.yaml", *hubs, "--set", "model.hubs=40")):
            _, err = self.run_program(*command, status=status)
            self.assertIn(expected, err)
        # With hidden and parameters the hubs follow, with hubs and parameters hidden does.
        for given in ["model.hidden=64"], []:
            start = [*hubs, "--set", "model.parameters=30000"]
            if not given:
                self.config("config.yaml", model_hidden=None)
            _, err = self.run_program("train", "config.yaml", "--out", f"found{len(given)}", *start,
                                      *(word for s in given for word in ("--set", s)), "--set", "train.steps=2")
            found = int(re.search(r"units, (\d+) parameters", err)[1])
            self.assertLess(abs(found - 30000), 2500)

    def test_rate_and_time_left(self):
        """Bytes a second are bytes over seconds, and at the end no time is left."""
        steps = sized(800)
        _, err = self.run_program("train", "config.yaml", "--out", "run", "--set", f"train.steps={steps}")
        lines = [json.loads(line) for line in self.read("run/metrics.jsonl").splitlines()]
        for line in lines:
            self.assertAlmostEqual(line["bytes_per_second"] * line["seconds"] / line["bytes"], 1, places=5)
        if "sanitize" not in str(PROGRAM):
            self.assertRegex(err, rf"step {steps}/{steps} .* 0:00 left")

    def test_overflow(self):
        """Finite weights of which states are made that are not."""
        self.train()
        content = self.read("run/last.safetensors")
        header, data = split_safetensors(content)
        start, end = header["cell.gates.weight"]["data_offsets"]
        start, end = start + len(content) - len(data), end + len(content) - len(data)
        large = struct.pack("<f", 3e38) * ((end - start) // 4)
        self.write("large.safetensors", change_metadata(content[:start] + large + content[end:], "version", "1"))
        self.refused("not finite", "eval", "large.safetensors", "--data", "valid.tsv")
        self.refused("outputs are not finite: its weights are too large", "generate", "large.safetensors")
        self.refused(": its features are not finite", "features", "large.safetensors", "--data",
                     "valid.tsv", "--out", "f")
        self.assertFalse((self.folder / "f.npy").exists())

    def test_levels(self):
        """SMALLWORLD_CPU takes the code for less of the processor's instructions, and says which there are."""
        _, err = self.run_program("train", "config.yaml", "--out", "run",
                                  env=dict(os.environ, SMALLWORLD_CPU="portable"))
        self.assertIn("CPU (portable), ", err)
        self.assertNotIn("SMALLWORLD_CPU", err)
        _, err = self.run_program("train", "config.yaml", "--out", "run", "--overwrite",
                                  env=dict(os.environ, SMALLWORLD_CPU="v5"))
        self.assertRegex(err, r"SMALLWORLD_CPU: expected .* got 'v5'; taking (portable|v[34])")

    def test_closed_streams(self):
        """Files that are opened later never take the place of closed standard streams. Output that cannot
        be printed is an error."""
        command = f'"{PROGRAM}" train config.yaml --out run >&- 2>&- <&-'
        status = subprocess.run(["sh", "-c", command], cwd=self.folder).returncode
        self.assertEqual(status, 1)
        for line in self.read("run/metrics.jsonl").splitlines():
            json.loads(line)
        command = f'"{PROGRAM}" train config.yaml --out run --resume >&-'
        done = subprocess.run(["sh", "-c", command], cwd=self.folder, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"already finished", done.stderr)
        self.assertTrue(done.stderr.endswith(b"\nsmallworld: cannot write standard output\n"))

    def test_control_characters(self):
        """What a terminal would obey is never printed, wherever it was given."""
        config, bad = "config.yaml", "\x1b[31m"
        for arguments in ((bad,), ("train", bad), ("train", config, "--set", f"train.{bad}=1"),
                          ("train", config, "--set", f"train.lr={bad}"), ("train", "--data", bad),
                          ("train", config, "--gpus", bad), ("train", config, "--device", bad),
                          ("generate", "m", f"--{bad}=3"), ("generate", "m", "--seed", bad),
                          ("generate", "m", "--top-k", bad), ("generate", "m", "--temperature", bad),
                          ("eval", "m", "--data", bad), ("eval", bad, "--data", config),
                          ("features", "m", "--pool", bad), ("features", "m", "--format", bad),
                          ("probe", bad), ("probe", "--penalty", bad), ("predict", "m", "--probe", bad),
                          ("prune", "m", "--density", bad), ("plot", "run", "--out", bad),
                          ("show", "m", "--unit", bad), ("graph", bad), ("graph", config, "--svg", f"no/{bad}"),
                          ("bench", bad), ("bench", "matmul", "--block", bad), ("help", bad)):
            done = subprocess.run([PROGRAM, *arguments], cwd=self.folder, capture_output=True)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertNotIn(b"\x1b", done.stderr + done.stdout, arguments)
        _, err = self.run_program("train", config, "--set", "train.lr= ", status=2)
        self.assertIn("--set: train.lr: expected a value", err)

    def test_one_long_document(self):
        """Progress is shown within a document."""
        self.train()
        self.write("long.tsv.gz", gzip.compress(b"1\t" + b"the cat sat " * sized(60000) + b"\n"))
        shown = self.on_terminal("features", "run", "--data", "long.tsv.gz", "--out", "f", *self.cpu)
        self.assertRegex(shown, r"read [1-9]\d?\.\d %")

    def test_closed_pipes(self):
        """A command whose output nobody reads ends quietly, as filters do; a run is saved."""
        readable, writable = os.pipe()
        os.close(readable)
        _, err = self.run_program("train", "config.yaml", "--out", "run", "--set",
                                  "train.steps=3")
        done = subprocess.run([PROGRAM, "train", "--help-config"], stdout=writable,
                              stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""))
        done = subprocess.run([PROGRAM, "train", "config.yaml", "--out", "piped", "--set",
                               "train.steps=100000"], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=writable)
        os.close(writable)
        self.assertEqual(done.returncode, 128 + signal.SIGPIPE)
        self.run_program("train", "config.yaml", "--out", "piped", "--resume")
        self.run_program("train", "config.yaml", "--out", "whole")
        self.assert_same_run("piped", "whole")


class Overwriting(Case):
    """Commands do not replace their own inputs and outputs, nor what smallworld wrote for something else."""

    def setUp(self):
        super().setUp()
        self.train()
        self.run_program("features", "run", "--data", "valid.tsv", "--out", "f", *self.cpu)
        self.write("s.tsv", documents(5, 3))
        os.link(self.folder / "s.tsv", self.folder / "linked.html")

    def left_alone(self, name, *arguments, reason="this command reads it"):
        before = self.read(name)
        _, err = self.run_program(*arguments, status=1)
        self.assertIn(f"smallworld: {name}: {reason}", err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertEqual(self.read(name), before)
        self.assertEqual([path for path in self.folder.rglob("*.tmp") if path.name != name], [])

    def test_inputs(self):
        model, text = "run/last.safetensors", ["--text", "s.tsv"]
        self.left_alone(model, "graph", model, "--svg", model)
        self.left_alone("config.yaml", "graph", "config.yaml", "--html", "config.yaml")
        self.left_alone(model, "report", "run", "--out", model, *self.cpu,
                        reason="not written by smallworld report")
        for name in model, "s.tsv", "linked.html":
            self.left_alone(name, "show", model, *text, "--out", name, *self.cpu)
        self.left_alone("f.npy", "show", model, *text, "--features", "f", "--npy", "f", "--out", "p.html",
                        *self.cpu, reason="f.json describes features")
        self.left_alone("run/metrics.jsonl", "plot", "run", "--csv", "run/metrics.jsonl")
        self.left_alone(model, "prune", model, "--density", "0.5", "--out", model)
        command = [PROGRAM, "show", model, "--text", "-", "--out", "s.tsv", *self.cpu]
        with open(self.folder / "s.tsv") as text:
            done = subprocess.run(command, cwd=self.folder, stdin=text, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("s.tsv: this command reads it", done.stderr)
        self.write("page.tmp", documents(5, 3))  # the name of the unfinished page
        self.left_alone("page.tmp", "show", model, "--text", "page.tmp", "--out", "page", *self.cpu)

    def test_other_purposes(self):
        model = "run/last.safetensors"
        self.left_alone("run/last.state", "prune", model, "--density", "0.5", "--out", "run/last.state",
                        reason="it holds the state of a run")
        self.left_alone("f.npy", "graph", model, "--html", "f.npy", reason="it holds an array")
        self.left_alone(model, "graph", "config.yaml", "--svg", model, reason="it holds a checkpoint")
        self.run_program("graph", "config.yaml", "--svg", "new.svg")
        self.run_program("graph", "config.yaml", "--svg", "new.svg")  # the same again

    def test_two_outputs(self):
        _, err = self.run_program("graph", "config.yaml", "--svg", "one", "--html", "one", status=1)
        self.assertIn("one: this command has written it already", err)


class Window(Case):
    """Text that stays in its files: data.window."""

    def train_on(self, out, *flags, window=20000, status=0):
        given = [] if window is None else ["--set", f"data.window={window}"]
        return self.run_program("train", "config.yaml", "--out", out, *given, *flags,
                                status=status)

    def test_raw_text(self):
        """However it is packed, the bytes are those of a run that unpacks it, and nothing is unpacked."""
        text = documents(900, 1)
        self.write("texts/1.txt", text)
        self.write("texts/2.txt.gz", gzip.compress(text[9:5000]) + gzip.compress(text[5000:]))
        self.write("texts/3.txt.xz", lzma.compress(text[7:]))
        flags = ["--set", "data.train=texts", "--set", "train.steps=20"]
        self.train_on("unpacked", *flags, window=None)
        self.train_on("window", *flags)
        self.train_on("window", *flags, "--overwrite", "--set", "data.valid=null", "--set",
                      "data.valid_fraction=0.1")
        self.train_on("unpacked", *flags, "--overwrite", "--set", "data.valid=null", "--set",
                      "data.valid_fraction=0.1", window=None)
        self.assertEqual(self.read("window/last.safetensors"),
                         self.read("unpacked/last.safetensors"))
        self.run_program("train", "config.yaml", "--out", "none", *flags, "--set",
                         "data.window=20000", "--set", "data.valid=null", "--set",
                         "data.valid_fraction=0", env=os.environ | {"TMPDIR": "/nowhere"})

    def test_documents(self):
        """A stop does not change what a run reads; one in a window logs what it is made of."""
        for name, content in [("1.tsv", documents(100, 1)),
                              ("2.tsv.gz", gzip.compress(documents(100, 2))),
                              ("3.tsv.xz", lzma.compress(documents(100, 3)))]:
            self.write("texts/" + name, content)
        self.write("all.list", "texts\ntexts/1.tsv\n")
        flags = ["--set", "data.train=all.list", "--set", "train.epochs=1.3", "--set",
                 "train.steps=null", "--set", "train.log_every=100", "--set",
                 "train.valid_every=1000", "--set", "train.schedule=constant"]
        _, err = self.train_on("whole", *flags)
        self.assertRegex(err, r"data: 400 documents, \d+ bytes to train on")
        self.assertRegex(err, r"window: 3 files in \d+ pieces, the longest .*, shuffled by 4.9 KiB")
        steps = json.loads(self.read("whole/metrics.jsonl").splitlines()[-1])["step"]
        for stop in (7, steps // 2, steps - 3):
            self.train_on("cut", *flags, "--resume", "--set", f"train.steps={stop}")
        self.train_on("cut", *flags, "--resume")
        self.assertEqual(self.read("whole/last.safetensors"), self.read("cut/last.safetensors"))
        self.refused("data.window: cannot change on resuming", "train", "config.yaml", "--out",
                     "cut", "--resume", *flags, "--set", "data.window=30000")

    def test_one_block(self):
        """A large xz that can be read only from its start is worth a warning."""
        for lines, warned in (10000, False), (800000, True):
            text = b"".join(b"%x %b\n" % (i * 2654435761 % 2**40, b"All work and no play. " * 4)
                            for i in range(lines))
            self.write("text.xz", lzma.compress(text, preset=0))
            _, err = self.train_on("one", "--overwrite", "--set", "data.train=text.xz", "--set", "train.steps=1")
            self.assertEqual("text.xz: every stream that begins in it" in err, warned)

    def test_changed(self):
        """A file that changes while it is used ends the run, which is saved."""
        text = self.read("train.tsv")
        run = self.start("train", "config.yaml", "--out", "run", "--set", "data.window=20000",
                         "--set", "train.steps=1000000")
        while not (self.folder / "run/metrics.jsonl").exists():
            self.assertIsNone(run.poll(), "over before the change")
            time.sleep(0.01)
        self.write("new.tsv", text + b"1\tmore\n")
        os.replace(self.folder / "new.tsv", self.folder / "train.tsv")
        _, err = run.communicate(timeout=60)
        self.assertEqual(run.returncode, 1)
        line = err.splitlines()[-1]
        self.assertRegex(line, r"^smallworld: train.tsv: changed since training began; the run is "
                               r"saved after step \d+$")
        self.write("train.tsv", text)
        step = int(line.split()[-1])
        self.train_on("run", "--resume", "--set", f"train.steps={step + 5}")

    def test_refused(self):
        self.write("bad.tsv", "1\tgood\nbad\n")
        self.write("bad.gz", gzip.compress(documents(100, 1))[:-9])
        for expected, *sets in [
                ("data.window: expected at least 4096, 2048 for each stream of train.batch, got 4000",
                 "data.window=4e3"),
                ("data.window: expected a finite number", "data.window=1GiB"),
                ("/dev/null: not a regular file: with data.window", "data.train=/dev/null"),
                ("bad.tsv:2: expected LABEL<TAB>TEXT", "data.train=bad.tsv"),
                ("bad.gz: gzip cut short", "data.train=bad.gz"),
                ("data.train: standard input can be read only once", 'data.train="-"')]:
            flags = ["--set", "data.window=20000"]
            for assignment in sets:
                flags += ["--set", assignment]
            status = 2 if "data.window" in sets[0] else 1
            self.refused(expected, "train", "config.yaml", "--out", "run", *flags, status=status)


class Signals(Case):
    """A run of a second or two is stopped in the middle, and resumed."""

    STEPS = 300

    def setUp(self):
        super().setUp()
        self.config("config.yaml", model_hidden=64, train_steps=self.STEPS, train_log_every=1,
                    train_valid_every=37, model_dropout=0.2)

    def start_and_wait(self, lines, *arguments):
        """Starts a run, and returns once it has written so many lines of metrics."""
        process = self.start("train", "config.yaml", "--out", "run", "--json", *arguments)
        self.addCleanup(lambda: process.poll() is None and process.kill())
        metrics = self.folder / "run" / "metrics.jsonl"
        for _ in range(20000):
            if metrics.exists() and metrics.read_bytes().count(b"\n") >= lines:
                return process
            self.assertIsNone(process.poll(), "over before the signal")
            time.sleep(0.002)
        self.fail("no metrics")

    def test_stop_and_resume(self):
        self.run_program("train", "config.yaml", "--out", "whole")
        arguments = []
        for lines, number in (10, signal.SIGINT), (120, signal.SIGTERM):
            process = self.start_and_wait(lines, *arguments)
            for _ in range(2):  # as timeout sends it, to the process and at once to its group
                process.send_signal(number)
                time.sleep(0.0002)  # two that are pending together would arrive as one
            out, err = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 128 + number)
            steps = json.loads(out)["steps"]
            self.assertTrue(lines <= steps < self.STEPS)
            self.assertIn(f"stopped after step {steps}; --resume goes on", err)
            arguments = ["--resume"]
        self.assertEqual(self.train("--resume")["steps"], self.STEPS)
        self.assert_same_run("whole", "run")

    def test_kill_and_resume(self):
        self.run_program("train", "config.yaml", "--out", "whole")
        process = self.start_and_wait(40, "--set", "train.checkpoint_minutes=0.00001")
        process.kill()
        process.communicate()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertEqual(self.train("--resume", "--set", "train.checkpoint_minutes=10")["steps"],
                         self.STEPS)
        text = self.read("run/config.yaml").replace(b"checkpoint_minutes: 1e-05",
                                                    b"checkpoint_minutes: 10")
        self.write("run/config.yaml", text)
        self.assert_same_run("whole", "run")

    def test_checkpoints_count_minutes(self):
        process = self.start_and_wait(1, "--set", "train.checkpoint_minutes=1", "--set",
                                      "train.steps=100000", "--set", "train.valid_every=100000")
        time.sleep(1.5)  # and not a minute
        process.kill()
        process.communicate()
        self.assertEqual(process.returncode, -signal.SIGKILL)
        self.assertFalse((self.folder / "run" / "last.state").exists())

    def assert_stops(self, process, number=signal.SIGTERM):
        """Asserts that the process ends within a second. Returns its stderr."""
        self.addCleanup(lambda: process.poll() is None and process.kill())
        time.sleep(0.3)
        self.assertIsNone(process.poll(), "over before the signal")
        sent = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        self.assertLess(time.monotonic() - sent, 1)
        self.assertEqual(process.returncode, 128 + number)
        return err

    def test_stop_while_reading(self):
        """Stops a program that waits for a pipe without a writer, for a writer that pauses, or reads a
        long text."""
        os.mkfifo(self.folder / "pipe.tsv")
        stopped = "smallworld: stopped by a signal (Terminated)\n"
        start = ["train", "config.yaml", "--out", "run", "--set"]
        self.assertEqual(self.assert_stops(self.start(*start, "data.train=pipe.tsv")), stopped)
        process = self.start(*start, "data.train=pipe.tsv")
        with open(self.folder / "pipe.tsv", "wb") as pipe:
            pipe.write(documents(60, 1))
            pipe.flush()
            self.assertEqual(self.assert_stops(process), stopped)
        with open(self.folder / "long.txt", "wb") as long:
            long.truncate(8 << 30)  # a sparse file
        scratch = os.environ | {"TMPDIR": "/dev/shm"}
        process = self.start(*start, "data.exclude=long.txt", env=scratch)
        self.assertEqual(self.assert_stops(process), stopped)
        self.assertFalse((self.folder / "run").exists())

    def test_stop_while_validating(self):
        self.write("valid.txt", random.Random(1).randbytes(sized(16000)))
        self.config("config.yaml", data_valid="valid.txt", model_hidden=256, train_valid_bytes=0,
                    train_valid_every=2, train_steps=3, train_log_every=2)
        process = self.start("train", "config.yaml", "--out", "run", "--json")
        while not (self.folder / "run/metrics.jsonl").exists():
            time.sleep(0.01)
        self.assertIn("stopped after step 2; --resume goes on", self.assert_stops(process))
        self.assertEqual(self.read("run/metrics.jsonl"), b"")
        self.train("--resume")
        self.run_program("train", "config.yaml", "--out", "whole")
        self.assert_same_run("whole", "run")

    def test_hang_up(self):
        process = self.start_and_wait(10)
        process.send_signal(signal.SIGHUP)
        _, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGHUP)
        self.assertIn("--resume goes on", err)
        # A signal that is ignored, as under nohup, stays ignored.
        ignore = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
        process = self.start("train", "config.yaml", "--out", "run", "--resume", **ignore)
        time.sleep(0.2)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0)

    def test_second_signal(self):
        self.write("train.txt", random.Random(1).randbytes(200000))
        self.config("slow.yaml", data_train="train.txt", data_valid=None, model_hidden=1024,
                    model_graph="dense", model_degree=None, train_batch=64, train_bptt=512)
        process = self.start("train", "slow.yaml", "--out", "run", "--threads", "1")
        self.addCleanup(lambda: process.poll() is None and process.kill())
        for line in process.stderr:
            if line.startswith("epoch:"):
                break
        time.sleep(0.3)  # during the first update, which takes many seconds
        process.send_signal(signal.SIGTERM)
        time.sleep(2.1)
        self.assertIsNone(process.poll(), "the first signal waits for the update")
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        self.assertLess(time.monotonic() - sent, 5)
        self.assertEqual(process.returncode, -signal.SIGINT)


class Uses(Case):
    """eval, features, generate and graph, on one trained model."""

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.holder.cleanup)
        folder = Path(cls.holder.name)
        (folder / "train.tsv").write_bytes(documents(60, 1))
        (folder / "valid.tsv").write_bytes(documents(9, 2))
        (folder / "config.yaml").write_text(json.dumps(settings(train_valid_bytes=0)))
        done = subprocess.run([PROGRAM, "train", "config.yaml", "--json", "--out", "run"],
                              cwd=folder, capture_output=True, text=True, check=True)
        cls.result = json.loads(done.stdout)
        cls.checkpoint = (folder / "run" / "last.safetensors").read_bytes()

    def setUp(self):
        super().setUp()
        self.write("m.safetensors", self.checkpoint)

    def eval(self, *arguments):
        return self.results("eval", "m.safetensors", *self.cpu, *arguments)

    def test_eval(self):
        result = self.eval("--data", "valid.tsv", "--batch", "2")
        self.assertEqual(list(result), ["bpc", "bytes", "seconds", "bytes_per_second"])
        # LABEL<TAB> becomes "\n ", and the line's end becomes a blank.
        size = sum(len(line) + 1 for line in documents(9, 2).splitlines())
        self.assertEqual(result["bytes"], size - 1)
        self.assertAlmostEqual(result["bpc"], self.result["valid_bpc"], delta=1e-6)
        exact = self.eval("--data", "valid.tsv", "train.tsv", "--exact")
        self.assertAlmostEqual(self.eval("--data", "valid.tsv", "train.tsv")["bpc"], exact["bpc"],
                               delta=2e-3)
        other = self.eval("--data", "train.tsv", "valid.tsv", "--exact")
        self.assertEqual(other["bytes"], exact["bytes"])
        self.assertNotEqual(other["bpc"], exact["bpc"])
        self.assertEqual(self.eval("--data", "train.tsv", "--limit", "100")["bytes"], 99)
        half = self.eval("--data", "valid.tsv", "--precision", "bf16")["bpc"]
        self.assertAlmostEqual(half, result["bpc"], delta=0.05)
        self.assertNotEqual(half, result["bpc"])
        out, _ = self.run_program("eval", "m.safetensors", "--data", "valid.tsv", *self.cpu)
        self.assertRegex(out, rf"^{result['bpc']:.4f} bits per character over {size - 1} bytes ")

    def test_dynamic_evaluation(self):
        still = self.eval("--data", "train.tsv", "--exact")["bpc"]
        once, again = (self.eval("--data", "train.tsv", "--dynamic") for _ in range(2))
        self.assertEqual(list(once)[4:], ["stripes", "dynamic_rate", "dynamic_decay"])
        self.assertEqual((once["stripes"], once["dynamic_rate"], once["dynamic_decay"]), (1, 3e-4, 1e-3))
        self.assertEqual(once["bpc"], again["bpc"])
        self.assertLess(once["bpc"], still)
        self.assertEqual(self.read("m.safetensors"), self.checkpoint)
        # No rate at all is plain evaluation, in as many stripes.
        none = self.eval("--data", "train.tsv", "--dynamic", "--dynamic-rate", "0", "--batch", "2")
        self.assertAlmostEqual(none["bpc"], self.eval("--data", "train.tsv", "--batch", "2")["bpc"], delta=1e-6)
        tuned = self.eval("--data", "train.tsv", "--dynamic", "--dynamic-tune", "valid.tsv")
        self.assertLess(tuned["bpc"], still)
        out, err = self.run_program("eval", "m.safetensors", "--data", "train.tsv", "--dynamic", "--dynamic-tune",
                                    "valid.tsv", *self.cpu)
        self.assertRegex(err, r"valid.tsv: \d\.\d{4} bits, with learning \d\.\d{4}, at rate ")
        self.assertRegex(out, r"learning in 1 stripe at rate \S+ and decay \S+\n$")
        self.refused("missing.txt", "eval", "m.safetensors", "--data", "train.tsv", "--dynamic", "--dynamic-tune",
                     "missing.txt")

    def test_features(self):
        self.write("some.tsv", b"1\tgood\n-1\t\n0\tsome longer text\n2147483647\tx\n")
        result = self.results("features", "m.safetensors", "--data", "some.tsv", "--out", "f",
                              *self.cpu)
        self.assertEqual((result["documents"], result["units"]), (4, 64))
        features = numpy.load(self.folder / "f.npy")
        labels = numpy.load(self.folder / "f.labels.npy")
        self.assertEqual((features.shape, features.dtype), ((4, 64), numpy.float32))
        self.assertEqual(labels.tolist(), [1, -1, 0, 2**31 - 1])
        self.assertTrue(numpy.isfinite(features).all() and features.any())
        for batch in 1, 3, 100:
            self.run_program("features", "m.safetensors", "--data", "some.tsv", "--out", "g",
                             "--batch", batch, *self.cpu)
            self.assertEqual(self.read("g.npy"), self.read("f.npy"))
        kinds = {}
        for state in "cell", "hidden":
            for pool in "last", "mean", "max":
                self.run_program("features", "m.safetensors", "--data", "some.tsv", "--out", "g",
                                 "--state", state, "--pool", pool, *self.cpu)
                kinds[state, pool] = numpy.load(self.folder / "g.npy")
            for pools in ["mean", "last"], ["max", "last", "mean"]:
                result = self.results("features", "m.safetensors", "--data", "some.tsv", "--out",
                                      "g", "--state", state, "--pool", ",".join(pools), *self.cpu)
                self.assertEqual(result["units"], 32 * len(pools))
                joined = numpy.hstack([kinds[state, pool] for pool in pools])
                numpy.testing.assert_array_equal(numpy.load(self.folder / "g.npy"), joined)
                self.assertEqual(json.loads(self.read("g.json"))["pool"], ",".join(pools))
        numpy.testing.assert_array_equal(
            numpy.hstack([kinds["cell", "mean"], kinds["cell", "last"]]), features)
        for state in "cell", "hidden":
            self.assertTrue((kinds[state, "max"] >= kinds[state, "last"]).all())
            self.assertTrue((kinds[state, "max"] >= kinds[state, "mean"] - 1e-6).all())
        self.assertTrue((abs(kinds["hidden", "max"]) < 1).all())
        self.run_program("features", "m.safetensors", "--data", "some.tsv", "--out", "s",
                         "--format", "svmlight", *self.cpu)
        self.write("some.tsv.xz", lzma.compress(self.read("some.tsv")))
        self.run_program("features", "m.safetensors", "--data", "some.tsv.xz", "--out", "x",
                         "--format", "svmlight", *self.cpu)
        self.assertEqual(self.read("x.svmlight"), self.read("s.svmlight"))
        lines = self.read("s.svmlight").decode().splitlines()
        self.assertEqual(len(lines), 4)
        for line, row, label in zip(lines, features, labels):
            first, *rest = line.split(" ")
            self.assertEqual(int(first), label)
            values = {int(unit): float(value) for unit, value in (pair.split(":") for pair in rest)}
            self.assertEqual([values.get(unit + 1, 0) for unit in range(64)],
                             [float(f"{value:.9g}") for value in row])
        self.refused("config.yaml: expected documents: a .tsv file", "features", "m.safetensors",
                     "--data", "config.yaml", "--out", "f")
        self.write("f.json", '{"kind": "incomplete features"}')  # between the files of a pair
        self.refused("f.json: says that the features are incomplete", "probe", "--train", "f",
                     "--test", "g", *self.cpu)

    def test_tables(self):
        """Tables are read like the same documents as lines, in every command."""
        rows = [("pos", 'good, very "good"'), ("neg", "bad; poor"), ("pos", "two\nlines"), ("neg", "\u00fcble Sache")]
        clean = [(label, text.replace("\n", " ")) for label, text in rows]
        self.write("rows.tsv", "".join(f"{label}\t{text}\n" for label, text in clean))
        self.write("headed.tsv", "label\tText\n" + "".join(f"{label}\t{text}\n" for label, text in clean))
        for name, delimiter in ("rows.csv", ","), ("semicolons.csv", ";"):
            table = io.StringIO()
            writer = csv.writer(table, delimiter=delimiter, lineterminator="\r\n")
            writer.writerows([("id", "Review", "class"), *((i, text, label) for i, (label, text) in enumerate(rows))])
            self.write(name, "\ufeff" + table.getvalue())
        lines = "".join(json.dumps({"overall": "x", "label": label, "text": text, "more": [1, {"text": 2}]}) + "\n\n"
                        for label, text in rows)
        self.write("rows.jsonl", lines)
        self.write("rows.json.gz", gzip.compress(lines.replace('"text": "', '"reviewText": "').encode()))
        expected = self.results("eval", "m.safetensors", "--data", "rows.tsv", "--exact", *self.cpu)["bpc"]
        self.run_program("features", "m.safetensors", "--data", "rows.tsv", "--out", "expected", *self.cpu)
        for name in "headed.tsv", "rows.csv", "semicolons.csv", "rows.jsonl", "rows.json.gz":
            with self.subTest(name):
                bpc = self.results("eval", "m.safetensors", "--data", name, "--exact", *self.cpu)["bpc"]
                self.assertEqual(bpc, expected)
                self.run_program("features", "m.safetensors", "--data", name, "--out", "f", *self.cpu)
                for part in "npy", "labels.npy":
                    numpy.testing.assert_array_equal(numpy.load(self.folder / f"f.{part}"),
                                                     numpy.load(self.folder / f"expected.{part}"))
                self.assertEqual(self.read("f.json"), self.read("expected.json"))  # with the labels' names
        # Equal texts are equal in every format, also those with line breaks.
        self.write("named.tsv", re.sub(r"(?m)^\S+\t", "pos\t", documents(40, 1).decode()))
        for name in "rows.csv", "rows.jsonl":
            _, err = self.run_program("train", "--data", "rows.tsv", "named.tsv", "--set", f"data.exclude={name}", "--set",
                                      "train.steps=1", *self.cpu, "--out", "excluding", "--overwrite")
            self.assertIn("data: 4 documents excluded", err)
        # Numbers are integers, and an empty label is none.
        self.write("stars.csv", "stars,content\n5.0,fine\n,open\n1.0,poor\n")
        self.write("stars.jsonl", '{"stars": 5.0, "content": "fine"}\n{"content": "open"}\n'
                   '{"stars": 1, "content": "poor"}\n')
        for name in "stars.csv", "stars.jsonl":
            self.run_program("features", "m.safetensors", "--data", name, "--out", "f", *self.cpu)
            self.assertEqual(numpy.load(self.folder / "f.labels.npy").tolist(), [5, -1, 1])
        self.write("long.csv", "text,label\n" + "".join(f'"{"word " * 9}{i}",{i % 2}\n' for i in range(9000)))
        self.assertEqual(self.results("features", "m.safetensors", "--data", "long.csv", "--out", "f",
                                      *self.cpu)["documents"], 9000)  # more than one chunk of reading
        # Columns of other names, fastText's lines, and a folder with a folder for each class.
        columns = "--text-column", "WHAT", "--label-column", "how"
        table = io.StringIO()
        csv.writer(table).writerows([("text", "label", "how", "what"), *(("x", "y", label, text) for label, text in rows)])
        self.write("other.csv", table.getvalue())
        self.write("other.jsonl", "".join(json.dumps({"how": label, "what": text, "text": "x"}) + "\n"
                                          for label, text in rows))
        self.write("rows.ft.txt", "".join(f"__label__{label} {text}\n" if i % 2 else f"{text} __label__{label}\n"
                                          for i, (label, text) in enumerate(clean)))
        for label in "pos", "neg":
            for i, (its, text) in enumerate(rows):
                if its == label:
                    self.write(f"folder/{i}/{label}/text.txt", text + "\n")
        self.write("folder/9/unsup/more.txt", "nobody says")
        for name, *given in (["other.csv", *columns], ["other.jsonl", *columns], ["rows.ft.txt"], ["folder"]):
            with self.subTest(name):
                self.run_program("features", "m.safetensors", "--data", name, *given, "--out", "f", *self.cpu)
                self.assertEqual(numpy.load(self.folder / "f.labels.npy").tolist()[:4], [1, 0, 1, 0])
                numpy.testing.assert_array_equal(numpy.load(self.folder / "f.npy")[:4],
                                                 numpy.load(self.folder / "expected.npy"))
        self.assertEqual(numpy.load(self.folder / "f.labels.npy").tolist()[4:], [-1])
        _, err = self.run_program("train", "--data", "other.csv", "named.tsv", "--set", "data.text_column=what", "--set",
                                  "data.exclude=rows.tsv", "--set", "train.steps=1", *self.cpu, "--out", "named")
        self.assertIn("data: 4 documents excluded", err)
        self.refused("other.csv:1: expected the names of columns, one of them when, found text, label, how, what",
                     "eval", "m.safetensors", "--data", "other.csv", "--label-column", "when", *self.cpu)
        self.refused("other.jsonl:1: expected a member when", "features", "m.safetensors", "--data", "other.jsonl",
                     "--text-column", "what", "--label-column", "when", "--out", "g", *self.cpu)
        for line, message in ("no label\n", "expected a word __label__NAME"), ("__label__a b __label__c\n", "found several"):
            self.write("bad.ft.txt", "__label__a b\n" + line)
            self.refused("bad.ft.txt:2: expected ", "features", "m.safetensors", "--data", "bad.ft.txt", "--out", "g",
                         *self.cpu)

        for name, content, message in (
                ("names.csv", "a,b\n1,2\n", "names.csv:1: expected the names of columns, one of them text, review, "
                 "sentence, content or the like, found a, b"),
                ("wide.csv", "text,label\nx,1\nx,1,2\n", "wide.csv:3: expected 2 columns as in the first row, found 3"),
                ("open.csv", 'text,label\n"x,1\n', "open.csv:2: expected a closing quote"),
                ("after.csv", 'text,label\n"x"y,1\n', "after.csv:2: expected a closing quote"),
                ("label.csv", "text,label\nx,4.5\ny,1\n", "label.csv:2: expected a 32-bit integer as label, got '4.5'"),
                ("head.csv", "text,label\n", "head.csv: empty"),
                ("list.jsonl", "[1]\n", "list.jsonl:1: expected a JSON object"),
                ("text.jsonl", '{"text": "x"}\n{"text": 1}\n', "text.jsonl:2: expected a string text, review,"),
                ("deep.jsonl", '{"text": "x", "label": [1]}\n', "deep.jsonl:1: expected a name or a number as label"),
                ("tab.jsonl", '{"text": "x", "label": "a\\tb"}\n', "tab.jsonl:1: expected a label without tabs")):
            self.write(name, content)
            self.refused(message, "eval", "m.safetensors", "--data", name, *self.cpu)
        for name, message in ("rows.csv", "rows.csv: with data.window"), ("headed.tsv", "headed.tsv:1: a row of column"):
            _, err = self.run_program("train", "--data", name, "--set", "data.window=1e6", "--out", "w", status=1)
            self.assertIn(message, err)

    def test_generate(self):
        def generate(*arguments):
            return self.run_program("generate", "m.safetensors", *self.cpu, *arguments)[0]

        text = generate("--bytes", "40", "--prompt", "the cat", "--seed", "3")
        self.assertTrue(text.startswith("the cat"))
        self.assertEqual(text, generate("--bytes", "40", "--prompt", "the cat", "--seed", "3"))
        self.assertNotEqual(text, generate("--bytes", "40", "--prompt", "the cat", "--seed", "4"))
        likeliest = generate("--bytes", "40", "--temperature", "0", "--seed", "3")
        self.assertEqual(likeliest, generate("--bytes", "40", "--temperature", "0", "--seed", "4"))
        self.assertEqual(generate("--bytes", "0", "--prompt", "x"), "x\n")
        long, short = (self.results("generate", "m.safetensors", "--bytes", count, *self.cpu)["base64"]
                       for count in ("40", "37"))  # whole recordings, and single bytes after them
        self.assertEqual(base64.b64decode(long)[:39], base64.b64decode(short))
        result = self.results("generate", "m.safetensors", "--bytes", "300", "--temperature", "9",
                              *self.cpu)
        self.assertEqual(result["bytes"], 300)
        written = base64.b64decode(result["base64"])
        self.assertEqual(len(written), 302)  # the prompt included
        self.assertEqual(re.sub("\ufffd+", "\ufffd", result["text"]),
                         re.sub("\ufffd+", "\ufffd", written.decode("utf-8", "replace")))
        self.refused("unrecognized option '--batch'", "generate", "m.safetensors", "--batch", "2", status=2)

    def test_graph(self):
        for source in "config.yaml", "m.safetensors":
            patterns = self.results("graph", source)["patterns"]
            self.assertEqual([p["pattern"] for p in patterns], ["gates"])
            self.assertEqual((patterns[0]["nodes"], patterns[0]["blocks"]), (4, 12))
            self.assertEqual(patterns[0]["parameters"], 12 * 4 * 64)
            self.assertIn("4 nodes of 8 units, 12 blocks", self.run_program("graph", source)[0])
        self.config("deep.yaml", model_cell="deep", model_hidden=64, model_internal_steps=2)
        self.run_program("graph", "deep.yaml", "--svg", "p.svg", "--edges", "e")
        for stage in "step0", "step1", "gates":
            self.assertEqual(self.read(f"p.{stage}.svg")[:4], b"<svg")
        self.refused("m.safetensors is a checkpoint, whose graphs are made", "graph",
                     "m.safetensors", "--set", "model.degree=6", status=2)
        self.refused("cannot write none/p.svg.tmp", "graph", "config.yaml", "--svg", "none/p.svg")
        self.refused("cannot write none/e.0.txt.tmp", "graph", "deep.yaml", "--json", "--edges",
                     "none/e")

    def test_prune(self):
        result = self.results("prune", "m.safetensors", "--density", "0.5", "--out", "p.safetensors")
        pattern = self.results("graph", "p.safetensors")["patterns"][0]
        self.assertEqual((pattern["blocks"], result["density"]), (8, 0.5))
        self.assertEqual(self.result["parameters"] - result["parameters"], 4 * 4 * 64)
        text, _ = self.run_program("prune", "m.safetensors", "--density", "0.5", "--out",
                                   "again.safetensors")
        self.assertEqual(text, f"again.safetensors: density 0.5, {result['parameters']} parameters\n")
        self.assertEqual(self.read("again.safetensors"), self.read("p.safetensors"))

        # The strongest blocks stay, with their weights.
        weights, blocks = [], []
        for name in "m.safetensors", "p.safetensors":
            header, data = split_safetensors(self.read(name))
            for found, tensor, dtype in ((weights, "cell.gates.weight", "<f4"),
                                         (blocks, "pattern.gates", "<i4")):
                begin, end = header[tensor]["data_offsets"]
                array = numpy.frombuffer(data[begin:end], dtype)
                found.append(array.reshape(header[tensor]["shape"]))
        pairs = [[tuple(pair) for pair in b.tolist()] for b in blocks]
        norm = {pair: float((w.astype("f8") ** 2).sum()) for pair, w in zip(pairs[0], weights[0])}
        dropped = [norm[pair] for pair in pairs[0] if pair not in pairs[1]]
        self.assertLess(max(dropped), min(norm[pair] for pair in pairs[1] if pair[0] != pair[1]))
        for pair, block in zip(pairs[1], weights[1]):
            numpy.testing.assert_array_equal(block, weights[0][pairs[0].index(pair)])

        before = self.results("eval", "p.safetensors", "--data", "valid.tsv", *self.cpu)["bpc"]
        tuned = self.results("train", "config.yaml", "--set", "train.init=p.safetensors", "--out",
                             "tuned")
        self.assertEqual(tuned["parameters"], result["parameters"])
        self.assertLess(tuned["valid_bpc"], before)
        for density in "0.2", "0.75":
            self.refused("--density: expected at least 0.25, the share of self-blocks, and below "
                         "0.75, the density of m.safetensors", "prune", "m.safetensors", "--density",
                         density, "--out", "none.safetensors")
        self.refused("cannot open none.safetensors", "prune", "none.safetensors", "--density", "0.5",
                     "--out", "x.safetensors")

    def test_layers(self):
        """Each layer has its own patterns. Features are those of the last layer."""
        names = ["step0", "gates", "layer2.below", "layer2.step0", "layer2.gates"]
        self.config("two.yaml", model_cell="mlstm", model_layers=2, train_valid_bytes=0)
        trained = self.results("train", "two.yaml", "--out", "two")
        model = "two/last.safetensors"
        for source in "two.yaml", model:
            patterns = self.results("graph", source)["patterns"]
            self.assertEqual([p["pattern"] for p in patterns], names)
            self.assertEqual([p["parameters"] for p in patterns],
                             [12 * 64 * gates for gates in (1, 4, 1, 1, 4)])
        scored = self.results("eval", model, "--data", "valid.tsv", *self.cpu)
        self.assertAlmostEqual(scored["bpc"], trained["valid_bpc"], delta=1e-6)
        features = self.results("features", model, "--data", "valid.tsv", "--out", "f", *self.cpu)
        self.assertEqual(features["units"], 64)  # mean and last
        self.run_program("generate", model, "--bytes", "5", *self.cpu)
        self.run_program("prune", model, "--density", "0.5", "--out", "p.safetensors")
        self.assertEqual([p["blocks"] for p in self.results("graph", "p.safetensors")["patterns"]],
                         [8] * 5)
        self.config("one.yaml", model_cell="mlstm", train_init=model)
        self.refused("its model.layers differs from the config's", "train", "one.yaml", "--out", "x")

    def test_sets_of_features(self):
        """Features and labels that were not written together are refused."""
        features = ["features", "m.safetensors", *self.cpu, "--data"]
        self.run_program(*features, "train.tsv", "--out", "f")
        self.run_program(*features, "train.tsv", "--out", "g")
        self.assertEqual(self.read("f.npy"), self.read("g.npy"))
        self.write("other.tsv", documents(60, 5))
        self.run_program(*features, "other.tsv", "--out", "h")
        self.assertEqual(numpy.load(self.folder / "h.labels.npy").shape, (60,))
        probe = ["probe", *self.cpu, "--test", "f", "--train"]
        self.run_program(*probe, "f")
        self.write("h.labels.npy", self.read("f.labels.npy"))
        self.refused("h.labels.npy: of other features than h.npy; export them again", *probe, "h")
        numpy.save(self.folder / "h.labels.npy", numpy.load(self.folder / "h.labels.npy"))
        self.run_program(*probe, "h")  # the user's own labels have no such number

    def test_two_writers(self):
        """Two write to one prefix. All files are by one of them; the other is refused or comes later."""
        self.write("long.tsv", documents(sized(3000), 5))
        self.write("else.tsv", documents(sized(3000), 6))
        command = ["features", "m.safetensors", *self.cpu, "--out", "f", "--data"]
        both = [self.start(*command, name) for name in ("long.tsv", "else.tsv")]
        ends = [(process.communicate(timeout=60), process.returncode) for process in both]
        self.assertEqual(sorted(status for _, status in ends), [0, 1], ends)
        for (_, err), status in ends:
            self.assertEqual("cannot write f.npy: another program is writing it" in err, bool(status))
        written = "long.tsv" if ends[0][1] == 0 else "else.tsv"
        files = {name: self.read(name) for name in ("f.npy", "f.labels.npy", "f.json")}
        self.run_program(*command, written)
        self.assertEqual(files, {name: self.read(name) for name in files})
        self.assertEqual([path.name for path in self.folder.iterdir() if "tmp" in path.name], [])

    def test_memory_of_a_stranger(self):
        """The batch and bptt of a checkpoint's training do not set the memory that a short text takes."""
        content = change_metadata(self.checkpoint, "version", "1")
        header, data = split_safetensors(content)
        header["__metadata__"] |= {"train.batch": "65536", "train.bptt": "65536",
                                   "checksum": "00000000"}
        text = json.dumps(header).encode()
        text = text.ljust(-(-len(text) // 8) * 8)
        content = len(text).to_bytes(8, "little") + text + data
        self.write("large.safetensors",
                   content.replace(b"00000000", f"{zlib.crc32(content):08x}".encode(), 1))
        for command in ["eval"], ["features", "--out", "f"]:
            process = self.start(*command, "large.safetensors", "--data", "valid.tsv", *self.cpu)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out, err = process.communicate()
            self.assertEqual(process.returncode, 0, err)
            self.assertLess(usage.ru_maxrss, 1 << 20)  # KiB
            if command == ["eval"]:
                bpc = self.eval("--data", "valid.tsv")["bpc"]
                self.assertTrue(out.startswith(f"{bpc:.4f} bits per character"), out)

    def test_scratch_files(self):
        """Temporary files in $TMPDIR never have a name, so a kill leaves none."""
        libc = ctypes.CDLL(None, use_errno=True)
        watch = libc.inotify_init1(os.O_NONBLOCK)
        create = 0x100
        self.assertGreater(libc.inotify_add_watch(watch, str(self.folder).encode(), create), 0)
        self.run_program("eval", "m.safetensors", "--data", "valid.tsv", *self.cpu,
                         env=os.environ | {"TMPDIR": str(self.folder)})
        with self.assertRaises(BlockingIOError):
            os.read(watch, 4096)
        os.close(watch)

    def test_full_disk(self):
        with open("/dev/full", "w") as full:
            for command in (["eval", "m.safetensors", "--data", "valid.tsv", *self.cpu],
                            ["graph", "config.yaml"], ["--help"], ["train", "--help-config"],
                            ["train", "--help"], ["eval", "--version"]):
                done = subprocess.run([PROGRAM, *command], cwd=self.folder, stdout=full, text=True,
                                      stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 1, command)
                self.assertEqual(done.stderr.splitlines()[-1],
                                 "smallworld: cannot write standard output")
        self.write("f.npy", "old")
        out, err = self.run_program("features", "m.safetensors", "--data", "valid.tsv", "--out",
                                    "f", *self.cpu, status=1, preexec_fn=limit_files(1000))
        self.assertEqual((out, err.count("\n")), ("", 1))
        self.assertIn("cannot write f.npy.tmp: File too large", err)
        self.assertFalse((self.folder / "f.npy.tmp").exists())
        self.assertEqual(self.read("f.npy"), b"old")
        self.refused("cannot write none/f.npy.tmp", "features", "m.safetensors", "--data",
                     "valid.tsv", "--out", "none/f", *self.cpu)

    def test_bad_checkpoints(self):
        whole, size = self.checkpoint, len(self.checkpoint)
        header = int.from_bytes(whole[:8], "little")
        other = b'{"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
        other = other.ljust(72)
        damaged = {
            "empty": (b"", "only 0 bytes"),
            "text": (documents(20, 1), "not a safetensors file"),
            "other program's": (len(other).to_bytes(8, "little") + other + bytes(4),
                                "not written by smallworld"),
            "other version's": (change_metadata(whole, "version", "9"),
                                "format version 9, but this program reads version 1"),
            "state": (change_metadata(whole, "kind", "state"), "a state file; expected a model"),
            "odd": (change_metadata(whole, "model.hidden", "33"), "expected a multiple of"),
            "longer": (whole + b"\0", "corrupt"),
        }
        for length in 7, 8, 100, 8 + header, size // 2, size - 1:
            damaged[f"cut to {length}"] = (whole[:length], ":")
        for at in 0, 9, 100, 8 + header - 60, 8 + header + 5, size // 2, size - 1:
            flipped = bytearray(whole)
            flipped[at] ^= 4
            damaged[f"flipped at {at}"] = (bytes(flipped), ":")
        for name, (content, expected) in damaged.items():
            with self.subTest(name=name):
                self.write("bad.safetensors", content)
                self.refused(expected, "eval", "bad.safetensors", "--data", "valid.tsv", *self.cpu)
        self.write("f.npy", "old")
        for *command, last in (["features", "--data", "valid.tsv", "--out", "f"],
                               ["generate", "--bytes=5"], ["graph", "--json"]):
            self.refused("bad.safetensors: corrupt", *command, last, "bad.safetensors")
            self.refused("cannot open none.safetensors: No such file", *command, last,
                         "none.safetensors")
        self.refused("bad.safetensors: corrupt", "train", "config.yaml", "--out", "run", "--set",
                     "train.init=bad.safetensors")
        (self.folder / "folder.safetensors").mkdir()
        self.refused("folder.safetensors/last.safetensors: No such file", "eval",
                     "folder.safetensors", "--data", "valid.tsv")

    def test_bad_text(self):
        self.write("one.txt", "x")
        self.refused("one.txt: nothing to score: expected at least 2 bytes, found 1", "eval", "m.safetensors", "--data", "one.txt", *self.cpu)
        # A line and a raw text that would fill the memory or the disk.
        self.write("bomb.tsv.gz", gzip.compress(b"1\t" + bytes(80 << 20), 1))
        self.refused("bomb.tsv.gz:1: a line of more than 67108864 bytes", "eval", "m.safetensors",
                     "--data", "bomb.tsv.gz")
        self.write("bomb.txt.gz", gzip.compress(bytes(80 << 20), 9))
        self.refused("bomb.txt.gz: gzip of more than 256 times its size", "eval", "m.safetensors",
                     "--data", "bomb.txt.gz")
        self.refused("cannot open none.txt", "eval", "m.safetensors", "--data", "none.txt")
        self.write("bad.tsv", "1\tfine\nno tab\n")
        self.refused("bad.tsv:2: expected LABEL<TAB>TEXT", "features", "m.safetensors", "--data",
                     "bad.tsv", "--out", "f")

    def test_without_a_gpu(self):
        hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        self.refused("", "eval", "m.safetensors", "--data", "valid.tsv", "--device", "cuda",
                     env=hidden)
        self.refused("", "train", "config.yaml", "--out", "run", "--device", "cuda", env=hidden)
        self.run_program("eval", "m.safetensors", "--data", "valid.tsv", "--device", "auto",
                         "--threads", "1", env=hidden)

    def test_does_not_fit(self):
        self.refused("does not fit", "train", "config.yaml", "--out", "run", "--set",
                     "model.hidden=131072", "--set", "model.block=128", "--set",
                     "model.graph=dense", "--set", "model.degree=null")


# ------------------------------------------------------------------------------------ bad input --


class BadInput(Case):
    def refused_config(self, expected, text):
        self.write("bad.yaml", text)
        self.refused(expected, "train", "bad.yaml", "--out", "run")

    def test_configs(self):
        self.refused("cannot open none.yaml: No such file", "train", "none.yaml")
        self.refused("cannot read .: Is a directory", "train", ".")
        self.refused("cannot read /proc/self/mem: ", "train", "/proc/self/mem")
        self.refused_config("bad.yaml: empty", "")
        self.refused_config("bad.yaml: empty", "# nothing\n")
        self.refused_config("bad.yaml: data.train: expected the files", "{}")
        self.refused_config("bad.yaml: data.train: expected the files", "data: {train: []}")
        self.refused_config("bad.yaml:2: not valid YAML", "model:\n\thidden: 8\n")
        self.refused_config("bad.yaml:1: not valid YAML", b"\xff\xfe\x00")
        self.refused_config("bad.yaml:3: model.hiden: unknown key; the nearest is model.hidden",
                            "data: {train: train.tsv}\nmodel:\n  hiden: 64\n")
        self.refused_config("bad.yaml:2: train.lr: expected a finite number above 0",
                            "data: {train: train.tsv}\ntrain: {lr: .nan}\n")
        self.refused_config("bad.yaml:2: model.hidden: expected an integer",
                            "data: {train: train.tsv}\nmodel: {hidden: []}\n")
        if os.geteuid() != 0:
            (self.folder / "bad.yaml").chmod(0)
            self.refused("Permission denied", "train", "bad.yaml")

    def refused_settings(self, expected, **changes):
        self.config("bad.yaml", **changes)
        with self.subTest(changes=changes):
            self.refused(expected, "train", "bad.yaml", "--out", "run")
            if any(path.startswith("model") for path in changes):
                self.refused(expected, "graph", "bad.yaml", "--json")

    def test_models(self):
        self.refused_settings("bad.yaml:1: model.hidden: expected a multiple of model.block 8, got "
                              "36", model_hidden=36)
        self.refused_settings("model.block: expected 8, 16, 32, 64 or 128", model_block=12)
        for density in 0, -0.5, 1.5, "much":
            self.refused_settings("bad.yaml:1: model.density: expected a finite number above 0, at "
                                  "most 1", model_density=density, model_degree=None)
        self.refused_settings("bad.yaml:1: model.density: expected at least 0.25",
                              model_density=0.2, model_degree=None)
        self.refused_settings("set model.degree or model.density, not both", model_density=0.5)
        self.refused_settings("bad.yaml:1: model.degree: expected an even number", model_degree=3,
                              model_graph="watts_strogatz")
        self.refused_settings("bad.yaml:1: model.degree: expected below 4", model_degree=4)
        self.refused_settings("model.hidden: expected an integer", model_hidden=10**12)
        self.refused_settings("model.hidden: expected an integer", model_hidden=2**64)
        self.refused_settings("model.hidden: expected at most 32768 blocks", model_hidden=2**20)
        self.refused_settings("train.batch: expected an integer", train_batch=2**31)
        self.refused_settings("train.bptt: expected an integer", train_bptt=2**40)
        self.refused_settings("train.prune_density: expected at least 0.25, the share of self-"
                              "blocks, got 0.2", train_prune_density=0.2)
        self.refused_settings("train.prune_density: expected below 0.75, the density of the "
                              "patterns", train_prune_density=0.8)
        self.refused_settings("train.prune_from: expected below train.prune_until 0.6, got 0.7",
                              train_prune_density=0.5, train_prune_from=0.7)
        self.refused_settings("cannot open none.txt", model_graph="file",
                              model_graph_file="none.txt", model_degree=None)
        self.write("edges", "0 1\n1 9\n")
        self.refused_settings("edges:2: expected an edge", model_graph="file",
                              model_graph_file="edges", model_degree=None)

    def test_many_files(self):
        """A folder or a list stands for its files in order, plain or compressed."""
        parts = [documents(200, seed) for seed in range(4)]
        half = len(parts[2]) // 2
        self.write("texts/1.tsv", parts[0])
        self.write("texts/2.tsv.gz", gzip.compress(parts[1]))
        self.write("texts/3/a.tsv.xz",
                   lzma.compress(parts[2][:half]) + lzma.compress(parts[2][half:]))
        self.write("texts/4.tsv", parts[3])
        self.write("texts/.hidden", b"not read")
        self.write("all.tsv", b"".join(parts))
        self.write("lists/all.list", "../texts/1.tsv\n../texts/2.tsv.gz\r\n\n../texts/3\n"
                                     "../texts/4.tsv")
        for name in "all.tsv", "texts", "lists/all.list":
            self.config("config.yaml", data_train=name)
            self.run_program("train", "config.yaml", "--out", name + ".run")
            self.assertEqual(self.read(name + ".run/last.safetensors"),
                             self.read("all.tsv.run/last.safetensors"))
        for name, content, expected in [
            ("cut.xz", lzma.compress(parts[0])[:-1], "cut.xz: xz cut short"),
            ("bad.xz", lzma.compress(parts[0])[:-30] + b"\0" * 30, "bad.xz: corrupt xz"),
            ("plain.xz", parts[0], "plain.xz: not an xz file, though its name ends in .xz"),
            ("none.list", "\n", "none.list: expected a file on each line, found none"),
            ("lost.list", "lost\n", "cannot open lost: No such file"),
            ("loop.list", "loop.list\n", "folders and lists more than 16 deep"),
            ("empty/.hidden", "x", "empty: expected a folder with files, found none")]:
            self.write(name, content)
            self.config("bad.yaml", data_train=name.removesuffix("/.hidden"))
            self.refused(expected, "train", "bad.yaml", "--out", "run")

    def test_data(self):
        long = gzip.compress(documents(300, 3))
        for name, content, expected in [
            ("none.txt", None, "cannot open none.txt: No such file or directory"),
            ("empty.txt", b"", "empty.txt: empty"),
            ("empty.tsv", b"", "empty.tsv: empty"),
            ("empty.tsv.gz", gzip.compress(b""), "empty.tsv.gz: empty"),
            ("cut.tsv.gz", long[:-1], "cut.tsv.gz: gzip cut short"),
            ("cut.txt.gz", long[:len(long) // 2], "cut.txt.gz: gzip cut short"),
            ("hidden", long[:-9], "hidden: gzip cut short"),
            ("corrupt.tsv.gz", long[:40] + b"\0" * 30 + long[70:], "corrupt.tsv.gz: corrupt gzip"),
            ("plain.tsv.gz", documents(9, 1), "plain.tsv.gz: not a gzip file"),
            ("tab.tsv", documents(9, 1) + b"1 no tab\n", "tab.tsv:10: expected LABEL<TAB>TEXT"),
            ("blank.tsv", documents(9, 1) + b"\n", "blank.tsv:10: expected LABEL<TAB>TEXT"),
            ("label.tsv", b"1\ta\n1.5\tb\n", "label.tsv:2: expected a 32-bit integer as label"),
            ("label.tsv", b"\ta\n", "label.tsv:1: expected a 32-bit integer as label"),
            ("large.tsv", b"2147483648\ta\n", "large.tsv:1: expected a 32-bit integer as label"),
            ("short.txt", b"x" * 32, "32 bytes are less than one minibatch"),
            ("/proc/self/mem", None, "cannot read /proc/self/mem"),
        ]:
            with self.subTest(name=name):
                if content is not None:
                    self.write(name, content)
                self.config("bad.yaml", data_train=name)
                self.refused(expected, "train", "bad.yaml", "--out", "run")
                if "minibatch" in expected:
                    continue
                self.config("bad.yaml", data_valid=["valid.tsv", name])
                self.refused(expected, "train", "bad.yaml", "--out", "run")
                self.config("bad.yaml", data_exclude=name)
                self.refused(expected, "train", "bad.yaml", "--out", "run")
        self.write("just.txt", b"x" * 33)
        self.config("good.yaml", data_train="just.txt", train_steps=1)
        self.run_program("train", "good.yaml")

    def test_nothing_left(self):
        self.config("bad.yaml", data_exclude="train.tsv")
        self.refused("data.train: 0 bytes are less than one minibatch", "train", "bad.yaml",
                     "--out", "run")

    def test_names(self):
        """Messages are one line, whatever the name of a file."""
        self.refused("cannot open no?such\u00e9: ", "train", "no\nsuch\u00e9")
        self.refused("unknown key", "train", "config.yaml", "--set", "a\nb=1", status=2)
        long = "/".join(["d" * 200] * 15)  # longer than the buffer that messages once had
        self.refused(f"cannot open {long}: No such file", "train", long)
        self.refused(f"cannot open {long}: No such file", "eval", long, "--data", "a")
        (self.folder / long).mkdir(parents=True)
        self.write(f"{long}/bad.yaml", "model: {hidden: 7}")
        self.refused(f"{long}/bad.yaml:1: model.hidden: expected an integer at least 8", "train",
                     f"{long}/bad.yaml")
        self.config("file.yaml", model_graph="file", model_degree=None)
        self.refused("file.yaml:1: model.graph: file: expected model.graph_file to name it", "train", "file.yaml")


# ------------------------------------------------------------------------------------ odd input --


class OddInput(Case):
    def test_documents(self):
        odd = b"\n".join([b"0\t", b"1\t\r", b"-1\t\x00\x00", b"0\t\xff\xfe\x80", b"1\ttab\tinside",
                          b"+7\t a ", b"0\tline\r", b"1\t" + b"long " * 400, b"0\tno end"])
        self.write("odd.tsv", odd)
        self.config("odd.yaml", data_train=["odd.tsv", "train.tsv"], data_valid="odd.tsv")
        result = self.results("train", "odd.yaml", "--out", "run")
        self.assertTrue(0 < result["valid_bpc"] < 16)
        lengths = [0, 0, 2, 3, 10, 3, 4, 2000, 6]
        scored = self.results("eval", "run/last.safetensors", "--data", "odd.tsv", *self.cpu)
        self.assertEqual(scored["bytes"], sum(lengths) + 3 * len(lengths) - 1)
        self.run_program("features", "run/last.safetensors", "--data", "odd.tsv", "--out", "f",
                         *self.cpu)
        features = numpy.load(self.folder / "f.npy")
        self.assertEqual(features.shape, (9, 64))
        self.assertTrue((features[0] == features[1]).all())  # both hold nothing but framing
        self.assertTrue(numpy.isfinite(features).all())

    def test_raw_bytes(self):
        self.write("raw.bin", bytes(range(256)) * 9)
        self.write("raw.gz", gzip.compress(b"\r\n\x00" * 500))
        self.config("raw.yaml", data_train=["raw.bin", "raw.gz"], data_valid=None)
        self.run_program("train", "raw.yaml", "--out", "run")
        scored = self.results("eval", "run/last.safetensors", "--data", "raw.bin", "raw.gz",
                              *self.cpu)
        self.assertEqual(scored["bytes"], 256 * 9 + 1500 - 1)

    def test_graph_in_parts(self):
        self.write("edges", "0 1\n1 0\n")
        self.config("parts.yaml", model_graph="file", model_graph_file="edges", model_degree=None)
        _, err = self.run_program("train", "parts.yaml", "--out", "run")
        self.assertRegex(err, r"(?m)^smallworld: warning: the graph of gates has 3 components")
        self.assertEqual(self.results("graph", "parts.yaml")["patterns"][0]["components"], 3)
        # The pattern is in the checkpoint, so the file is not needed again, even for resuming.
        (self.folder / "edges").unlink()
        self.results("eval", "run/last.safetensors", "--data", "valid.tsv", *self.cpu)
        self.run_program("train", "parts.yaml", "--out", "run", "--resume", "--set",
                         "train.steps=15")
        mask = numpy.ones((4, 4), bool)
        numpy.save(self.folder / "mask.npy", mask)
        self.config("mask.yaml", model_graph="file", model_graph_file="mask.npy", model_degree=None)
        _, err = self.run_program("train", "mask.yaml", "--out", "masked")
        self.assertNotIn("warning", err)

    def test_graph_file_of_hubs(self):
        mask = numpy.ones((4, 2), bool)
        mask[3, 0] = False
        numpy.save(self.folder / "mask.npy", mask)
        self.config("hubs.yaml", model_cell="mlstm", model_hubs=16, model_graph="file",
                    model_graph_file="mask.npy", model_degree=None)
        step, gates = self.results("graph", "hubs.yaml")["patterns"]
        self.assertEqual([step["blocks"], gates["blocks"]], [7, 7])
        self.run_program("train", "hubs.yaml", "--out", "run")
        (self.folder / "mask.npy").unlink()
        stages = self.results("graph", "run/last.safetensors")["patterns"]
        self.assertEqual([stage["blocks"] for stage in stages], [7, 7])

    def test_no_validation(self):
        self.config("none.yaml", data_valid=None, data_valid_fraction=0)
        result = self.results("train", "none.yaml", "--out", "run")
        self.assertIsNone(result["valid_bpc"])
        self.assertFalse((self.folder / "run" / "best.safetensors").exists())
        self.assertEqual(self.results("train", "none.yaml", "--out", "run", "--resume"), result)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = Path(sys.argv.pop(1)).resolve()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # other tests may be running
    unittest.main()
