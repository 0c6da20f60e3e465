#!/usr/bin/env python3
"""Trains many runs, one at a time on each GPU, and prints one table; `smallworld plot` draws their curves.

    scripts/sweep.py PLAN [--program build/smallworld] [--out runs/sweep] [--gpus 0,1] [--minutes M]
                     [--test FILE...] [--probe TRAIN TEST]... [--pool NAMES]

A plan is a text file with a run on each line; `#` starts a comment.

    NAME CONFIG.yaml [KEY.PATH=VALUE ...] [seeds=1,2]

Each run goes to OUT/NAME, or with seeds to OUT/NAME-sSEED, and is trained with the settings as --set. A value @NAME, as
in train.init=@NAME, means the last model of an earlier line's run, of the same seed if there is one, and waits for it. An
existing run is resumed, and a finished one is only read, so a sweep that was stopped, by Ctrl-C, SIGTERM or --minutes,
continues when it is called again. --test adds bits per character on these files, each --probe the error in per cent on
TEST of a probe on the features of TRAIN. Exits with 1 if a run failed.
"""

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path


def read_plan(path):
    """The runs of a plan: (name, config, settings)."""
    runs = []
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as problem:
        sys.exit(f"{path}: cannot be read: {getattr(problem, 'strerror', None) or problem}")
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if words and (len(words) < 2 or any("=" not in word for word in words[2:])):
            sys.exit(f"{path}:{number}: expected NAME CONFIG [KEY.PATH=VALUE ...] [seeds=1,2]")
        settings = [word for word in words[2:] if not word.startswith("seeds=")]
        seeds = [word[len("seeds="):].split(",") for word in words[2:] if word.startswith("seeds=")]
        for seed in (seeds[0] if seeds else [None]) if words else []:
            name, own = (words[0], []) if seed is None else (f"{words[0]}-s{seed}", [f"run.seed={seed}"])
            names = [other for other, _, _ in runs]
            if name in names:
                sys.exit(f"{path}: two runs are called {name}")
            for setting in settings:
                key, value = setting.split("=", 1)
                found = [wanted for wanted in (f"{value[1:]}-s{seed}", value[1:]) if wanted in names]
                if value.startswith("@") and not found:
                    sys.exit(f"{path}: {name}: {setting}: no earlier line's run is called {value[1:]}")
                own.append(f"{key}=@{found[0]}" if value.startswith("@") else setting)
            runs.append((name, words[1], own))
    if not runs:
        sys.exit(f"{path}: no run in it")
    return runs


class Failed(Exception):
    """A command has failed; its log says why."""


running, stopped = set(), []  # the commands that run; signals that came to stop them


def stop(number, _):
    stopped.append(number)
    for child in list(running):
        child.terminate()


def call(gpu, log, *command):
    """The JSON object that a command ends with."""
    environment = dict(os.environ, **({} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}))
    with open(log, "a") as errors:
        child = subprocess.Popen([*map(str, command), "--json"], stdout=subprocess.PIPE, stderr=errors, text=True,
                                 env=environment)
        running.add(child)
        if stopped:
            child.terminate()
        out = child.communicate()[0]
        running.remove(child)
    if child.returncode:
        raise Failed
    return json.loads(out.splitlines()[-1])


def column_of(files):
    """The name of a probe's column: TEST's, without its endings."""
    return Path(files[1]).name.split(".")[0] + "_error"


