#!/usr/bin/env python3
"""smallworld bench from outside, on a machine without a GPU: bench_cli.py PROGRAM."""

import json
import lzma
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

PROGRAM = None
ROOT = Path(__file__).resolve().parent.parent

PARTS = ["forward", "recompute", "backward", "weight_gradient", "head", "optimiser"]

KEYS = ["bytes_per_second", "ms_per_update", "forward_bytes_per_second",
        "features_bytes_per_second", "tflops", "floor_share", "peak_memory"]

UNEXPLAINED = 0.5


def unexplained(found):
    """The difference between an update and its parts together, as a share of the update."""
    return abs(sum(found["parts_ms"].values()) / found["ms_per_update"] - 1)


def run(*arguments):
    """The program's result. No GPU is visible to it."""
    hidden = dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="2")
    return subprocess.run([PROGRAM, "bench", *arguments], cwd=ROOT, env=hidden, text=True,
                          capture_output=True, timeout=300)


class Matmul(unittest.TestCase):
    def test_without_a_gpu(self):
        result = run("matmul")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(result.stdout, "")
        self.assertEqual(result.stderr.count("\n"), 1)
        self.assertIn("device cuda", result.stderr)

    def test_usage(self):
        for arguments in (["--gates", "2"], ["--block", "24"], ["--density", "2"], ["word"],
                          ["--columns", "32,"], ["--product", "both"], ["--full", "--block", "32"],
                          ["--units", "1000"], [*["--columns", ",".join(["8"] * 17)]]):
            result = run("matmul", *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn("smallworld", result.stderr)


class Generate(unittest.TestCase):
    def measure(self, *arguments):
        return run("generate", "configs/quickstart.yaml", "--device", "cpu", "--threads", "1",
                   "--seconds", "0.2", *arguments)

    def test_quickstart(self):
        result = self.measure("--json", "--set", "model.hidden=128")
        self.assertEqual(result.returncode, 0, result.stderr)
        found = json.loads(result.stdout)
        self.assertEqual(found["hidden"], 128)
        self.assertGreater(found["byte_us"], 0)
        self.assertAlmostEqual(found["floor_share"], found["floor_us"] / found["byte_us"])
        result = self.measure()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"\d+\.\d us a byte, \d+ bytes/s\nfloor \d+\.\d us")

    def test_refused(self):
        result = self.measure("--batch", "2")
        self.assertEqual(result.returncode, 2)
        self.assertIn("--batch: not possible, since one text is written", result.stderr)
        result = run("generate", "none.yaml")
        self.assertEqual(result.returncode, 1)
        self.assertIn("none.yaml", result.stderr)


class Dispatch(unittest.TestCase):
    def test_help(self):
        for arguments in (["--help"], ["matmul", "--help"], ["train", "--help"],
                          ["generate", "--help"], ["data", "--help"]):
            result = run(*arguments)
            self.assertEqual(result.returncode, 0)
            self.assertIn("Usage: smallworld bench", result.stdout)

    def test_unknown(self):
        self.assertEqual(run().returncode, 2)
        result = run("trian")
        self.assertEqual(result.returncode, 2)
        self.assertIn("'train'", result.stderr)


