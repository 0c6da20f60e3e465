"""Text that stays in its files, signals, kills and full disks.

    /usr/bin/python3 tests/cli_stopping.py BUILD/smallworld [CLASS.TEST...]
"""

import gzip
import json
import lzma
import os
import random
import signal
import time

import cli
from cli import documents, sized


class Window(cli.Case):
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


class Signals(cli.Case):
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

    def test_minutes_count_from_the_first_start(self):
        minutes = "--set", "train.steps=null", "--set", "train.minutes=0.025"
        process = self.start_and_wait(1, *minutes)
        time.sleep(1)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.assertEqual(process.returncode, 128 + signal.SIGTERM)
        self.assertLess(self.train("--resume", *minutes)["seconds"], 60 * 0.025 + 0.4)

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


if __name__ == "__main__":
    cli.main(__doc__)
