"""Training, eval, features and classify by several ranks, from outside: --gpus and mpirun on the CPU.

    /usr/bin/python3 tests/ranks.py BUILD/smallworld [ON|OFF]

OFF: the program is to be without MPI.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n"]
CONFIG = {"data": {"train": "text", "valid": "valid"}, "run": {"device": "cpu", "threads": 1},
          "model": {"hidden": 64, "block": 16, "graph": "dense", "dropout": 0.2,
                    "input_dropout": 0.1},
          "train": {"batch": 12, "bptt": 16, "steps": 12, "schedule": "constant", "log_every": 2,
                    "valid_every": 6, "lr": 0.001}}


def words(count, seed):
    draw = random.Random(seed)
    return " ".join(draw.choice(["the", "cat", "sat", "on", "a", "mat"]) for _ in range(count))


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)
        (self.path / "text").write_text(words(5000, 1))
        (self.path / "valid").write_text(words(3000, 2))
        (self.path / "config.yaml").write_text(json.dumps(CONFIG))

    def need_mpi(self):
        if not MPI:
            self.skipTest("built without MPI, as asked for")
        told = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True).stdout
        there = shutil.which("mpirun") and "MPI: this program was built" not in told
        if not there and os.environ.get("SMALLWORLD_REQUIRE_ALL_TESTS") == "1":
            self.fail("expected MPI: scripts/install.sh --tests installs it")
        if not there:
            self.skipTest("no MPI")

    def run_program(self, *command, status=0, **environment):
        done = subprocess.run(command, cwd=self.path, text=True, capture_output=True, timeout=600,
                              env={**os.environ, **environment})
        self.assertEqual(done.returncode == 0, status == 0, done.stderr)
        return done

    def start_until(self, begun, command):
        """Starts a command, and returns once it has begun its process and those of its ranks in order."""
        run = subprocess.Popen(command, cwd=self.path, text=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE)
        self.addCleanup(run.stderr.close)
        self.addCleanup(run.kill)
        while not begun() and run.poll() is None:
            time.sleep(0.05)
        return run, self.children(run)

    def children(self, run):
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        return sorted(map(int, children))


class Training(Case):
    def command(self, ranks, *flags, mpi=False):
        command = [PROGRAM, "train", "config.yaml", *flags]
        if mpi:
            return [*MPIRUN, str(ranks), *command]
        return [*command, "--gpus", str(ranks)]

    def train(self, ranks, *flags, mpi=False, status=0):
        done = subprocess.run(self.command(ranks, *flags, mpi=mpi), cwd=self.path, text=True,
                              capture_output=True, timeout=600)
        self.assertEqual(done.returncode, status, done.stderr)
        return done

    def metrics(self, run):
        lines = (self.path / run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def assert_equal_losses(self, run, other):
        mine, theirs = self.metrics(run), self.metrics(other)
        self.assertEqual(len(mine), 6)
        self.assertEqual([m["step"] for m in mine], [m["step"] for m in theirs])
        for a, b in zip(mine, theirs):
            self.assertLess(abs(a["bpc"] - b["bpc"]), 1e-5)
            self.assertEqual(a["valid_bpc"] is None, b["valid_bpc"] is None)
            if a["valid_bpc"] is not None:
                self.assertLess(abs(a["valid_bpc"] - b["valid_bpc"]), 1e-5)

    def assert_same_bytes(self, run, other, name="last.safetensors"):
        self.assertEqual((self.path / run / name).read_bytes(),
                         (self.path / other / name).read_bytes())

    def test_equal_losses(self):
        """The results do not depend on the number of ranks but for the order of sums. Equal runs give
        equal bytes."""
        for ranks in (1, 2, 3):
            self.train(ranks, "--out", f"run{ranks}")
        self.assert_equal_losses("run1", "run2")
        self.assert_equal_losses("run1", "run3")
        self.train(2, "--out", "again")
        self.assert_same_bytes("run2", "again")
        self.assert_same_bytes("run2", "again", "best.safetensors")

    def test_hubs(self):
        flags = ["--set", "model.cell=mlstm", "--set", "model.hubs=32"]
        for ranks in (1, 3):
            self.train(ranks, "--out", f"run{ranks}", *flags)
        self.assert_equal_losses("run1", "run3")

    def test_labels(self):
        """A class head, whose validation the ranks share."""
        for name, count, seed in ("labelled.tsv", 300, 5), ("more.tsv", 31, 6):
            draw, lines = random.Random(seed), []
            for _ in range(count):
                label = draw.choice(["good", "bad"])
                lines.append(f"{label}\t{words(4, draw.random())} {label} {words(3, draw.random())}\n")
            (self.path / name).write_text("".join(lines))
        flags = ["--set", "train.label_weight=1", "--set", "data.train=labelled.tsv", "--set", "data.valid=more.tsv",
                 "--set", "train.steps=12"]
        for ranks in (1, 2, 3):
            self.train(ranks, "--out", f"run{ranks}", *flags)
        self.assert_equal_losses("run1", "run2")
        self.assert_equal_losses("run1", "run3")
        for mine, theirs in zip(self.metrics("run1"), self.metrics("run3")):
            for key in "label_loss", "valid_label_loss", "valid_label_error":
                self.assertEqual(mine[key] is None, theirs[key] is None)
                self.assertLess(abs((mine[key] or 0) - (theirs[key] or 0)), 1e-5, key)
        self.train(2, "--out", "again", *flags)
        self.assert_same_bytes("run2", "again", "best.safetensors")

    def test_chosen(self):
        """On a CPU ranks share the minibatch that one process would have."""
        (self.path / "long").write_text(words(30000, 5))
        for ranks in "1", "2":
            done = self.run_program(PROGRAM, "train", "--data", "long", "--out", f"run{ranks}", "--device", "cpu",
                                    "--gpus", ranks, "--set", "train.steps=1", "--set", "train.valid_bytes=1000")
            self.assertIn("train.batch=16 train.bptt=128 train.lr=0.006", done.stderr)

    def test_minutes(self):
        """All ranks end at the same update, with the rate at its end."""
        limits = ["train.steps=null", "train.minutes=0.05", "train.log_every=1", "train.valid_every=7",
                  "train.schedule=linear", "train.warmup=1"]
        self.train(3, "--out", "run", *(word for limit in limits for word in ("--set", limit)))
        lines = self.metrics("run")
        self.assertLess(lines[-1]["lr"], 0.2 * max(line["lr"] for line in lines))
        self.assertLess(lines[-1]["seconds"], 10)

    def test_large_gradient(self):
        """A gradient of more than is exchanged at once: 1 MiB, 262,144 weights. Each part has its own sum."""
        flags = ["--set", "model.hidden=320", "--set", "train.steps=3", "--set", "train.log_every=1", "--set",
                 "train.clip=0"]
        norms = []
        for ranks in (1, 2):
            self.train(ranks, "--out", f"run{ranks}", *flags)
            norms.append([m["grad_norm"] for m in self.metrics(f"run{ranks}")])
        for one, two in zip(*norms):
            self.assertLess(abs(two / one - 1), 1e-4)
        one, two = ((self.path / run / "last.safetensors").read_bytes() for run in ("run1", "run2"))
        start = 8 + int.from_bytes(one[:8], "little")
        header = json.loads(one[8:start])
        for name in "cell.gates.weight", "head.weight", "head.bias":
            begin, end = header[name]["data_offsets"]
            values = [memoryview(data[start + begin:start + end]).cast("f").tolist() for data in (one, two)]
            self.assertLess(max(abs(a - b) for a, b in zip(*values)), 1e-4, name)

    def test_resume(self):
        """A run with 2 ranks, then 1, then 2 again, against one with 2 throughout."""
        self.train(2, "--out", "whole")
        self.train(2, "--out", "cut", "--set", "train.steps=4")
        self.train(1, "--out", "cut", "--resume", "--set", "train.steps=8")
        self.train(2, "--out", "cut", "--resume", "--set", "train.steps=12")
        mine, theirs = self.metrics("cut"), self.metrics("whole")
        self.assertEqual([m["step"] for m in mine], [m["step"] for m in theirs])
        for a, b in zip(mine, theirs):
            self.assertLess(abs(a["bpc"] - b["bpc"]), 1e-5)
        self.train(2, "--out", "same", "--set", "train.steps=4")
        self.train(2, "--out", "same", "--resume", "--set", "train.steps=12")
        self.assert_same_bytes("whole", "same")

    def test_resume_between_lines(self):
        """A run of 2 ranks that was killed between two lines of metrics goes on with the loss so far."""
        flags = ["--set", "train.log_every=40", "--set", "train.steps=80", "--set", "train.valid_every=80"]
        self.train(2, "--out", "whole", *flags)
        for _ in range(20):
            run = subprocess.Popen(self.command(2, "--out", "cut", "--overwrite", *flags, "--set",
                                                "train.checkpoint_minutes=1e-9"), cwd=self.path,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            self.addCleanup(run.kill)
            state, step = self.path / "cut" / "last.state", 0
            while run.poll() is None and not 3 < step < 40:
                if state.exists():
                    found = re.search(rb'"step": "(\d+)"', state.read_bytes()[:4096])
                    step = int(found[1]) if found else 0
            for rank in self.children(run) if run.poll() is None else []:
                os.kill(rank, signal.SIGKILL)
            run.wait(timeout=600)
            step = int(re.search(rb'"step": "(\d+)"', state.read_bytes()[:4096])[1])
            if step % 40:
                break
        self.assertTrue(step % 40, "no run was killed between two lines")
        self.train(2, "--out", "cut", "--resume", *flags)
        self.assertEqual([(m["step"], m["bpc"]) for m in self.metrics("cut")],
                         [(m["step"], m["bpc"]) for m in self.metrics("whole")])

    def start(self, *flags, mpi=False):
        """Starts a long run."""
        metrics = self.path / "run" / "metrics.jsonl"
        before = metrics.stat().st_size if metrics.exists() else 0
        return self.start_until(lambda: metrics.exists() and metrics.stat().st_size > before + 1000,
                                self.command(2, "--set", "train.steps=1000000", "--out", "run", *flags, mpi=mpi))

    def test_stop(self):
        """SIGTERM is sent to the command, or to one rank, or to the command while a rank is suspended.
        All ranks save and stop, and the run can be resumed."""
        for which in ("command", "rank", "suspended"):
            run, ranks = self.start(*([] if which == "command" else ["--resume"]))
            if which == "suspended":
                os.kill(ranks[1], signal.SIGSTOP)
            os.kill(ranks[1] if which == "rank" else run.pid, signal.SIGTERM)
            _, told = run.communicate(timeout=600)
            self.assertEqual(run.returncode, 128 + signal.SIGTERM, told)
            self.assertIn("stopped after step", told)
            step = self.metrics("run")[-1]["step"]
        self.train(1, "--out", "run", "--resume", "--set", f"train.steps={step + 20}")

    def test_silent(self):
        """A suspended rank is named, once; then it goes on."""
        os.environ["SMALLWORLD_SILENCE"] = "0.5"
        self.addCleanup(os.environ.pop, "SMALLWORLD_SILENCE")
        run, ranks = self.start()
        os.kill(ranks[1], signal.SIGSTOP)
        time.sleep(2)
        os.kill(ranks[1], signal.SIGCONT)
        time.sleep(0.5)
        run.terminate()
        _, told = run.communicate(timeout=600)
        self.assertEqual(told.count("silent"), 1, told)
        self.assertIn(f"rank 1 (process {ranks[1]}) has been silent for 0.5 seconds; the others wait", told)

    def test_killed(self):
        run, ranks = self.start()
        os.kill(ranks[1], signal.SIGKILL)
        _, told = run.communicate(timeout=600)
        self.assertEqual(run.returncode, 1)
        self.assertIn(f"rank 1 (process {ranks[1]}) was killed by signal 9", told)
        self.assertEqual(list((self.path / "run").glob("*.tmp")), [])
        self.assertFalse(Path(f"/proc/{ranks[0]}").exists())

    def test_refused(self):
        """An error is told in one line, whichever rank finds it."""
        for flags, message in (
                (["--gpus", "4"], "train.batch: expected at least 16"),
                (["--gpus", "2", "--set", "data.train=nowhere"], "nowhere"),
                (["--gpus", "2", "--set", 'data.train="-"'], "standard input"),
                (["--gpus", "2", "--set", "model.hidden=33"], "model.hidden"),
                (["--gpus", "0"], "--gpus: ")):
            done = subprocess.run([PROGRAM, "train", "config.yaml", "--out", "no", *flags],
                                  cwd=self.path, text=True, capture_output=True, timeout=600)
            self.assertNotEqual(done.returncode, 0)
            self.assertEqual(sum(message in line for line in done.stderr.splitlines()), 1,
                             done.stderr)
        self.assertFalse((self.path / "no").exists())

    def test_no_nccl(self):
        told = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True,
                              env={**os.environ, "SMALLWORLD_NCCL": "/nowhere/libnccl.so.2"}).stdout
        line = next(line for line in told.splitlines() if line.startswith("NCCL: "))
        self.assertTrue("without CUDA" in line or "/nowhere/libnccl.so.2" in line, line)
        self.run_program(*self.command(2, "--out", "run", "--set", "train.steps=1"),
                         SMALLWORLD_NCCL="/nowhere/libnccl.so.2")

    def test_mpi(self):
        """mpirun gives the same bytes as --gpus. Unequal files and a dead rank end all ranks."""
        self.need_mpi()
        self.train(2, "--out", "mpi", mpi=True)
        self.train(2, "--out", "fork")
        self.assert_same_bytes("mpi", "fork")

        (self.path / "other").write_text(words(5000, 3))
        half = [PROGRAM, "train", "config.yaml", "--out", "unequal"]
        for changed, what in (("data.train=other", "the text of data.train"),
                              ("run.seed=2", "the model that it starts from")):
            done = self.run_program(*MPIRUN, "1", *half, ":", "-n", "1", *half, "--set", changed,
                                    status=1)
            self.assertIn(f"rank 1: {what} differs from rank 0's", done.stderr)

        os.environ["SMALLWORLD_SILENCE"] = "0.5"
        self.addCleanup(os.environ.pop, "SMALLWORLD_SILENCE")
        run, ranks = self.start(mpi=True)
        patience = threading.Timer(600, run.terminate)
        patience.start()
        self.addCleanup(patience.cancel)
        for rank, process in enumerate(ranks):  # the second one is suspended where it waits for the first
            os.kill(process, signal.SIGSTOP)
            if rank:
                os.kill(ranks[0], signal.SIGCONT)
            named = f"rank {rank} has been silent for 0.5 seconds; the others wait for it"
            self.assertTrue(any(named in line for line in run.stderr), named)
        os.kill(ranks[1], signal.SIGCONT)
        os.kill(ranks[1], signal.SIGKILL)
        _, told = run.communicate(timeout=600)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("rank 1", told)


class Reading(Case):
    """eval and features: the bytes of one rank."""

    def setUp(self):
        super().setUp()
        self.run_program(PROGRAM, "train", "config.yaml", "--out", "run", "--set", "model.hidden=32")
        self.documents("documents.tsv", 150, 3)

    def documents(self, name, count, seed):
        """Documents of 1 to 60 words, and ten of 500."""
        draw = random.Random(seed)
        lines = [f"{i % 3}\t{words(draw.randrange(1, 60), seed + i)}\n" for i in range(count - 10)]
        lines += [f"1\t{words(500, seed - i)}\n" for i in range(10)]
        draw.shuffle(lines)
        (self.path / name).write_text("".join(lines))

    def features(self, out, *flags):
        return [PROGRAM, "features", "run/last.safetensors", "--data", "documents.tsv", "--out",
                out, "--batch", "8", "--device", "cpu", "--threads", "1", *flags]

    def assert_same_files(self, one, other, *endings):
        for ending in endings:
            self.assertEqual((self.path / f"{one}{ending}").read_bytes(),
                             (self.path / f"{other}{ending}").read_bytes(), ending)

    def test_features(self):
        files = (".npy", ".labels.npy", ".json")
        flags = ["--pool", "last,mean"]
        self.run_program(*self.features("one", *flags))
        for ranks in ("2", "3"):
            self.run_program(*self.features(f"fork{ranks}", *flags, "--gpus", ranks))
            self.assert_same_files("one", f"fork{ranks}", *files)
        told = self.run_program(*self.features("few", "--batch", "100", "--gpus", "3")).stderr
        self.assertIn("only 2 of 3 ranks have work", told)
        self.need_mpi()
        for ranks in ("2", "3"):
            done = self.run_program(*MPIRUN, ranks, *self.features(f"mpi{ranks}", *flags))
            self.assertEqual(done.stdout.count("150 documents x 64 units"), 1)
            self.assert_same_files("one", f"mpi{ranks}", *files)
        self.assertEqual(list(self.path.glob("*.tmp")), [])

    def test_eval(self):
        """A text that could make three minibatches of a stripe of 32 KiB, and is cut into two."""
        (self.path / "long").write_text(words(32000, 4))
        command = [PROGRAM, "eval", "run/last.safetensors", "--data", "long", "--device", "cpu",
                   "--batch", "1", "--threads", "1", "--json"]
        one = json.loads(self.run_program(*command).stdout)
        starts = [[*command, "--gpus", "2"], [*command, "--gpus", "3"]]
        if MPI and shutil.which("mpirun"):
            starts.append([*MPIRUN, "2", *command])
        for start in starts:
            done = self.run_program(*start)
            scored = json.loads(done.stdout)
            self.assertEqual((scored["bpc"], scored["bytes"]), (one["bpc"], one["bytes"]))
            idle = "--gpus" in start and start[-1] == "3"
            self.assertEqual("only 2 of 3 ranks have work" in done.stderr, idle, done.stderr)
        command = [PROGRAM, "eval", "run/last.safetensors", "--gpus", "2", "--data"]
        for flags, message in ((["long", "--exact"], "--exact: "), (["-"], "standard input")):
            done = self.run_program(*command, *flags, status=1)
            self.assertEqual(sum(message in line for line in done.stderr.splitlines()), 1,
                             done.stderr)

    def start(self, command):
        """Starts features of many documents, until its files have been begun."""
        self.documents("documents.tsv", 12000, 5)
        return self.start_until((self.path / "f.labels.npy.tmp").exists, command)

    def assert_nothing_written(self):
        self.assertEqual(list(self.path.glob("f.*")), [])

    def test_killed(self):
        run, ranks = self.start(self.features("f", "--gpus", "2"))
        os.kill(ranks[1], signal.SIGKILL)
        _, told = run.communicate(timeout=600)
        self.assertEqual(run.returncode, 1)
        self.assertIn(f"rank 1 (process {ranks[1]}) was killed by signal 9", told)
        self.assert_nothing_written()

    def test_stopped(self):
        run, ranks = self.start(self.features("f", "--gpus", "2"))
        run.terminate()
        _, told = run.communicate(timeout=600)
        self.assertEqual((run.returncode, told), (128 + signal.SIGTERM, ""))
        self.assert_nothing_written()
        self.assertFalse(Path(f"/proc/{ranks[0]}").exists())

    def test_mpi(self):
        """A dead rank, and a rank with other documents, end all ranks."""
        self.need_mpi()
        run, ranks = self.start([*MPIRUN, "2", *self.features("f")])
        os.kill(ranks[-1], signal.SIGKILL)
        _, told = run.communicate(timeout=600)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("rank 1", told)
        self.assert_nothing_written()
        self.documents("other.tsv", 100, 6)
        self.documents("documents.tsv", 100, 7)
        done = self.run_program(*MPIRUN, "1", *self.features("f"), ":", "-n", "1",
                                *self.features("f"), "--data", "other.tsv", status=1)
        self.assertIn("rank 1: its documents, labels or model differs from rank 0's", done.stderr)
        self.assert_nothing_written()


class Classifying(Case):
    """classify, whose ranks share what a model does."""

    def setUp(self):
        super().setUp()
        self.rows("train.tsv", 400, 1)
        self.rows("test.tsv", 120, 2)

    def rows(self, name, count, seed):
        """Of three classes, told by one word each, which is sometimes that of another class."""
        draw = random.Random(seed)
        with open(self.path / name, "w") as out:
            for i in range(count):
                told = i if draw.random() < 0.8 else draw.randrange(3)
                said = [words(8, draw.random()), ["good", "bad", "odd"][told % 3], words(5, draw.random())]
                out.write(f"{'ABC'[i % 3]}\t{' '.join(said)}\n")

    def classify(self, out, *flags, start=(), status=0):
        return self.run_program(*start, PROGRAM, "classify", "--train", "train.tsv", "--test", "test.tsv",
                                "--out", out, "--device", "cpu", "--json", "--overwrite", "--steps", "20", *flags,
                                status=status)

    def test_same_as_one(self):
        """From a given model, n-grams and features come out as with one process; what ranks ask of a
        tuned model, each of its own documents, is what one process asks of it."""
        self.run_program(PROGRAM, "train", "config.yaml", "--out", "run", "--set", "train.batch=16")
        given = ["--model", "run/last.safetensors"]
        one = json.loads(self.classify("one", *given).stdout)
        starts = [([], ["--gpus", "2"])]
        if MPI and shutil.which("mpirun"):
            starts.append(([*MPIRUN, "2"], []))
        for start, flags in starts:
            done = self.classify("two", *given, *flags, start=start)
            two = json.loads(done.stdout)
            for way in "ngram_error", "features_error":
                self.assertEqual(two[way], one[way])
            self.assertEqual(done.stderr.count("ranks: 2, each with about 8 of 16 streams"), 1)
            tuned, = self.path.glob("two/tuned-*")
            said = self.run_program(PROGRAM, "predict", tuned, "--text", "test.tsv", "--device", "cpu")
            wrong = sum(json.loads(line)["class"] != "ABC"[i % 3] for i, line in enumerate(said.stdout.splitlines()))
            self.assertAlmostEqual(two["tuned_error"], 100 * wrong / 120)
            shutil.rmtree(self.path / "two")
        self.rows("train.tsv", 300, 4)
        done = self.classify("one", *given, "--gpus", "2")  # a model that was tuned on other rows is no start
        self.assertIn("300 documents", done.stderr)

    def test_from_text(self):
        """A model of the text first; no rank has fewer streams than it must."""
        self.rows("train.tsv", 100, 3)
        done = self.classify("out", "--gpus", "2")
        self.assertIn("ranks: 2, each with about 4 of 8 streams", done.stderr)
        self.assertIsNotNone(json.loads(done.stdout)["features_error"])
        said = self.run_program(PROGRAM, "predict", "out", "--text", "test.tsv", "--device", "cpu")
        self.assertEqual(len(said.stdout.splitlines()), 120)

    def test_ends(self):
        run, ranks = self.start_until((self.path / "out/run/metrics.jsonl").exists,
                                      [PROGRAM, "classify", "--train", "train.tsv", "--out", "out", "--device", "cpu",
                                       "--minutes", "9", "--gpus", "2"])
        os.kill(ranks[1], signal.SIGKILL)
        _, told = run.communicate(timeout=600)
        self.assertEqual(run.returncode, 1)
        self.assertIn(f"rank 1 (process {ranks[1]}) was killed by signal 9", told)
        self.assertFalse((self.path / "out/classifier.safetensors").exists())
        done = self.run_program(PROGRAM, "classify", "--train", "-", "--out", "out", "--gpus", "2", status=2)
        self.assertIn("ranks cannot share standard input", done.stderr)


if __name__ == "__main__":
    PROGRAM = str(Path(sys.argv.pop(1)).resolve())
    MPI = len(sys.argv) < 2 or sys.argv.pop(1) == "ON"
    unittest.main()
