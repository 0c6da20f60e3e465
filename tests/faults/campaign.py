#!/usr/bin/env python3
"""Makes each allocation and each system call on files fail, one at a time, and kills the program at
each of them. Checks that nothing crashes, nothing is lost, and exit statuses are right.

    tests/faults/campaign.py BUILD/smallworld BUILD/tests/libshim.so [--short] [--only PATTERN] [--at N]

A scenario is a command in a folder prepared for it. It first runs without a fault; this run counts the
calls (shim.c), and all others are compared with it. Then each fault has a run, in these modes:

    alloc   one allocation fails               alloc+  it and all later ones fail
    io      one system call fails              full    the disk is full from that call on
    short   one read or write is cut in half
    kill    SIGKILL before a call              torn    SIGKILL in the middle of a write

After each, the command runs again without a fault, as its user would run it. It must then leave the same
bytes as the first run, but for measured times. It runs again once for each content of the folder, and a kill
comes only after a call that changed something. --short makes one fault for each distinct call stack, not for
each call, and alloc+ at each fourth of these; an allocation or a call that an earlier scenario had from the
same stack does not fail again. --only takes SCENARIO or SCENARIO:MODE as a glob; --at takes the number of one
call, and shows its run.

The list of calls shows whether files survive a power cut: a file may be renamed only after all that was
written to it has been flushed, and the folder must be flushed after that.
"""

import argparse
import concurrent.futures
import fnmatch
import gzip
import hashlib
import json
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

MODES = ["alloc", "alloc+", "io", "full", "short", "kill", "torn"]
FAILURES = ["alloc", "alloc+", "io", "short"]  # that a call's code handles, whatever the folder holds
SECONDS = 60  # a run takes a few hundredths of a second; one that takes this long hangs
CPU = ["--device", "cpu", "--threads", "1"]
TIMED = ["seconds", "bytes_per_second", "documents_per_second"]
WRITES = ["write", "pwrite"]
MOVES = WRITES + ["read", "pread"]
LOOKS = ["read", "pread", "stat", "lstat", "fstat", "newfstatat", "statx", "access", "faccessat", "lseek", "getdents",
         "mmap", "close"]  # calls that change no file

# -------------------------------------------------------------------------------- programs, folders --


class Tools:
    """The program and the shim, and the folder in which all runs take place."""

    def __init__(self, program, shim, folder):
        self.program, self.shim, self.folder = program, shim, folder
        self.made = 0
        self.lock = threading.Lock()

    def new_folder(self):
        with self.lock:
            self.made += 1
            path = self.folder / str(self.made)
        path.mkdir()
        (path / "tmp").mkdir()
        return path

    def run(self, folder, command, mode=None, at=None):
        """(status, stdout, stderr). The status is None if the run hangs."""
        environment = {"PATH": os.environ.get("PATH", ""), "TMPDIR": str(folder / "tmp"), "LC_ALL": "C",
                       "OMP_WAIT_POLICY": "passive", "MALLOC_PERTURB_": "128"}
        if mode:
            environment |= {"LD_PRELOAD": str(self.shim), "FAULT_MODE": mode, "FAULT_AT": str(at or 0),
                            "FAULT_TRACE": str(folder) + ".trace", "FAULT_REPORT": str(folder) + ".report"}
        process = subprocess.Popen([self.program, *command], cwd=folder, env=environment,
                                   stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True, errors="replace")
        try:
            out, err = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return None, "", ""
        return process.returncode, out, err


def fill(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)


def content(folder):
    """{path: bytes} of a folder, without its tmp/."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
            if path.is_file() and path.parent.name != "tmp"}


def state(folder):
    """All that the next command finds in a folder: names, and what files hold."""
    return frozenset((str(path.relative_to(folder)), path.is_file() and hashlib.sha256(path.read_bytes()).digest())
                     for path in folder.rglob("*"))


def split_safetensors(data):
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


def without_times(name, data):
    """A file's content without times and what follows from them."""
    if name.endswith("metrics.jsonl"):
        lines = [json.loads(line) for line in data.splitlines()]
        return [{key: line[key] for key in line if key not in TIMED} for line in lines]
    if name.endswith("last.state"):
        header, tensors = split_safetensors(data)
        for key in ["seconds", "elapsed", "checksum", "metrics_bytes"]:
            header["__metadata__"].pop(key, None)
        return header, tensors
    return data