def measure(options, run, gpu):
    """Trains one run, or goes on with it, and scores it; returns its line of the table."""
    name, config, settings = run
    out, program = Path(options.out), options.program
    folder, log, result = out / name, out / f"{name}.log", out / name / "result.json"
    row = json.loads(result.read_text()) if result.exists() else None
    if row is None:
        sets = [f"{key}={out / value[1:] / 'last.safetensors' if value[:1] == '@' else value}"
                for key, value in (setting.split("=", 1) for setting in settings)]
        begun = ["--resume"] if (folder / "last.state").exists() else ["--overwrite"] if folder.exists() else []
        row = call(gpu, log, program, "train", config, "--out", folder, *begun, *(w for s in sets for w in ("--set", s)))
    result.write_text(json.dumps(row))
    if options.test and "test_bpc" not in row:
        row["test_bpc"] = call(gpu, log, program, "eval", row["checkpoint"], "--data", *options.test)["bpc"]
        result.write_text(json.dumps(row))
    for files in options.probe:
        if column_of(files) in row:
            continue
        prefixes = [folder / "probe-train", folder / "probe-test"]
        for prefix, file in zip(prefixes, files):
            call(gpu, log, program, "features", row["checkpoint"], "--pool", options.pool, "--data", file, "--out", prefix)
        row[column_of(files)] = call(gpu, log, program, "probe", "--train", prefixes[0], "--test", prefixes[1])["error"]
        result.write_text(json.dumps(row))
        for file in folder.glob("probe-t*"):
            file.unlink()
    return row


def table(rows, options):
    """The finished runs, best first."""
    columns = [("parameters", "{:,}"), ("bytes", "{:,}"), ("seconds", "{:.1f}"), ("bytes_per_second", "{:,.0f}"),
               ("valid_bpc", "{:.4f}"), *([("test_bpc", "{:.4f}")] if options.test else [])]
    best = columns[-1][0]
    columns += [(column_of(files), "{:.2f}") for files in options.probe]
    lines = [["run", *(key for key, _ in columns)]]
    for name, row in sorted(rows.items(), key=lambda item: item[1][best]):
        lines.append([name, *(form.format(row[key]) for key, form in columns)])
    widths = [max(map(len, column)) for column in zip(*lines)]
    return "\n".join("  ".join(word.rjust(width) if i else word.ljust(width)
                               for i, (word, width) in enumerate(zip(line, widths))) for line in lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("plan")
    parser.add_argument("--program", default="build/smallworld")
    parser.add_argument("--out", default="runs/sweep")
    parser.add_argument("--gpus", help="numbers of GPUs, separated by commas; default: one run at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="after which no run begins")
    parser.add_argument("--test", nargs="+", metavar="FILE")
    parser.add_argument("--probe", nargs=2, metavar=("TRAIN", "TEST"), action="append", default=[])
    parser.add_argument("--pool", default="mean")
    options = parser.parse_args()
    runs, waiting, rows, failed, start = read_plan(options.plan), queue.Queue(), {}, [], time.monotonic()
    if not os.access(options.program, os.X_OK):
        sys.exit(f"{options.program}: no such program; --program names it")
    Path(options.out).mkdir(parents=True, exist_ok=True)
    over = {name: threading.Event() for name, _, _ in runs}
    for run in runs:
        waiting.put(run)

    def work(gpu):
        while not stopped and time.monotonic() - start < options.minutes * 60 and not waiting.empty():
            try:
                run = waiting.get_nowait()
            except queue.Empty:
                return
            needs = [setting.split("=@")[1] for setting in run[2] if "=@" in setting]
            for name in needs:  # workers have begun all of them
                over[name].wait()
            try:
                if not all(name in rows for name in needs):
                    raise Failed
                rows[run[0]] = measure(options, run, gpu)
                print(f"{run[0]}: {rows[run[0]]['valid_bpc']:.4f}", file=sys.stderr, flush=True)
            except Failed:
                if not stopped:
                    failed.append(run[0])
            finally:
                over[run[0]].set()

    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, stop)
    workers = [threading.Thread(target=work, args=(gpu,)) for gpu in (options.gpus.split(",") if options.gpus else [None])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if stopped:
        print("stopped; the same command goes on", file=sys.stderr)
        return 128 + stopped[0]
    print(table(rows, options))
    if not waiting.empty():
        print(f"{waiting.qsize()} runs not begun after {options.minutes:g} minutes", file=sys.stderr)
    for name in failed:
        print(f"{name}: failed, see {Path(options.out) / name}.log, or a run that it starts from failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
