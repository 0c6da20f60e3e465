"""scripts/sweep.py on a plan of tiny runs: its table, going on after a stop, and what it refuses.

    /usr/bin/python3 tests/sweep.py BUILD/smallworld
"""

import json
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

SWEEP = Path(__file__).resolve().parent.parent / "scripts" / "sweep.py"
CONFIG = {"data": {"train": "text", "valid_fraction": 0.1}, "run": {"device": "cpu", "threads": 1},
          "model": {"hidden": 32, "block": 8, "graph": "dense"},
          "train": {"batch": 2, "bptt": 8, "steps": 3}}


class Sweep(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name)
        (self.path / "text").write_text("abcdefgh" * 400)
        (self.path / "config.yaml").write_text(json.dumps(CONFIG))
        self.addCleanup(self.folder.cleanup)

    def sweep(self, plan, *flags):
        (self.path / "plan").write_text(plan)
        return subprocess.run([sys.executable, "-B", str(SWEEP), "plan", "--program", PROGRAM,
                               "--out", "out", *flags], cwd=self.path, capture_output=True,
                              text=True)

    def test_table(self):
        done = self.sweep("# two runs and one\nwide config.yaml model.hidden=64 seeds=1,2\n\n"
                          "longer config.yaml train.steps=9 # three times\n",
                          "--test", "text")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual({line[0] for line in lines[1:]}, {"wide-s1", "wide-s2", "longer"})
        scores = [float(line[-1]) for line in lines[1:]]
        self.assertEqual(scores, sorted(scores))
        written = json.loads((self.path / "out/wide-s2/result.json").read_text())
        self.assertEqual(written["steps"], 3)
        self.assertIn("test_bpc", written)
        self.assertIn("  seed: 2\n", (self.path / "out/wide-s2/config.yaml").read_text())

        # A second call reads the finished runs and continues with the others.
        (self.path / "out/longer/result.json").unlink()
        marks = {name: (self.path / "out" / name / "last.safetensors").stat().st_mtime_ns
                 for name in ("wide-s1", "wide-s2", "longer")}
        again = self.sweep((self.path / "plan").read_text(), "--test", "text")
        self.assertEqual(again.stdout, done.stdout)
        for name, mark in marks.items():
            after = (self.path / "out" / name / "last.safetensors").stat().st_mtime_ns
            self.assertEqual(after, mark)

    def test_probe(self):
        lines = "".join(f"{i % 2}\t{'good' if i % 2 else 'bad'} {i}\n" for i in range(60))
        (self.path / "some.tsv").write_text(lines)
        done = self.sweep("one config.yaml\n", "--probe", "some.tsv", "some.tsv", "--pool", "last,mean")
        self.assertEqual(done.returncode, 0, done.stderr)
        lines = [line.split() for line in done.stdout.splitlines()]
        self.assertEqual(lines[0][-1], "some_error")
        self.assertLess(float(lines[1][-1]), 50)
        self.assertFalse(list((self.path / "out/one").glob("probe*")))
        log = (self.path / "out/one.log").read_text()
        again = self.sweep("one config.yaml\n", "--probe", "some.tsv", "some.tsv", "--pool", "last,mean")
        self.assertEqual((again.stdout, (self.path / "out/one.log").read_text()), (done.stdout, log))

    def test_failures(self):
        done = self.sweep("good config.yaml\nbad config.yaml model.hidden=33\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("bad: failed, see out/bad.log", done.stderr)
        self.assertIn("good", done.stdout)
        self.assertIn("model.hidden", (self.path / "out/bad.log").read_text())

    def test_stop(self):
        (self.path / "plan").write_text("long config.yaml train.steps=1000000\nnext config.yaml\n")
        process = subprocess.Popen([sys.executable, "-B", str(SWEEP), "plan", "--program", PROGRAM,
                                    "--out", "out"], cwd=self.path, stderr=subprocess.PIPE,
                                   text=True)
        self.addCleanup(process.kill)
        while not (self.path / "out/long/metrics.jsonl").exists():
            self.assertIsNone(process.poll())
            time.sleep(0.01)
        process.terminate()
        self.assertEqual(process.communicate(timeout=600)[1], "stopped; the same command goes on\n")
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertIn("--resume goes on", (self.path / "out/long.log").read_text())
        self.assertFalse((self.path / "out/next").exists())

    def test_plans_refused(self):
        for plan, message in [("", "no run in it"), ("a\n", "plan:1: expected NAME CONFIG"),
                              ("a config.yaml\nb config.yaml lr\n", "plan:2: expected"),
                              ("a config.yaml\na config.yaml\n", "two runs are called a")]:
            done = self.sweep(plan)
            self.assertEqual(done.returncode, 1)
            self.assertIn(message, done.stderr)

    def test_shipped_plans(self):
        """Every line of the plans in configs/ gives a model that can be made."""
        sys.path.insert(0, str(SWEEP.parent))
        from sweep import read_plan
        plans = sorted((SWEEP.parent.parent / "configs").glob("*.plan"))
        self.assertTrue(plans)
        for plan in plans:
            for name, (config, settings) in read_plan(plan).items():
                sets = [word for setting in settings for word in ("--set", setting)]
                done = subprocess.run([PROGRAM, "graph", config, *sets], cwd=SWEEP.parent.parent,
                                      capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, f"{plan.name}: {name}: {done.stderr}")


if __name__ == "__main__":
    PROGRAM = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