def outcome(folder, out):
    """What runs are compared by: their output and their folder's files, without times."""
    printed = []
    for line in out.splitlines():
        if line.startswith("{"):
            line = json.loads(line)
            line = {key: line[key] for key in line if key not in TIMED}
        printed.append(line)
    return printed, {name: without_times(name, data) for name, data in content(folder).items()}


def difference(found, expected):
    """What differs between two outcomes, or None."""
    if found[0] != expected[0]:
        return f"prints {found[0]}, expected {expected[0]}"
    names = sorted(name for name in found[1].keys() | expected[1].keys()
                   if found[1].get(name) != expected[1].get(name))
    return f"other content in {', '.join(names)}" if names else None


# ---------------------------------------------------------------------------------------- scenarios --


def documents(count, seed):
    """Labelled lines of a few words."""
    draw = random.Random(seed)
    words = ["the", "cat", "dog", "sat", "ran", "on", "a", "mat"]
    return "".join(f"{(i + seed) % 2}\t{' '.join(draw.choices(words, k=draw.randint(3, 11)))}.\n"
                   for i in range(count)).encode()


def config(seed=1, **model):
    """A config of four updates, each of which is saved."""
    return json.dumps({
        "run": {"device": "cpu", "threads": 1, "seed": seed},
        "data": {"train": ["train.tsv.gz", "raw.txt"], "valid": "valid.tsv", "exclude": "exclude.tsv"},
        "model": {"hidden": 32, "block": 8, "degree": 2, "embedding": 4} | model,
        "train": {"batch": 2, "bptt": 8, "steps": 4, "warmup": 2, "lr": 0.01, "log_every": 2,
                  "valid_every": 2, "valid_bytes": 40, "average": 0.9, "checkpoint_minutes": 1e-9}}).encode()


