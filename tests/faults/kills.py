#!/usr/bin/env python3
"""Stops training runs at random moments, on the CPU or a GPU, and lets them go on until they end; then
compares their files with those of a run that was never stopped.

    tests/faults/kills.py BUILD/smallworld [--count 50] [--device auto] [--signal KILL] [--seed 1]

With --signal TERM, INT or HUP, a run that is stopped must also say so, by exit status 128 + signal, and
leave a state. Ends with one line of counts; fails at the first difference.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import campaign

SECONDS = 2.5  # the approximate number of updates of a run


class Runs:
    def __init__(self, program, folder, options):
        self.program, self.folder, self.options = program, folder, options
        campaign.fill(folder, campaign.INPUTS)
        (folder / "tmp").mkdir()

    def configure(self, steps):
        config = {
            "run": {"device": self.options.device, "threads": 1},
            "data": {"train": ["train.tsv.gz", "raw.txt"], "valid": "valid.tsv"},
            "model": {"hidden": 64, "block": 16, "degree": 2, "embedding": 16, "dropout": 0.1},
            "train": {"batch": 4, "bptt": 16, "steps": steps, "warmup": 10, "lr": 0.002, "log_every": 10,
                      "valid_every": 20, "checkpoint_minutes": 0.0005}}
        (self.folder / "config.yaml").write_text(json.dumps(config))

    def start(self, name, *options):
        environment = os.environ | {"TMPDIR": str(self.folder / "tmp"), "OMP_WAIT_POLICY": "passive"}
        return subprocess.Popen([self.program, "train", "config.yaml", "--out", name, "--json", *options],
                                cwd=self.folder, env=environment, text=True, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=self.heed)

    def heed(self):
        """In the new process: what a shell starts in the background ignores some signals, and so would
        the program."""
        if self.options.signal != "KILL":
            signal.signal(signal.Signals[f"SIG{self.options.signal}"], signal.SIG_DFL)

    def go_on(self, name):
        """Resumes the run, or starts it if there is no state yet."""
        run = self.folder / name
        if (run / "last.state").exists():
            return self.start(name, "--resume")
        return self.start(name, *(["--overwrite"] if run.exists() else []))

    def finish(self, name, *options):
        out, err = (process := self.start(name, *options)).communicate()
        if process.returncode != 0:
            sys.exit(f"kills.py: {err}")
        return json.loads(out.splitlines()[-1])

    def files(self, name):
        return {path.name: campaign.without_times(path.name, path.read_bytes())
                for path in sorted((self.folder / name).iterdir())}


def stop(process, seconds, number):
    """Sends the signal after so many seconds. Returns whether the run had ended by itself, and its
    stderr."""
    try:
        _, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        for _ in range(1 if number == signal.SIGKILL else 2):  # as timeout sends it, to the process and at once to its group
            process.send_signal(number)
            time.sleep(0.0002)  # two that are pending together would arrive as one
        _, err = process.communicate(timeout=600)
    if process.returncode == 0:
        return True, err
    if process.returncode in (-number, 128 + number):
        return False, err
    sys.exit(f"kills.py: exit status {process.returncode}: {err}")


def main():
    parser = argparse.ArgumentParser(description="Training runs, stopped at random.")
    parser.add_argument("program", type=Path)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--signal", default="KILL")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    options.program = options.program.resolve()
    number = signal.Signals[f"SIG{options.signal}"]
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        runs = Runs(options.program, Path(folder), options)
        runs.configure(20)
        steps = max(20, int(20 * SECONDS / runs.finish("measure")["seconds"]))
        runs.configure(steps)
        start = time.monotonic()
        runs.finish("whole")
        length = time.monotonic() - start
        whole = runs.files("whole")
        stops = ended = 0
        while stops < options.count:
            name = f"run{ended}"
            done = False
            while not done:
                # Once there have been enough stops, the last run may end.
                seconds = draw.uniform(0, length) if stops < options.count else 600
                done, err = stop(runs.go_on(name), seconds, number)
                stops += not done
            found = runs.files(name)
            different = [file for file in found.keys() | whole.keys() if found.get(file) != whole.get(file)]
            if different:
                sys.exit(f"kills.py: {name}: other content than of a run never stopped: {different}")
            ended += 1
            if ended > 10 * options.count + 10:
                sys.exit(f"kills.py: {ended} runs ended by themselves, and {stops} were stopped by "
                         f"SIG{options.signal}; expected {options.count}")
        left = list((Path(folder) / "tmp").iterdir())
        if left:
            sys.exit(f"kills.py: left in the temporary folder: {left}")
        device = next((line for line in err.splitlines() if line.startswith("device: ")), "")
    print(f"{stops} runs of {steps} steps stopped by SIG{options.signal}, {ended} ended: all with the bytes "
          f"of a run never stopped. {device}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
