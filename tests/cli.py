"""What tests of the program from outside share: a folder of one's own with texts and a config, and ways to
run the program there. tests/cli_*.py are the tests."""

import fcntl
import json
import os
import pty
import random
import struct
import subprocess
import sys
import tempfile
import termios
import time
import unittest
import zlib
from pathlib import Path

PROGRAM = None  # set by main
COMMANDS = ["train", "eval", "features", "probe", "predict", "generate", "prune", "export", "graph", "plot",
            "report", "show", "classify"]
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

    def wait_for(self, name, process):
        """Waits until a process that goes on has made a file."""
        while not (self.folder / name).exists():
            self.assertIsNone(process.poll())
            time.sleep(0.01)

    def run_program(self, *arguments, status=0, **options):
        process = self.start(*arguments, **options)
        out, err = process.communicate(timeout=600)
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


def main(doc):
    """Runs the tests of the file that calls it, which was given the program's path."""
    global PROGRAM
    if len(sys.argv) < 2:
        sys.exit(doc)
    PROGRAM = Path(sys.argv.pop(1)).resolve()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # other tests may be running
    unittest.main(module="__main__")