def mask(nodes):
    """A .npy mask of a ring."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({nodes}, {nodes}), }}"
    header += " " * (-(10 + len(header) + 1) % 64) + "\n"
    cells = bytes((i - j) % nodes in (0, 1, nodes - 1) for i in range(nodes) for j in range(nodes))
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + cells


INPUTS = {
    "train.tsv.gz": gzip.compress(documents(12, 1), mtime=0),
    "raw.txt": b"the cat sat on a mat\n" * 3,
    "valid.tsv": documents(9, 2),
    "exclude.tsv": documents(3, 1),
    "test.tsv": documents(12, 3),
    "other.tsv": documents(12, 4),
    "edges.txt": b"# a ring\n" + b"".join(b"%d %d\n" % (i, (i + 1) % 4) for i in range(4)),
    "mask.npy": mask(4),
    "config.yaml": config(),
    "other.yaml": config(seed=2),
    "edges.yaml": config(graph="file", graph_file="edges.txt", degree=None),
    "mask.yaml": config(graph="file", graph_file="mask.npy", degree=None),
}
RUN = ["config.yaml", "metrics.jsonl", "last.safetensors", "best.safetensors", "last.state"]
TRAIN = ["train", "config.yaml", "--out", "run", "--json"]


class Scenario:
    """`command` in a folder that holds `files` besides INPUTS. A run that fails leaves each file as it
    was, or as the command would leave it. Running the command again completes everything."""

    in_short = True
    thin = 1  # --short takes every so manyth of its faults
    kept = frozenset()  # files that a failed run may leave because resuming needs them
    marks = frozenset()  # files that a failed run may leave with other content
    own = "/"  # a folder in which it may leave what it likes

    def __init__(self, name, command, files=None):
        self.name, self.command, self.files = name, command, INPUTS | (files or {})
        self.recovered = set()  # states of folders after faults from which the command got up again

    def prepare(self, tools):
        """A folder as the command finds it."""
        self.tools = tools
        folder = tools.new_folder()
        fill(folder, self.files)
        return folder

    def count(self, tools):
        """Runs the command without a fault. The outcome is what all runs are compared with; also counts
        the calls."""
        folder = self.prepare(tools)
        status, out, err = tools.run(folder, self.command, "count")
        if status == 99:
            print(f"skipped: {err.strip()}")
            sys.exit(1 if os.environ.get("SMALLWORLD_REQUIRE_ALL_TESTS") == "1" else 77)
        if status != 0:
            sys.exit(f"campaign.py: {self.name}: fails without a fault: {err}")
        self.expected = self.outcome(folder, out)
        trace = Path(str(folder) + ".trace").read_text(errors="replace").splitlines()
        self.calls = [line.split("\t") for line in trace]
        self.check_flushes()
        return folder

    def outcome(self, folder, out):
        return outcome(folder, out)

    def check_flushes(self):
        names, dirty, unflushed = {}, set(), set()
        for kind, _, call, _, file, path, target, result in (c for c in self.calls if c[0] == "io"):
            if int(result) < 0:
                continue
            if call in ("open", "openat"):
                names[result] = path
            elif call in WRITES and file in names:
                dirty.add(names[file])
            elif call == "fsync" and file in names:
                dirty.discard(names[file])
                unflushed.discard(names[file])
            elif call.startswith("rename"):
                if path in dirty:
                    sys.exit(f"campaign.py: {self.name}: {path} is renamed with bytes not flushed")
                # last.state says that all before it is on the disk: metrics, and the files moved with it.
                late = [file for file in dirty if os.path.basename(file) == "metrics.jsonl"]
                late += [folder for folder in unflushed if folder == os.path.dirname(target)]
                if os.path.basename(target) == "last.state" and late:
                    sys.exit(f"campaign.py: {self.name}: {target} is renamed before a flush of {late}")
                unflushed.add(os.path.dirname(target) or ".")
        if unflushed:
            sys.exit(f"campaign.py: {self.name}: folders not flushed after a rename: {unflushed}")

    def points(self, mode, short, struck):
        """The numbers of the calls at which `mode` makes a fault. `struck` collects stacks of all scenarios."""
        kind = "alloc" if mode.startswith("alloc") else "io"
        calls = [c for c in self.calls if c[0] == kind]
        if mode == "kill":  # after a call that changes nothing it leaves what an earlier one left
            calls = [c for before, c in zip([None, *calls], calls) if not before or before[2] not in LOOKS]
        if mode == "torn":
            calls = [c for c in calls if c[2] in WRITES and int(c[7]) > 1]
        if mode == "short":
            calls = [c for c in calls if c[2] in MOVES and int(c[7]) > 1]
        if mode == "full":
            calls = [c for c in calls if c[2] in WRITES + ["ftruncate", "fsync", "openat", "mkdir"]]
        if short:
            stack = 2 if kind == "alloc" else 3
            calls = list({c[stack]: c for c in reversed(calls)}.values())[::-1]
            if mode in FAILURES:
                calls = [c for c in calls if (mode, c[stack]) not in struck]
                struck.update((mode, c[stack]) for c in calls)
            calls = calls[:: self.thin * (4 if mode == "alloc+" else 1)]
        return [int(c[1]) for c in calls]

    def call_name(self, mode, at):
        if mode.startswith("alloc"):
            return "allocation"
        return " ".join(next(c for c in self.calls if c[0] == "io" and c[1] == str(at))[2:6:3])

    def strike(self, tools, mode, at, tell=False):
        """Makes one run with a fault and what follows it. Returns what is wrong, or None."""
        folder = tools.new_folder()
        try:
            fill(folder, self.files)
            status, out, err = tools.run(folder, self.command, mode, at)
            if tell:
                report = Path(str(folder) + ".report")
                print(f"status {status}\n{out}{err}", report.read_text() if report.exists() else "", sep="")
            found = state(folder)
            wrong = self.judge(tools, folder, mode, at, status, out, err)
            if wrong or found in self.recovered:  # what follows depends on the folder alone
                return wrong
            wrong = self.recover(tools, folder)
            if not wrong:
                self.recovered.add(found)
            return wrong
        finally:
            shutil.rmtree(folder)
            for ending in ".trace", ".report":
                Path(str(folder) + ending).unlink(missing_ok=True)

    def judge(self, tools, folder, mode, at, status, out, err):
        if status is None:
            return f"hangs for {SECONDS} s"
        if mode in ("kill", "torn"):
            if status != -signal.SIGKILL:
                return f"status {status}, expected a kill"
        elif status < 0:
            return f"ends by {signal.Signals(-status).name}"
        elif status == 0:
            found = self.outcome(folder, out)
            if self.is_removal(mode, at):  # a file that could not be removed is still there
                found = found[0], {name: data for name, data in found[1].items()
                                   if not name.endswith(".tmp")}
            wrong = difference(found, self.expected)
            if wrong:
                return f"exit status 0, but {wrong}"
        elif status != 1:
            return f"exit status {status}: {err.strip()}"
        elif not re.search(r"^(smallworld|libgomp): .", err, re.M) and not self.is_error_output(mode, at):
            return f"exit status 1 without a reason: {err.strip()!r}"
        else:
            left = content(folder).keys() - self.files.keys() - self.expected[1].keys() - self.kept
            left = {name for name in left if not name.startswith(self.own)}
            if left and not self.is_removal(mode, at):
                return f"leaves {', '.join(sorted(left))}"
        if any((folder / "tmp").iterdir()):
            return f"leaves {[path.name for path in (folder / 'tmp').iterdir()]} in the temporary folder"
        return self.judge_files(folder)

    def is_error_output(self, mode, at):
        """Whether the failing call writes to stderr, so that no message can be printed."""
        return mode == "io" and any(c[0] == "io" and c[1] == str(at) and c[2] == "write" and c[4] == "2"
                                    for c in self.calls)

    def is_removal(self, mode, at):
        return mode == "io" and self.call_name(mode, at).startswith("unlink")

    def judge_files(self, folder):
        for name, data in content(folder).items():
            if name not in self.expected[1] or name in self.marks:
                continue
            if data != self.files.get(name) and without_times(name, data) != self.expected[1][name]:
                return f"leaves {name} neither as it was nor as it should be"
        return None

    def recover(self, tools, folder):
        return self.run_again(tools, folder, self.command, "again")

    def run_again(self, tools, folder, command, how):
        status, out, err = tools.run(folder, command)
        if status != 0:
            return f"run {how}: exit status {status}: {err.strip()}"
        wrong = difference(self.outcome(folder, out), self.expected)
        return wrong and f"run {how}: {wrong}"


class Training(Scenario):
    """Afterwards the run can be resumed, or the earlier run is there whole, or there was none."""

    earlier = None  # the files of the earlier run, for --overwrite

    def judge_files(self, folder):
        for name in "run/last.safetensors", "run/best.safetensors", "run/last.state":
            if (folder / name).exists():
                data = (folder / name).read_bytes()
                if not is_whole(data):
                    return f"leaves {name} corrupt"
        return None

    def recover(self, tools, folder):
        before = content(folder)
        resume = self.run_again(tools, folder, TRAIN + ["--resume"], "with --resume")
        if resume is None:
            return None
        if self.earlier:
            lost = [name for name in RUN if before.get(f"run/{name}") != self.earlier[f"run/{name}"]]
            if lost:
                return f"{resume}; and of the earlier run other content in {', '.join(lost)}"
        elif "run/last.state" in before or self.files.get("run/last.state"):
            return resume
        if content(folder) != before:
            return f"{resume}; yet that changed files"
        return self.run_again(tools, folder, TRAIN + ["--overwrite"], "with --overwrite")


def is_whole(data):
    """Whether a file's checksum is right: CRC-32 of the file with zeros for the checksum's digits."""
    import zlib
    found = re.search(rb'"checksum": ?"([0-9a-f]{8})"', data[:65536])
    if not found:
        return False
    zeroed = data[:found.start(1)] + b"0" * 8 + data[found.end(1):]
    return int(found[1], 16) == zlib.crc32(zeroed)


class Features(Scenario):
    """Features and labels are a pair. Afterwards a probe reads the old pair or the new one, or refuses."""

    marks = frozenset(["f.json"])  # marks the pair as incomplete, between the two renames

    def judge_files(self, folder):
        return super().judge_files(folder) or self.judge_pair(folder)

    def judge_pair(self, folder):
        found = self.probe(folder)
        if found not in (None, self.old_probe, self.new_probe):
            return "leaves features and labels of two runs, and probe takes them for a pair"
        return None

    def count(self, tools):
        self.old_probe = self.probe(self.prepare(tools))
        folder = super().count(tools)
        self.new_probe = self.probe(folder)
        if None in (self.old_probe, self.new_probe) or self.old_probe == self.new_probe:
            sys.exit(f"campaign.py: {self.name}: the two pairs of features cannot be told by a probe")
        return folder

    def probe(self, folder):
        status, out, _ = self.tools.run(folder, ["probe", "--train", "f", "--test", "f", "--json", *CPU])
        return outcome(folder, out)[0] if status == 0 else None


class Classifier(Scenario):
    """What predict says with the classifier of the folder: as before, as the new one does, or it refuses
    where there was none."""

    own = "c/"  # runs that the next call goes on with, and times
    thin = 5

    def said(self, folder):
        command = ["predict", "c", "--text", "test.tsv", *CPU]
        status, out, _ = self.tools.run(folder, command)
        return out if status == 0 else None

    def outcome(self, folder, out):
        files = {name: data for name, data in content(folder).items() if not name.startswith(self.own)}
        return self.said(folder), files

    def count(self, tools):
        self.old = self.said(self.prepare(tools))
        folder = super().count(tools)
        if self.expected[0] in (None, self.old):
            sys.exit(f"campaign.py: {self.name}: predict does not tell the new classifier from the old one")
        return folder

    def judge_files(self, folder):
        if self.said(folder) not in (self.old, self.expected[0]):
            return "leaves a classifier that is neither the old one nor the new one"
        return None


class Long(Scenario):
    """A command that makes many calls. --short leaves it out."""

    in_short = False


class LongClassifier(Classifier):
    in_short, thin = False, 1


def build_scenarios(tools):
    """Makes the runs and features from which scenarios start, whole ones and ones of killed programs."""
    def make(files, *commands):
        folder = tools.new_folder()
        fill(folder, files)
        for command in commands:
            status, _, err = tools.run(folder, command)
            if status != 0:
                sys.exit(f"campaign.py: {' '.join(command)}: {err}")
        return {name: data for name, data in content(folder).items() if name not in INPUTS}

    train = Training("train", TRAIN)
    finished = make(INPUTS, TRAIN)
    old = make(INPUTS, ["train", "other.yaml", "--out", "run"])
    train.count(tools)
    # A run killed right after its second save.
    saves = [int(c[1]) for c in train.calls
             if c[0] == "io" and c[2].startswith("rename") and c[6] == "run/last.state"]
    folder = tools.new_folder()
    fill(folder, INPUTS)
    tools.run(folder, TRAIN, "kill", saves[1] + 1)
    stopped = {name: data for name, data in content(folder).items() if name not in INPUTS}

    resume = Training("resume", TRAIN + ["--resume"], stopped)
    overwrite = Training("overwrite", TRAIN + ["--overwrite"], old)
    overwrite.earlier = old
    overwrite.kept = {f"run/next/{name}" for name in (".overwrite", *RUN)}
    features = ["features", "run/last.safetensors", "--json", *CPU]
    older = make(INPUTS | old, [*features, "--data", "other.tsv", "--out", "f"])
    pairs = make(INPUTS | finished, [*features, "--data", "test.tsv", "--out", "train"],
                 [*features, "--data", "other.tsv", "--out", "test"])
    model = finished | {"exclude.tsv": INPUTS["exclude.tsv"]}
    probed = make(INPUTS | finished | pairs, ["probe", "--train", "train", "--test", "test", "--out", "p", *CPU])
    classify = ["classify", "--train", "train.tsv.gz", "--test", "test.tsv", "--out", "c", "--overwrite", *CPU]
    classified = make(INPUTS, ["classify", "--train", "other.tsv", "--test", "valid.tsv", "--minutes", "0", "--out",
                               "c", *CPU])
    joined = make(INPUTS | finished, ["classify", "--train", "train.tsv.gz", "--test", "test.tsv", "--model", "run",
                                      "--out", "c", *CPU])
    return [
        train, resume, overwrite,
        Features("features", [*features, "--data", "test.tsv", "--out", "f"], older | model),
        Scenario("probe", ["probe", "--train", "train", "--test", "test", "--out", "p", "--json", *CPU],
                 pairs),
        Scenario("predict", ["predict", "run/last.safetensors", "--probe", "p", "--text", "test.tsv",
                             "--out", "said.jsonl", *CPU], model | probed),
        # By n-grams alone, for which there is always time; and with a model that is tuned and probed.
        Classifier("classify", [*classify, "--minutes", "0"], finished | classified),
        LongClassifier("classify-model", [*classify, "--model", "run"], finished | classified),
        Scenario("predict-joined", ["predict", "c", "--text", "test.tsv", "--out", "said.jsonl", *CPU], joined),
        Scenario("prune", ["prune", "run/last.safetensors", "--density", "0.5", "--out",
                           "pruned.safetensors", "--json"], model),
        Scenario("export", ["export", "run/last.safetensors", "--out", "exported"], model),
        Long("report", ["report", "run", "--data", "test.tsv", "--sample", "5", *CPU], model),
        Long("show", ["show", "run/last.safetensors", "--text", "test.tsv", "--out", "page.html", "--npy",
                      "states", "--json", *CPU], model),
        Scenario("plot", ["plot", "run", "--out", "page.html", "--csv", "all.csv"], model),
        Scenario("graph-page", ["graph", "run/last.safetensors", "--html", "page.html", "--svg",
                                "g.svg"], model),
        Scenario("eval", ["eval", "run/last.safetensors", "--data", "train.tsv.gz", "raw.txt", "--json",
                          *CPU], model),
        Scenario("generate", ["generate", "run/last.safetensors", "--bytes", "20", "--json", *CPU], model),
        Scenario("graph", ["graph", "config.yaml", "--svg", "g.svg", "--edges", "g", "--json"]),
        Scenario("graph-edges", ["graph", "edges.yaml", "--json"]),
        Scenario("graph-mask", ["graph", "mask.yaml", "--json"]),
        Scenario("graph-model", ["graph", "run/last.safetensors", "--json"], model),
    ]


# ---------------------------------------------------------------------------------------------- main --


def main():
    parser = argparse.ArgumentParser(description="Faults one at a time.")
    parser.add_argument("program", type=Path)
    parser.add_argument("shim", type=Path)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", default="*")
    parser.add_argument("--at", type=int)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    start = time.monotonic()
    memory = Path("/dev/shm")  # on a disk, most of the time goes to flushing
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as folder:
        tools = Tools(options.program.resolve(), options.shim.resolve(), Path(folder))
        return campaign(tools, options, start)


def campaign(tools, options, start):
    faults, wrong, struck = Counter(), [], set()
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for scenario in build_scenarios(tools):
            modes = [mode for mode in MODES if fnmatch.fnmatch(scenario.name, options.only)
                     or fnmatch.fnmatch(f"{scenario.name}:{mode}", options.only)]
            if not modes or (options.short and not scenario.in_short and options.only == "*"):
                continue
            scenario.count(tools)
            work = [(mode, at) for mode in modes for at in scenario.points(mode, options.short, struck)
                    if options.at in (None, at)]
            results = pool.map(lambda point: scenario.strike(tools, *point, options.at is not None), work)
            counts = Counter()
            for (mode, at), problem in zip(work, results):
                counts[mode] += 1
                if problem:
                    wrong.append((scenario.name, mode, at, problem))
                    print(f"FAILED {scenario.name}:{mode} --at {at} ({scenario.call_name(mode, at)}): "
                          f"{problem}", flush=True)
            faults += counts
            print(f"{scenario.name:12}" + "".join(f"  {mode} {counts[mode]}" for mode in modes)
                  + f"  {time.monotonic() - start:.0f} s", flush=True)
    kills = faults["kill"] + faults["torn"]
    print(f"{faults['alloc'] + faults['alloc+']:,} failed allocations, "
          f"{faults['io'] + faults['full'] + faults['short']:,} failed or cut calls, {kills:,} kills, "
          f"{len(wrong):,} wrong, {time.monotonic() - start:.0f} s")
    return 1 if wrong or not faults else 0


if __name__ == "__main__":
    sys.exit(main())
