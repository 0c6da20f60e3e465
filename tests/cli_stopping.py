"""Where text is unpacked, signals, kills and full disks.

    /usr/bin/python3 tests/cli_stopping.py BUILD/smallworld [CLASS.TEST...]
"""

import os
import random
import signal
import time

import cli
from cli import documents


class Cache(cli.Case):
    """Where the text lies while it is used: data.cache."""

    def test_cache(self):
        (self.folder / "cache").mkdir()
        away = os.environ | {"TMPDIR": "/nowhere"}
        flags = ["--set", "train.steps=3"]
        _, err = self.run_program("train", "config.yaml", "--out", "no", *flags, env=away, status=1)
        self.assertIn("cannot write the spool file in /nowhere: No such file or directory; data.cache or TMPDIR", err)
        self.run_program("train", "config.yaml", "--out", "run", *flags, "--set", "data.cache=cache", env=away)
        self.run_program("train", "config.yaml", "--out", "run", "--resume", "--set", "train.steps=5")
        self.assertEqual(list((self.folder / "cache").iterdir()), [])

    def test_small_disk(self):
        """A text that cannot fit is refused before it is read."""
        with open(self.folder / "huge.txt", "wb") as file:
            file.truncate(1 << 43)
        start = time.time()
        _, err = self.run_program("train", "config.yaml", "--out", "no", "--set", "data.train=huge.txt", status=1)
        self.assertRegex(err, "the text, unpacked, takes 8.0 TiB, and the disk has .* left; data.cache or TMPDIR")
        self.assertLess(time.time() - start, 5)


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

    def assert_stops(self, process, number=signal.SIGTERM):
        """Asserts that the process ends at once. Returns its stderr."""
        self.addCleanup(lambda: process.poll() is None and process.kill())
        time.sleep(0.3)
        self.assertIsNone(process.poll(), "over before the signal")
        sent = time.monotonic()
        process.send_signal(number)
        _, err = process.communicate(timeout=600)
        self.assertLess(time.monotonic() - sent, 5)
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

    def test_hang_up(self):
        process = self.start_and_wait(10)
        for _ in range(2):  # within a second both are one request
            process.send_signal(signal.SIGHUP)
            time.sleep(0.0002)
        _, err = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 128 + signal.SIGHUP)
        self.assertIn("--resume goes on", err)
        # A signal that is ignored, as under nohup, stays ignored.
        ignore = {"preexec_fn": lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)}
        process = self.start("train", "config.yaml", "--out", "run", "--resume", **ignore)
        time.sleep(0.2)
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=600)
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
        process.communicate(timeout=600)
        self.assertLess(time.monotonic() - sent, 5)
        self.assertEqual(process.returncode, -signal.SIGINT)


if __name__ == "__main__":
    cli.main(__doc__)