class Data(unittest.TestCase):
    SMALL = ["data", "--seconds", "0.2", "--batch", "4", "--bptt", "16", "--window", "40e3"]

    def test_made_up(self):
        with tempfile.TemporaryDirectory() as folder:
            files = ["--folder", folder, "--file-bytes", "2e5", "--bytes", "1e9"]
            result = run(*self.SMALL, *files, "--json")
            self.assertEqual(result.returncode, 0, result.stderr)
            rows = json.loads(result.stdout)["rows"]
            self.assertEqual([(row["text"], row["packed"], row["ranks"]) for row in rows],
                             [(text, packed, ranks) for text in ("raw", "tsv")
                              for packed in ("none", "gzip", "xz") for ranks in (1, 2)])
            for row in rows:
                for key in ("bytes_per_second", "read", "seconds", "first_seconds", "memory",
                            "disk", "index_bytes_per_second"):
                    self.assertGreater(row[key], 0, (row, key))
                self.assertAlmostEqual(row["epoch_bytes"] / 1e9, 1, 1)
                # Each process has the pages of its libraries, 100 MB with CUDA's, beside the window.
                self.assertLess(row["memory"], row["epoch_bytes"] / 2)
            self.assertEqual(len(os.listdir(folder)), 6)
            table = run(*self.SMALL, "--ranks", "2", f"{folder}/made-up.txt.gz")
            self.assertRegex(table.stdout, r"files +- +2 \|")

    def test_one_block(self):
        """A large xz that can be read only from its start is worth a warning."""
        with tempfile.TemporaryDirectory() as folder:
            for lines, warned in (10000, False), (800000, True):
                text = b"".join(b"%x %b\n" % (i * 2654435761 % 2**40, b"All work and no play. " * 4)
                                for i in range(lines))
                path = Path(folder) / "text.xz"
                path.write_bytes(lzma.compress(text, preset=0))
                result = run(*self.SMALL, "--ranks", "1", str(path))
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertEqual("text.xz: every stream that begins in it" in result.stderr, warned)

    def test_refused(self):
        for arguments, status, message in (
                (["--window", "5e3"], 2, "--window: expected at least 2048 for each of 4 streams"),
                (["--ranks", "5"], 2, "--ranks: expected at most one for each of 4 streams"),
                (["--text", "csv"], 2, "--text"), (["nowhere"], 1, "nowhere"),
                (["LICENSE", "--bptt", "60000"], 1, "less text than one minibatch")):
            result = run(*self.SMALL, *arguments)
            self.assertEqual(result.returncode, status, arguments)
            self.assertIn(message, result.stderr)
            self.assertEqual(result.stdout, "")


class Train(unittest.TestCase):
    SMALL = ["train", "configs/quickstart.yaml", "--device", "cpu", "--set", "model.hidden=128"]

    def measure(self, *arguments):
        """Measures again, up to five times, where other work slowed the parts alone."""
        for _ in range(6):
            result = run(*self.SMALL, "--seconds", "2", "--json", *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            found = json.loads(result.stdout)
            if unexplained(found) < UNEXPLAINED:
                break
        return found

    def check(self, found):
        for key in KEYS:
            self.assertGreater(found[key], 0, key)
        parts = found["parts_ms"]
        self.assertEqual(sorted(parts), sorted(PARTS + ["idle"]))
        self.assertGreaterEqual(parts["idle"], 0)
        self.assertLess(unexplained(found), UNEXPLAINED)
        self.assertAlmostEqual(sum(found["floor_parts_ms"].values()) / found["floor_ms"], 1,
                               places=6)
        self.assertAlmostEqual(found["floor_ms"] / found["ms_per_update"] / found["floor_share"],
                               1, places=6)
        size = found["batch"] * found["bptt"]
        self.assertAlmostEqual(size / found["ms_per_update"] * 1e3 / found["bytes_per_second"], 1,
                               places=6)
        self.assertAlmostEqual(6 * found["parameters"] * found["bytes_per_second"] * 1e-12 /
                               found["tflops"], 1, places=6)
        self.assertEqual(sum(found["memory"].values()), found["peak_memory"])

    def test_lstm(self):
        self.check(self.measure())

    def test_deep_bf16(self):
        found = self.measure("--set", "model.cell=deep", "--precision", "bf16")
        self.check(found)
        self.assertIn("deep", found["model"])

    def test_recompute(self):
        whole = self.measure()
        self.assertEqual((whole["segments"], whole["parts_ms"]["recompute"]), (1, 0))
        found = self.measure("--set", "train.recompute=4")
        self.check(found)
        self.assertEqual(found["segments"], 4)
        self.assertGreater(found["parts_ms"]["recompute"], 0)
        self.assertLess(found["memory"]["activations"], whole["memory"]["activations"] / 2)

    def test_any_batch(self):
        """The dense products beside the model are of any minibatch; heap corruption once ended it."""
        for batch in 4, 33:
            result = run(*self.SMALL, "--seconds", "0.1", "--set", f"train.batch={batch}", "--json")
            self.assertEqual(result.returncode, 0, result.stderr)

    def test_real_text(self):
        self.check(self.measure("--data", "data/reviews_valid.tsv.gz"))

    def test_explain(self):
        result = run(*self.SMALL, "--seconds", "0.5", "--explain")
        self.assertEqual(result.returncode, 0, result.stderr)
        for words in ("gates fprop", "held by", "Adam", "waits a step", "bytes/s", "of the floor",
                      "a dense layer of 128 units"):
            self.assertIn(words, result.stdout)

    def test_too_little_text(self):
        result = run(*self.SMALL, "--data", "LICENSE", "--set", "train.batch=4096")
        self.assertEqual(result.returncode, 1)
        self.assertIn("less than one minibatch", result.stderr)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
