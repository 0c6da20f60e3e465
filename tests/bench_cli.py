"""smallworld bench from outside, on a machine without a GPU: bench_cli.py PROGRAM."""

import json
import os
import subprocess
import sys
import unittest
from pathlib import Path

PROGRAM = None
ROOT = Path(__file__).resolve().parent.parent

PARTS = ["forward", "recompute", "backward", "weight_gradient", "head", "optimiser"]

KEYS = ["bytes_per_second", "ms_per_update", "forward_bytes_per_second", "tflops", "peak_memory"]

UNEXPLAINED = 0.5


def unexplained(found):
    """The difference between an update and its parts together, as a share of the update."""
    return abs(sum(found["parts_ms"].values()) / found["ms_per_update"] - 1)


def run(*arguments):
    """The program's result. No GPU is visible to it."""
    hidden = dict(os.environ, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="2", OMP_WAIT_POLICY="passive")
    return subprocess.run([PROGRAM, "bench", *arguments], cwd=ROOT, env=hidden, text=True,
                          capture_output=True, timeout=600)


class Usage(unittest.TestCase):
    def test_conv(self):
        for words, arguments in (("--filter: expected an odd number, got 4", ["--filter", "4"]),
                                 ("--features: expected a multiple of --block, 64", ["--features", "96", "--block", "64"]),
                                 ("--block: expected 8, 16, 32, 64 or 128, got 48", ["--block", "48"]),
                                 ("--density", ["--density", "2"])):
            result = run("conv", *arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(words, result.stderr.splitlines()[0])

    def test_without_a_gpu(self):
        for name in "conv", "matmul":
            result = run(name)
            self.assertEqual((result.returncode, result.stdout, result.stderr.count("\n")), (1, "", 1))
            self.assertIn("device cuda", result.stderr)

    def test_matmul(self):
        for arguments in (["--gates", "2"], ["--block", "24"], ["--density", "2"], ["word"],
                          ["--columns", "32,"], ["--product", "both"], ["--full", "--block", "32"],
                          ["--units", "1000"], [*["--columns", ",".join(["8"] * 17)]]):
            result = run("matmul", *arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn("smallworld", result.stderr)

    def test_help(self):
        for arguments in (["--help"], ["matmul", "--help"], ["train", "--help"]):
            result = run(*arguments)
            self.assertEqual(result.returncode, 0)
            self.assertIn("Usage: smallworld bench", result.stdout)

    def test_unknown(self):
        self.assertEqual(run().returncode, 2)
        result = run("trian")
        self.assertEqual(result.returncode, 2)
        self.assertIn("'train'", result.stderr)


class Train(unittest.TestCase):
    SMALL = ["train", "configs/quickstart.yaml", "--device", "cpu", "--set", "model.hidden=128"]

    def measure(self, *arguments):
        """Measures again, up to five times, where other work slowed the parts alone."""
        for _ in range(6):
            result = run(*self.SMALL, "--seconds", "0.5", "--json", *arguments)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertNotIn("warning", result.stderr)
            found = json.loads(result.stdout)
            if unexplained(found) < UNEXPLAINED:
                break
        return found

    def check(self, found):
        for key in KEYS:
            self.assertGreater(found[key], 0, key)
        parts = found["parts_ms"]
        self.assertEqual(sorted(parts), sorted(PARTS))
        self.assertLess(unexplained(found), UNEXPLAINED)
        self.assertAlmostEqual(parts["forward"] / found["bptt"] * 1e3 / found["step"]["forward_us"], 1, places=6)
        size = found["batch"] * found["bptt"]
        self.assertAlmostEqual(size / found["ms_per_update"] * 1e3 / found["bytes_per_second"], 1,
                               places=6)
        self.assertAlmostEqual(6 * found["parameters"] * found["bytes_per_second"] * 1e-12 /
                               found["tflops"], 1, places=6)
        self.assertEqual(sum(found["memory"].values()), found["peak_memory"])

    def test_deep_bf16(self):
        found = self.measure("--set", "model.cell=deep", "--precision", "bf16")
        self.check(found)
        self.assertIn("deep", found["model"])

    def test_recompute(self):
        whole = self.measure()
        self.check(whole)
        self.assertEqual((whole["segments"], whole["parts_ms"]["recompute"]), (1, 0))
        found = self.measure("--set", "train.recompute=4")
        self.check(found)
        self.assertEqual(found["segments"], 4)
        self.assertGreater(found["parts_ms"]["recompute"], 0)
        self.assertLess(found["memory"]["activations"], whole["memory"]["activations"] / 2)

    def test_real_text(self):
        self.check(self.measure("--data", "data/reviews_valid.tsv.gz"))

    def test_text(self):
        result = run(*self.SMALL, "--seconds", "0.5", "--set", "model.graph=dense", "--set", "train.optimizer=muon")
        self.assertEqual(result.returncode, 0, result.stderr)
        for words in ("lstm", "optimiser", "a step:", "bytes/s"):
            self.assertIn(words, result.stdout)

    def test_too_little_text(self):
        result = run(*self.SMALL, "--data", "LICENSE", "--set", "train.batch=4096")
        self.assertEqual(result.returncode, 1)
        self.assertIn("less than one minibatch", result.stderr)


if __name__ == "__main__":
    PROGRAM = os.path.abspath(sys.argv.pop(1))
    unittest.main()
