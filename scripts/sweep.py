#!/usr/bin/env python3
"""Trains many runs, one at a time on each GPU, and prints one table.

    scripts/sweep.py PLAN [--program build/smallworld] [--out runs/sweep] [--gpus 0,1]
                     [--minutes M] [--test FILE...] [--probe TRAIN TEST [VALID]]... [--pool NAMES]
                     [--csv FILE]

A plan is a text file with a run on each line; `#` starts a comment.

    NAME CONFIG.yaml [KEY.PATH=VALUE ...] [seeds=1,2]

Each run goes to OUT/NAME, or with seeds to OUT/NAME-sSEED, and is trained with the settings as --set.
A value @NAME, as in train.init=@NAME, means the last model of an earlier line's run, and waits for it.
With seeds, it means NAME's run of the same seed, if there is one.
An existing run is resumed, and a finished one is only read, so a sweep that was stopped continues when
it is called again. With --minutes, no run begins after that many minutes.

The table has a line for each run: parameters, bytes, seconds of training, and bits per character on
validation at the end. With --test it adds those of the test files, scored after the run. Each
--probe adds a column, the error in per cent on TEST of a probe on the features of TRAIN, and
TEST's features per second; VALID chooses its C. Features are removed after use. Exits with 1
if a run failed. Ctrl-C or SIGTERM saves the runs that are being trained, and ends the sweep.
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
    for place, (name, _, settings) in enumerate(runs):
        seed = next((s.split("=")[1] for s in settings if s.startswith("run.seed=")), None)
        for i, setting in enumerate(settings):
            key, value = setting.split("=", 1)
            if not value.startswith("@"):
                continue
            found = [wanted for wanted in (f"{value[1:]}-s{seed}", value[1:])
                     if wanted in names[:place]]
            if not found:
                sys.exit(f"{path}: {name}: {setting}: no earlier line's run is called {value[1:]}")
            settings[i] = f"{key}=@{found[0]}"
    twice = {name for name in names if names.count(name) > 1}
    if twice or not runs:
        sys.exit(f"{path}: {'two runs are called ' + ', '.join(twice) if twice else 'no run in it'}")
    return runs


running, stopped = set(), []  # the commands that run; signals that came to stop them


def stop(number, _):
    stopped.append(number)
    for child in list(running):
        child.terminate()


def call(command, gpu, log):
    """The JSON object that a command ends with, or None where it failed."""
    environment = dict(os.environ)
    if gpu is not None:
        environment["CUDA_VISIBLE_DEVICES"] = gpu
    with open(log, "a") as errors:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True,
                                 env=environment)
        running.add(child)
        if stopped:
            child.terminate()
        out = child.communicate()[0]
        running.remove(child)
    return json.loads(out.splitlines()[-1]) if child.returncode == 0 else None


def probe_column(files):
    """The name of a probe's column: TEST's, without its endings."""
    return Path(files[1]).name.split(".")[0] + "_error"


def probe(options, row, files, folder, gpu, log):
    """Adds the columns of one probe to the row; False where a command failed."""
    prefixes, rate = [], 0
    for number, file in enumerate(files):
        prefixes.append(folder / f"probe{number}")
        done = call([options.program, "features", row["checkpoint"], "--json", "--pool",
                     options.pool, "--data", file, "--out", str(prefixes[-1])], gpu, log)
        if done is None:
            return False
        rate = done["bytes_per_second"] if number == 1 else rate
    command = [options.program, "probe", "--json", "--train", prefixes[0], "--test", prefixes[1]]
    command += ["--valid", prefixes[2]] if len(files) > 2 else []
    scored = call(list(map(str, command)), gpu, log)
    for prefix in prefixes:
        for ending in ".npy", ".labels.npy", ".json":
            prefix.with_name(prefix.name + ending).unlink(missing_ok=True)
    if scored is None:
        return False
    row[probe_column(files)] = scored["error"]
    row["features_per_second"] = rate
    return True


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
            key, value = setting.split("=", 1)
            if value.startswith("@"):
                value = Path(options.out) / value[1:] / "last.safetensors"
            command += ["--set", f"{key}={value}"]
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
    for files in options.probe:
        if probe_column(files) not in row:
            if not probe(options, row, files, folder, gpu, log):
                return None
            result.write_text(json.dumps(row))
    return row


def table(rows, options):
    """The finished runs, best first."""
    columns = [("parameters", "{:,}"), ("bytes", "{:,}"), ("seconds", "{:.1f}"),
               ("bytes_per_second", "{:,.0f}"), ("valid_bpc", "{:.4f}")]
    if options.test:
        columns.append(("test_bpc", "{:.4f}"))
    best = columns[-1][0]
    columns += [(probe_column(files), "{:.2f}") for files in options.probe]
    if options.probe:
        columns.append(("features_per_second", "{:,.0f}"))
    lines = [["run"] + [key for key, _ in columns]]
    for name, row in sorted(rows.items(), key=lambda item: item[1][best]):
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
    parser.add_argument("--gpus", help="numbers of GPUs, separated by commas; default: one run at a time")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--test", nargs="+")
    parser.add_argument("--probe", nargs="+", metavar="FILE", action="append", default=[])
    parser.add_argument("--pool", default="mean")
    parser.add_argument("--csv")
    options = parser.parse_args()
    for files in options.probe:
        if len(files) not in (2, 3):
            parser.error("--probe: expected TRAIN TEST or TRAIN TEST VALID")
    runs = read_plan(options.plan)
    if not os.access(options.program, os.X_OK):
        sys.exit(f"{options.program}: no such program; --program names it")
    Path(options.out).mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    waiting, rows, failed = queue.Queue(), {}, []
    over = {name: threading.Event() for name, _, _ in runs}
    for run in runs:
        waiting.put(run)

    def ready(settings):
        """Waits for the runs that the settings name: workers have begun all of them."""
        named = [value[1:] for _, value in (s.split("=", 1) for s in settings) if value[:1] == "@"]
        for name in named:
            over[name].wait()
        return all(name in rows for name in named)

    def work(gpu):
        while not stopped and time.monotonic() - start < options.minutes * 60:
            try:
                run = waiting.get_nowait()
            except queue.Empty:
                return
            row = None
            try:
                row = measure(options, run, gpu) if ready(run[2]) else None
            finally:
                if row is not None:
                    rows[run[0]] = row
                elif not stopped:
                    failed.append(run[0])
                over[run[0]].set()
            if row is None and stopped:
                return
            print(f"{run[0]}: {'failed' if row is None else round(row['valid_bpc'], 4)}",
                  file=sys.stderr, flush=True)

    for number in signal.SIGINT, signal.SIGTERM:
        signal.signal(number, stop)
    workers = [threading.Thread(target=work, args=(gpu,))
               for gpu in (options.gpus.split(",") if options.gpus else [None])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if stopped:
        print("stopped; the same command goes on", file=sys.stderr)
        return 128 + stopped[0]

    print(table(rows, options))
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
        print(f"{name}: failed, see {Path(options.out) / name}.log, or a run that it starts from "
              "failed", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
