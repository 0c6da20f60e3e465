#!/usr/bin/env python3
"""Trains many runs, one a GPU at a time, and prints one table.

    scripts/sweep.py PLAN [--program build/smallworld] [--out runs/sweep] [--gpus 0,1]
                     [--minutes M] [--test FILE...] [--csv FILE]

A plan is text: a line a run, `#` starts a comment.

    NAME CONFIG.yaml [KEY.PATH=VALUE ...] [seeds=1,2]

Each run goes to OUT/NAME, or with seeds to OUT/NAME-sSEED, and is trained with the settings as --set.
A run that is there already is resumed, and a finished one is only read, so that a sweep that was
stopped goes on where it was when it is called again. With --minutes no run is begun after so many.
The table has a line a run: parameters, bytes, seconds of training, the validation's bits per
character at the end, and with --test those of the test files, scored once the run is finished.
Exits with 1 where a run failed.
"""

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path


def read_plan(path):
    """The runs of a plan: (name, config, settings)."""
    runs = []
    for number, line in enumerate(Path(path).read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        settings = [word for word in words[2:] if not word.startswith("seeds=")]
        seeds = [word[len("seeds="):].split(",") for word in words[2:] if word.startswith("seeds=")]
        if len(words) < 2 or any("=" not in word for word in settings):
            sys.exit(f"{path}:{number}: expected NAME CONFIG [KEY.PATH=VALUE ...] [seeds=1,2]")
        if not seeds:
            runs.append((words[0], words[1], settings))
        for seed in seeds[0] if seeds else []:
            runs.append((f"{words[0]}-s{seed}", words[1], settings + [f"run.seed={seed}"]))
    names = [name for name, _, _ in runs]
    twice = {name for name in names if names.count(name) > 1}
    if twice or not runs:
        sys.exit(f"{path}: {'two runs are called ' + ', '.join(twice) if twice else 'no run in it'}")
    return runs


def call(command, gpu, log):
    """The JSON object that a command ends with, or None where it failed."""
    environment = dict(os.environ)
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    with open(log, "a") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=errors, text=True,
                              env=environment)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None


def measure(options, run, gpu):
    """Trains one run, or goes on with it, and scores it; returns its line of the table."""
    name, config, settings = run
    folder = Path(options.out) / name
    log = Path(options.out) / f"{name}.log"
    result = folder / "result.json"
    row = json.loads(result.read_text()) if result.exists() else None
    if row is None:
        command = [options.program, "train", config, "--out", str(folder), "--json"]
        if (folder / "last.state").exists():
            command.append("--resume")
        elif folder.exists():
            command.append("--overwrite")
        for setting in settings:
            command += ["--set", setting]
        row = call(command, gpu, log)
        if row is None:
            return None
        result.write_text(json.dumps(row))
    if options.test and "test_bpc" not in row:
        scored = call([options.program, "eval", row["checkpoint"], "--json", "--data",
                       *options.test], gpu, log)
        if scored is None:
            return None
        row["test_bpc"] = scored["bpc"]
        result.write_text(json.dumps(row))
    return row


def table(rows, test):
    """The finished runs, best first."""
    columns = [("parameters", "{:,}"), ("bytes", "{:,}"), ("seconds", "{:.1f}"),
               ("bytes_per_second", "{:,.0f}"), ("valid_bpc", "{:.4f}")]
    if test:
        columns.append(("test_bpc", "{:.4f}"))
    lines = [["run"] + [key for key, _ in columns]]
    for name, row in sorted(rows.items(), key=lambda item: item[1][columns[-1][0]]):
        lines.append([name] + [form.format(row[key]) for key, form in columns])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(word.ljust(width) if i == 0 else word.rjust(width)
                               for i, (word, width) in enumerate(zip(line, widths)))
                     for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--program", default="build/smallworld")
    parser.add_argument("--out", default="runs/sweep")
    parser.add_argument("--gpus", help="numbers, separated by commas; default: one run at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--test", nargs="+")
    parser.add_argument("--csv")
    options = parser.parse_args()
    runs = read_plan(options.plan)
    Path(options.out).mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    waiting, rows, failed = queue.Queue(), {}, []
    for run in runs:
        waiting.put(run)

    def work(gpu):
        while time.monotonic() - start < options.minutes * 60:
            try:
                run = waiting.get_nowait()
            except queue.Empty:
                return
            row = measure(options, run, gpu)
            if row is None:
                failed.append(run[0])
            else:
                rows[run[0]] = row
            print(f"{run[0]}: {'failed' if row is None else round(row['valid_bpc'], 4)}",
                  file=sys.stderr, flush=True)

    workers = [threading.Thread(target=work, args=(gpu,))
               for gpu in (options.gpus.split(",") if options.gpus else [None])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()

    print(table(rows, options.test))
    if options.csv:
        keys = sorted({key for row in rows.values() for key in row})
        lines = [",".join(["run"] + keys)]
        lines += [",".join([name] + [str(row.get(key, "")) for key in keys])
                  for name, row in sorted(rows.items())]
        Path(options.csv).write_text("\n".join(lines) + "\n")
    if not waiting.empty():
        print(f"{waiting.qsize()} runs not begun after {options.minutes:g} minutes",
              file=sys.stderr)
    for name in failed:
        print(f"{name}: failed, see {Path(options.out) / name}.log", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
