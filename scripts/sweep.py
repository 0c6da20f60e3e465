#!/usr/bin/env python3
"""Trains many runs, one at a time on each GPU, and prints one table; `smallworld plot` draws their curves.

    scripts/sweep.py PLAN [--program build/smallworld] [--out runs/sweep] [--gpus 0,1]
                     [--test FILE...] [--probe TRAIN TEST]... [--pool NAMES]

A plan is a text file with a run on each line; `#` starts a comment.

    NAME CONFIG.yaml [KEY.PATH=VALUE ...] [seeds=1,2]

Each run goes to OUT/NAME, or with seeds to OUT/NAME-sSEED, and is trained with the settings as --set. A run that is there is
resumed, and a finished one is only read, so that the same command goes on after a stop. --test adds bits per character on
these files, each --probe the error in per cent on TEST of a probe on the features of TRAIN. Exits with 1 if a run failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

running, stopped = set(), []  # the commands that run; signals that came to stop them


def read_plan(path):
    """The runs of a plan: {name: (config, settings)}."""
    runs = {}
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        sys.exit(f"{path}: cannot be read: {getattr(problem, 'strerror', None) or problem}")
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if words and (len(words) < 2 or any("=" not in word for word in words[2:])):
            sys.exit(f"{path}:{number}: expected NAME CONFIG [KEY.PATH=VALUE ...] [seeds=1,2]")
        seeds = [seed for word in words[2:] if word.startswith("seeds=") for seed in word[len("seeds="):].split(",")]
        settings = [word for word in words[2:] if not word.startswith("seeds=")]
        for name, own in [(f"{words[0]}-s{seed}", [f"run.seed={seed}"]) for seed in seeds] or [(w, []) for w in words[:1]]:
            if name in runs:
                sys.exit(f"{path}: two runs are called {name}")
            runs[name] = words[1], own + settings
    return runs or sys.exit(f"{path}: no run in it")


def call(gpu, log, *command):
    """The JSON object that a command ends with."""
    environment = dict(os.environ, **({"CUDA_VISIBLE_DEVICES": gpu} if gpu else {}))
    with open(log, "a") as errors:
        child = subprocess.Popen([*map(str, command), "--json"], stdout=subprocess.PIPE, stderr=errors, env=environment)
        running.add(child)
        if stopped:
            child.terminate()
        out = child.communicate()[0]
        running.remove(child)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command)
    return json.loads(out.splitlines()[-1])


def measure(options, name, config, settings, gpu):
    """Trains one run, or goes on with it, and scores it; returns its line of the table."""
    out, program = Path(options.out), options.program
    folder, log, result = out / name, out / f"{name}.log", out / name / "result.json"
    row = json.loads(result.read_text()) if result.exists() else None
    if row is None:
        begun = ["--resume"] if (folder / "last.state").exists() else ["--overwrite"] if folder.exists() else []
        row = call(gpu, log, program, "train", config, "--out", folder, *begun, *(w for s in settings for w in ("--set", s)))
    if options.test and "test_bpc" not in row:
        row["test_bpc"] = call(gpu, log, program, "eval", row["checkpoint"], "--data", *options.test)["bpc"]
    for files in options.probe:
        prefixes, column = [folder / "probe-train", folder / "probe-test"], Path(files[1]).name.split(".")[0] + "_error"
        if column in row:
            continue
        for prefix, file in zip(prefixes, files):
            call(gpu, log, program, "features", row["checkpoint"], "--pool", options.pool, "--data", file, "--out", prefix)
        row[column] = call(gpu, log, program, "probe", "--train", prefixes[0], "--test", prefixes[1])["error"]
        for file in folder.glob("probe-t*"):
            file.unlink()
    result.write_text(json.dumps(row))
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--program", default="build/smallworld")
    parser.add_argument("--out", default="runs/sweep")
    parser.add_argument("--gpus", default="", help="numbers of GPUs, separated by commas; default: one run at a time")
    parser.add_argument("--test", nargs="+", metavar="FILE")
    parser.add_argument("--probe", nargs=2, metavar=("TRAIN", "TEST"), action="append", default=[])
    parser.add_argument("--pool", default="mean")
    options = parser.parse_args()
    runs, rows = read_plan(options.plan), {}
    waiting = iter(runs)
    if not os.access(options.program, os.X_OK):
        sys.exit(f"{options.program}: no such program; --program names it")
    Path(options.out).mkdir(parents=True, exist_ok=True)

    def work(gpu):
        for name in waiting:
            try:
                rows[name] = measure(options, name, *runs[name], gpu)
                print(f"{name}: {rows[name]['valid_bpc']:.4f}", file=sys.stderr, flush=True)
            except subprocess.CalledProcessError:
                if not stopped:
                    print(f"{name}: failed, see {Path(options.out) / name}.log", file=sys.stderr, flush=True)
            if stopped:
                return

    def stop(number, _):
        stopped.append(number)
        for child in list(running):
            child.terminate()

    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, stop)
    workers = [threading.Thread(target=work, args=(gpu,)) for gpu in options.gpus.split(",")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if stopped:
        print("stopped; the same command goes on", file=sys.stderr)
        return 128 + stopped[0]
    shown = "parameters", "bytes", "seconds", "valid_bpc", "test_bpc"
    columns = [key for row in list(rows.values())[:1] for key in row if key in shown or key.endswith("_error")]
    best = sorted(rows, key=lambda name: rows[name].get("test_bpc", rows[name]["valid_bpc"]))
    cell = lambda value: f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
    for line in [["run", *columns], *([name, *(cell(rows[name][key]) for key in columns)] for name in best)]:
        print(line[0].ljust(24), *(word.rjust(15) for word in line[1:]))
    return 1 if len(rows) < len(runs) else 0


if __name__ == "__main__":
    sys.exit(main())
