"""`smallworld train` and what it keeps: results, checkpoints, resuming, overwriting.

    /usr/bin/python3 tests/cli_train.py BUILD/smallworld [CLASS.TEST...]
"""

import gzip
import json
import lzma
import math
import os
import re
import signal
import struct
import subprocess

import cli
from cli import RUN_FILES, documents, sized, split_safetensors, change_metadata


class Train(cli.Case):
    def test_what_a_run_leaves(self):
        out, err = self.run_program("train", "config.yaml", "--json")
        self.assertEqual(out.count("\n"), 1)
        result = json.loads(out)
        self.assertEqual(list(result), ["steps", "bytes", "epochs", "seconds", "bytes_per_second",
                                        "valid_bpc", "parameters", "checkpoint"])
        self.assertEqual((result["steps"], result["bytes"]), (12, 12 * 32))
        self.assertEqual(result["checkpoint"], "runs/config/last.safetensors")
        self.assertRegex(err, r"(?m)^memory: weights .*, optimiser .*, activations .*, tables .*: ")
        self.assertRegex(err, r"(?m)^step 12/12  bpc .* lr .* bytes/s ")
        self.assertNotIn("\r", err)
        run = self.folder / "runs" / "config"
        self.assertEqual(sorted(path.name for path in run.iterdir()), RUN_FILES)
        lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], [3, 6, 9, 12])
        for line in lines:
            self.assertEqual(list(line), ["step", "bytes", "epoch", "seconds", "bpc", "lr",
                                          "grad_norm", "bytes_per_second", "valid_bpc"])
        self.assertEqual([line["valid_bpc"] is None for line in lines], [True, False, True, False])
        self.assertEqual(lines[-1]["valid_bpc"], result["valid_bpc"])
        out, _ = self.run_program("train", "config.yaml", "--out", "other")
        self.assertEqual(out, "other/last.safetensors\n")
        self.assert_same_run("runs/config", "other")
        for name in "last.safetensors", "best.safetensors":  # no time, host or path
            header, _ = split_safetensors(self.read(f"other/{name}"))
            self.assertNotIn(str(self.folder), json.dumps(header))
            self.assertNotIn("other", header["__metadata__"].values())

    def test_flags_override(self):
        self.train("--set", "train.steps=2", "--batch", "3", "--precision", "bf16", "--threads",
                   "2", "--set", "data.train=[train.tsv, valid.tsv]", "--set", "data.valid=null",
                   "--set", "data.valid_fraction=0.1")
        text = self.read("run/config.yaml").decode()
        for line in ["steps: 2", "batch: 3", "precision: bf16", "threads: 2", "valid: []",
                     'train: ["train.tsv", "valid.tsv"]', "valid_fraction: 0.1"]:
            self.assertIn(f"  {line}\n", text)
        # The resolved config gives the same run.
        again = self.results("train", "run/config.yaml", "--out", "again")
        self.assertEqual(again["steps"], 2)
        self.assert_same_run("run", "again")

    def test_resumed_keeps_its_own(self):
        """A default that has changed since does not reach a run that was begun before; a rate that jumps is said."""
        begun = ["train", "config.yaml", "--out", "run", "--set", "train.warmup=1"]
        self.run_program(*begun, "--set", "train.beta2=0.9", "--set", "train.steps=4")
        _, err = self.run_program(*begun, "--set", "train.steps=40", "--resume")
        self.assertIn("train.beta2: 0.9, as the run was begun with\n", err)
        self.assertRegex(err, "warning: the learning rate goes on at .*, where it was .*, since the run ends after 40 updates "
                         "in place of 4\n")
        self.assertIn("  beta2: 0.9\n", self.read("run/config.yaml").decode())
        self.refused("train.beta2: cannot change on resuming: 0.9 in run/config.yaml, now 0.8", *begun, "--set",
                     "train.steps=60", "--set", "train.beta2=0.8", "--resume")

    def test_labels(self):
        """The labels' loss is a mean over what has a label, and null where nothing has; the labels that are
        validated on may not change."""
        labels = lambda share: "".join(f"{i // share % 2 if i % share == 0 else -1}\ta text {i} of some words\n" for i in range(300))
        self.write("valid.tsv", "0\tone text\n1\tanother text\n" * 9)
        command = ["train", "config.yaml", "--set", "data.train=tenth.tsv", "--set", "train.label_weight=1", "--set",
                   "train.log_every=1", "--set", "train.lr=1e-9", "--set", "train.steps=40"]
        self.write("tenth.tsv", labels(10))
        self.run_program(*command, "--out", "run")
        lines = [json.loads(line) for line in self.read("run/metrics.jsonl").splitlines()]
        found = [line["label_loss"] for line in lines if line["label_loss"] is not None]
        self.assertLess(len(found), len(lines))
        for loss in found:
            self.assertAlmostEqual(loss, math.log(2), places=5)
        self.write("valid.tsv", "1\tone text\n0\tanother text\n" * 9)
        self.refused("data.valid: cannot change on resuming: run/last.state was validated with other labels", *command,
                     "--out", "run", "--resume")
        self.write("valid.tsv", "0\tone text\n1\tanother text\n" * 9)
        self.run_program(*command, "--out", "run", "--resume")
        for name, other in (b"0", b"00"), (b"1", b"01"):  # a class of another name, with the same documents
            before = {part: self.read(part) for part in ("tenth.tsv", "valid.tsv")}
            for part, lines in before.items():
                self.write(part, b"".join(other + line[1:] if line[:1] == name else line for line in lines.splitlines(True)))
            self.refused("was trained with other labels", *command, "--out", "run", "--resume")
            for part, lines in before.items():
                self.write(part, lines)
        self.write("train.tsv", "a\tone text\nb\tanother text\n" * 99)
        _, err = self.run_program("train", "config.yaml", "--set", "train.init=run/last.safetensors", "--out", "bare")
        self.assertIn("its class head, of 2 classes, is left out, as the classes here are none", err)

    def test_balanced_without_a_class(self):
        """A class all of which is held out has no weight to balance."""
        self.write("few.tsv", "".join(f"{i % 2}\ttext number {i} of many words\n" for i in range(400)))
        self.write("held.tsv", "0\tone\n1\ttwo\n2\tthree\n" * 9)
        self.refused("no document of data.train has its label '2'", "train", "config.yaml", "--set", "data.train=few.tsv",
                     "--set", "data.valid=held.tsv", "--set", "train.label_weight=1")
        for text in range(60):  # until the hash of one holds it out
            self.write("rare.tsv", self.read("few.tsv") + f"rare\tthe only one of its kind, {text}\n".encode())
            process = self.start("train", "config.yaml", "--set", "data.train=rare.tsv", "--set", "data.valid=null",
                                 "--set", "train.label_weight=1", "--set", "train.class_weight=balanced", "--set",
                                 "train.steps=1", "--out", "rare", "--overwrite")
            _, err = process.communicate(timeout=600)
            if process.returncode:
                break
        self.assertIn("train.class_weight: balanced has no meaning for class 'rare', all documents of which are held out", err)
        self.assertFalse((self.folder / "rare/last.state").exists() and text == 0)

    def test_config_from_a_pipe(self):
        readable, writable = os.pipe()
        os.write(writable, self.read("config.yaml"))
        os.close(writable)
        self.train()
        self.run_program("train", "/dev/stdin", "--out", "piped", stdin=readable)
        os.close(readable)
        self.assert_same_run("run", "piped")

    def test_progress_on_a_terminal(self):
        """Output after the progress line begins on a new line."""
        lines = self.on_terminal("train", "config.yaml", "--out", "run", "--set",
                                 "train.log_every=1").split("\r\n")
        self.assertRegex(lines[-5], r"\r\x1b\[Kstep 12/12 .* left$")
        self.assertRegex(lines[-4], r"^done: [0-9.]+ bits per character .* 12 updates .* parameters$")
        self.assertEqual(lines[-3], "next: smallworld generate run, or smallworld report run")
        self.assertEqual(lines[-2:], ["run/last.safetensors", ""])

    def test_two_runs_in_a_folder(self):
        first = self.start("train", "config.yaml", "--out", "run", "--set", "train.steps=100000")
        self.wait_for("run/metrics.jsonl", first)
        for start in [], ["--resume"], ["--overwrite"]:
            out, err = self.run_program("train", "config.yaml", "--out", "run", *start, status=1)
            self.assertEqual((out, err), ("", "smallworld: run: another run is using it\n"))
        first.send_signal(signal.SIGINT)
        first.communicate()
        self.assertEqual(first.returncode, 128 + signal.SIGINT)

    def test_damaged_run(self):
        self.train()
        for name in "last.state", "config.yaml":
            with self.subTest(name=name):
                whole = self.read(f"run/{name}")
                self.write(f"run/{name}", whole[:-9])
                self.refused(f"run/{name}", "train", "config.yaml", "--out", "run", "--resume",
                             "--set", "train.steps=20")
                self.write(f"run/{name}", whole)
        # Missing files that the state does not need are reported, and the run goes on.
        self.run_program("train", "config.yaml", "--out", "whole")
        self.run_program("train", "config.yaml", "--out", "whole", "--resume", "--set",
                         "train.steps=20")
        self.write("run/last.safetensors", self.read("run/last.safetensors")[:-9])
        (self.folder / "run" / "metrics.jsonl").unlink()
        _, err = self.run_program("train", "config.yaml", "--out", "run", "--resume", "--set",
                                  "train.steps=20")
        self.assertIn("run/last.safetensors: made again from last.state", err)
        self.assertRegex(err, r"(?m)^smallworld: warning: run/metrics.jsonl: \d+ of its \d+ bytes "
                              "are missing")
        for name in "last.safetensors", "best.safetensors":
            self.assertEqual(self.read(f"run/{name}"), self.read(f"whole/{name}"))

    def test_overwrite_from_its_own_model(self):
        first = self.train()
        before = self.snapshot()
        start = ["train", "config.yaml", "--out", "run", "--overwrite", "--set",
                 f"train.init={first['checkpoint']}", "--set"]
        process = self.start(*start, "train.steps=100000", "--set", "train.valid_every=1000000")
        self.wait_for("run/next/metrics.jsonl", process)
        process.kill()
        process.communicate()
        for path, content in before.items():
            if (self.folder / path).is_file():
                self.assertEqual(content[1], self.read(path), path)
        self.assertEqual(self.results(*start, "train.steps=5")["steps"], 5)
        self.assertEqual(sorted(path.name for path in (self.folder / "run").iterdir()), RUN_FILES)

    def test_folders_that_cannot_be(self):
        self.write("file", "")
        self.refused("file: not a folder", "train", "config.yaml", "--out", "file")
        self.refused("file", "train", "config.yaml", "--out", "file/run")
        self.refused("cannot make folder /proc/run", "train", "config.yaml", "--out", "/proc/run")
        if os.geteuid() != 0:  # root may write anywhere
            (self.folder / "locked").mkdir(mode=0o555)
            self.refused("locked", "train", "config.yaml", "--out", "locked")
            self.refused("locked", "train", "config.yaml", "--out", "locked/run")

    def test_not_finite(self):
        self.train()
        content = self.read("run/last.safetensors")
        header, _ = split_safetensors(content)
        bias = len(content) - header["pattern.gates"]["data_offsets"][1]
        bias += header["head.bias"]["data_offsets"][0]
        content = content[:bias] + b"\0\0\xc0\x7f" + content[bias + 4:]  # a NaN
        self.write("nan.safetensors", change_metadata(content, "version", "1"))
        expected = "nan.safetensors: tensor head.bias: expected finite numbers, found others"
        self.refused(expected, "train", "config.yaml", "--out", "other", "--set",
                     "train.init=nan.safetensors")
        self.refused(expected, "eval", "nan.safetensors", "--data", "valid.tsv")
        self.refused(expected, "generate", "nan.safetensors")
        self.refused(expected, "export", "nan.safetensors", "--out", "exported")
        self.assertFalse((self.folder / "exported").exists())

    def test_diverged(self):
        """A run that ends worse than guessing is none that is done, on resuming neither."""
        for validation in {}, {"data_valid": None, "data_valid_fraction": 0}:
            self.config("fast.yaml", **validation)
            _, err = self.run_program("train", "fast.yaml", "--out", "fast", "--set", "train.lr=30", "--overwrite", status=1)
            self.assertRegex(err.splitlines()[-1], r"^smallworld: fast: failed: ends at [\d.e+]+ bits per character, where guessing")
        self.config("fast.yaml", train_lr=30)
        self.run_program("train", "fast.yaml", "--out", "fast", "--overwrite", status=1)
        _, err = self.run_program("train", "fast.yaml", "--out", "fast", "--resume", status=1)
        self.assertIn("fast: failed: ends at", err)

    def test_odd_files(self):
        """Pipes that nobody writes to, names with NUL bytes, and what other programs left."""
        (self.folder / "texts").mkdir()
        os.mkfifo(self.folder / "texts/pipe")
        for expected, *command in (("texts/pipe: empty", "train", "texts/pipe"),
                                   ("texts/pipe: expected a file or a folder", "train", "config.yaml", "--set",
                                    "data.train=texts")):
            self.assertIn(expected, self.run_program(*command, status=1)[1])
        (self.folder / "texts/pipe").unlink()
        self.write("nul.list", b"train\0.tsv\n")
        self.refused("nul.list: expected names of files, found a NUL byte", "train", "config.yaml", "--set",
                     "data.train=nul.list")
        self.write("more.txt.xz", lzma.compress(b"text " * 1000) + b"other")
        self.refused("more.txt.xz: xz cut short, or other bytes follow its end", "train", "config.yaml", "--set", "data.train=more.txt.xz")
        self.train()
        content = self.read("run/last.safetensors")
        self.write("framed.safetensors", change_metadata(content, "framing", "\\\\n text "))
        self.refused("framed.safetensors: metadata framing: expected", "eval", "framed.safetensors", "--data",
                     "valid.tsv")
        self.write("plain.safetensors", change_metadata(content, "model.norm", "null"))
        self.refused("model.norm", "eval", "plain.safetensors", "--data", "valid.tsv")
        self.write("twice.safetensors", change_metadata(content.replace(b'"kind"', b'"step"', 1), "version", "1"))
        self.refused("twice.safetensors", "eval", "twice.safetensors", "--data", "valid.tsv")
        self.refused("--out: expected a name that ends in .html or .svg, got 'x.pdf'", "show", "run", "--text",
                     "valid.tsv", "--out", "x.pdf", status=2)
        _, err = self.run_program("train", "config.yaml", "--out", "it's a run", "--set", "train.steps=2")
        self.assertIn(r"smallworld report 'it'\''s a run'", err)

    def test_muon(self):
        """What trains which weights is said; without dense ones it is refused."""
        muon = ["--set", "train.optimizer=muon", "--set", "train.steps=2"]
        self.refused("train.optimizer: expected adam: muon trains dense weights, and this model's are block-sparse", "train",
                     "config.yaml", "--out", "no", *muon, status=2)
        _, err = self.run_program("train", "config.yaml", "--out", "run", *muon, "--set", "model.graph=dense")
        self.assertRegex(err, r"optimizer: muon for gates, \d+ weights; adam for the rest")
        self.assertRegex(err, r"mean length of rows: gates [\d.]+")
        self.run_program("report", "run", *self.cpu)
        self.assertIn(b"Muon, learning rate 0.018, for dense recurrent weights; Adam, learning rate 0.01; linear after 2 ",
                      self.read("run/README.md"))

    def test_hubs(self):
        """What commands say of a model whose cells speak through hubs."""
        hubs = ["--set", "model.cell=mlstm", "--set", "model.hubs=8", "--set", "model.degree=null"]
        self.run_program("train", "config.yaml", "--out", "run", *hubs)
        step, gates = self.results("graph", "run/last.safetensors")["patterns"]
        self.assertEqual([(p["nodes"], p["inputs"], p["blocks"]) for p in (step, gates)], [(1, 4, 4), (4, 1, 4)])
        cells, = self.results("graph", "run/last.safetensors", "--svg", "x.svg", "--html", "x.html")["cells"]
        self.assertEqual((cells["nodes"], cells["path_mean"], cells["degree_max"]), (4, 1, 3))
        for name, rows, columns in ("step0", 1, 4), ("gates", 4, 1):
            picture = self.read(f"x.{name}.svg").decode()
            self.assertIn(f"Matrix of {rows} x {columns} blocks, of which 4 are there", picture)
            self.assertNotIn("on a ring", picture)
        page = self.read("x.html").decode()
        drawn = page[page.index("4 nodes of cells, 1 of hubs, and the cells a step later"):].partition("</svg>")[0]
        self.assertEqual((drawn.count("<circle"), drawn.count("M")), (4 + 1 + 4, 4 + 4))
        self.assertIn("1 node of 8 units, which read 4 others; 4 blocks, 100.00 % of all.", page)
        self.assertIn("A node reads 3.0 others (3 to 3). Clustering 1.000; shortest paths have 1.00 steps", page)
        header, _ = split_safetensors(self.read("run/last.safetensors"))
        shapes = {name: t["shape"] for name, t in header.items() if name != "__metadata__"}
        self.assertEqual(shapes["cell.step0.weight"], [1, 8, 32])
        self.assertEqual(shapes["cell.gates.weight"], [1, 4, 32, 8])
        self.assertEqual((shapes["input.hubs.projection"], shapes["input.projection"]), ([1, 8, 4], [4, 32, 4]))
        for command in (["eval", "run", "--data", "valid.tsv"], ["generate", "run", "--bytes", "20"],
                        ["features", "run", "--data", "valid.tsv", "--out", "f"], ["report", "run"],
                        ["show", "run", "--text", "valid.tsv", "--out", "p.html"]):
            self.run_program(*command, *self.cpu)
        for expected, status, *command in (
                ("with hubs, whose rectangles cannot be pruned", 1, "prune", "run", "--density", "0.5", "--out", "x"),
                ("model.hubs: has no meaning for model.cell: lstm", 2, "train", "config.yaml", "--set",
                 "model.hubs=8"),
                ("model.hubs: expected a multiple of model.block 8", 2, "train", "config.yaml", *hubs, "--set",
                 "model.hubs=12"),
                ("at most model.hidden 32, got 40", 2, "train", "config.yaml", *hubs, "--set", "model.hubs=40")):
            _, err = self.run_program(*command, status=status)
            self.assertIn(expected, err)
        # With hidden and parameters the hubs follow, with hubs and parameters hidden does.
        for given in ["model.hidden=64"], []:
            start = [*hubs, "--set", "model.parameters=30000"]
            if not given:
                self.config("config.yaml", model_hidden=None)
            _, err = self.run_program("train", "config.yaml", "--out", f"found{len(given)}", *start,
                                      *(word for s in given for word in ("--set", s)), "--set", "train.steps=2")
            found = int(re.search(r"units, (\d+) parameters", err)[1])
            self.assertLess(abs(found - 30000), 2500)

    def test_rate_and_time_left(self):
        """Bytes a second are bytes over seconds, and at the end no time is left."""
        steps = sized(800)
        _, err = self.run_program("train", "config.yaml", "--out", "run", "--set", f"train.steps={steps}")
        lines = [json.loads(line) for line in self.read("run/metrics.jsonl").splitlines()]
        for line in lines:
            self.assertAlmostEqual(line["bytes_per_second"] * line["seconds"] / line["bytes"], 1, places=5)
        if "sanitize" not in str(cli.PROGRAM):
            self.assertRegex(err, rf"step {steps}/{steps} .* 0:00 left")

    def test_overflow(self):
        """Finite weights of which states are made that are not."""
        self.train()
        content = self.read("run/last.safetensors")
        header, data = split_safetensors(content)
        start, end = header["cell.gates.weight"]["data_offsets"]
        start, end = start + len(content) - len(data), end + len(content) - len(data)
        large = struct.pack("<f", 3e38) * ((end - start) // 4)
        self.write("large.safetensors", change_metadata(content[:start] + large + content[end:], "version", "1"))
        self.refused("not finite", "eval", "large.safetensors", "--data", "valid.tsv")
        self.refused("outputs are not finite: its weights are too large", "generate", "large.safetensors")
        self.refused(": its features are not finite", "features", "large.safetensors", "--data",
                     "valid.tsv", "--out", "f")
        self.assertFalse((self.folder / "f.npy").exists())

    def test_levels(self):
        """SMALLWORLD_CPU takes the code for less of the processor's instructions, and says which there are."""
        _, err = self.run_program("train", "config.yaml", "--out", "run",
                                  env=dict(os.environ, SMALLWORLD_CPU="portable"))
        self.assertIn("CPU (portable), ", err)
        self.assertNotIn("SMALLWORLD_CPU", err)
        _, err = self.run_program("train", "config.yaml", "--out", "run", "--overwrite",
                                  env=dict(os.environ, SMALLWORLD_CPU="v5"))
        self.assertRegex(err, r"SMALLWORLD_CPU: expected .* got 'v5'; taking (portable|v[34])")

    def test_closed_streams(self):
        """Files that are opened later never take the place of closed standard streams. Output that cannot
        be printed is an error."""
        command = f'"{cli.PROGRAM}" train config.yaml --out run >&- 2>&- <&-'
        status = subprocess.run(["sh", "-c", command], cwd=self.folder).returncode
        self.assertEqual(status, 1)
        for line in self.read("run/metrics.jsonl").splitlines():
            json.loads(line)
        command = f'"{cli.PROGRAM}" train config.yaml --out run --resume >&-'
        done = subprocess.run(["sh", "-c", command], cwd=self.folder, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"already finished", done.stderr)
        self.assertTrue(done.stderr.endswith(b"\nsmallworld: cannot write standard output: Bad file descriptor\n"))

    def test_control_characters(self):
        """What a terminal would obey is never printed, wherever it was given."""
        config, bad = "config.yaml", "\x1b[31m"
        for arguments in ((bad,), ("train", bad), ("train", config, "--set", f"train.{bad}=1"),
                          ("train", config, "--set", f"train.lr={bad}"), ("train", "--data", bad),
                          ("train", config, "--gpus", bad), ("train", config, "--device", bad),
                          ("generate", "m", f"--{bad}=3"), ("generate", "m", "--seed", bad),
                          ("generate", "m", "--top-k", bad), ("generate", "m", "--temperature", bad),
                          ("eval", "m", "--data", bad), ("eval", bad, "--data", config),
                          ("features", "m", "--pool", bad), ("features", "m", "--state", bad),
                          ("probe", bad), ("probe", "--train", bad), ("predict", "m", "--probe", bad),
                          ("prune", "m", "--density", bad), ("plot", "run", "--out", bad),
                          ("show", "m", "--unit", bad), ("graph", bad), ("graph", config, "--svg", f"no/{bad}"),
                          ("bench", bad), ("bench", "matmul", "--block", bad), ("help", bad)):
            done = subprocess.run([cli.PROGRAM, *arguments], cwd=self.folder, capture_output=True)
            self.assertNotEqual(done.returncode, 0, arguments)
            self.assertNotIn(b"\x1b", done.stderr + done.stdout, arguments)
        _, err = self.run_program("train", config, "--set", "train.lr= ", status=2)
        self.assertIn("--set: train.lr: expected a value", err)

    def test_one_long_document(self):
        """Progress is shown within a document."""
        self.train()
        for size in 20000, 80000, 320000, 1280000:  # until it takes long enough
            self.write("long.tsv.gz", gzip.compress(b"1\t" + b"the cat sat " * sized(size) + b"\n"))
            shown = self.on_terminal("features", "run", "--data", "long.tsv.gz", "--out", "f", *self.cpu)
            if "read" in shown:
                break
        self.assertRegex(shown, r"read [1-9]\d?\.\d %")

    def test_closed_pipes(self):
        """A command whose output nobody reads ends quietly, as filters do; a run is saved."""
        readable, writable = os.pipe()
        os.close(readable)
        _, err = self.run_program("train", "config.yaml", "--out", "run", "--set",
                                  "train.steps=3")
        done = subprocess.run([cli.PROGRAM, "train", "--help-config"], stdout=writable,
                              stderr=subprocess.PIPE)
        self.assertEqual((done.returncode, done.stderr), (-signal.SIGPIPE, b""))
        done = subprocess.run([cli.PROGRAM, "train", "config.yaml", "--out", "piped", "--set",
                               "train.steps=100000"], cwd=self.folder, stdout=subprocess.PIPE,
                              stderr=writable)
        os.close(writable)
        self.assertEqual(done.returncode, 128 + signal.SIGPIPE)
        self.run_program("train", "config.yaml", "--out", "piped", "--resume")
        self.run_program("train", "config.yaml", "--out", "whole")
        self.assert_same_run("piped", "whole")


class Overwriting(cli.Case):
    """Commands do not replace their own inputs and outputs, nor what smallworld wrote for something else."""

    def setUp(self):
        super().setUp()
        self.train()
        self.run_program("features", "run", "--data", "valid.tsv", "--out", "f", *self.cpu)
        self.write("s.tsv", documents(5, 3))
        os.link(self.folder / "s.tsv", self.folder / "linked.html")

    def left_alone(self, name, *arguments, reason="this command reads it"):
        before = self.read(name)
        _, err = self.run_program(*arguments, status=1)
        self.assertIn(f"smallworld: {name}: {reason}", err)
        self.assertEqual(err.count("\n"), 1, err)
        self.assertEqual(self.read(name), before)
        self.assertEqual([path for path in self.folder.rglob("*.tmp") if path.name != name], [])

    def test_inputs(self):
        model, text = "run/last.safetensors", ["--text", "s.tsv"]
        self.left_alone(model, "graph", model, "--svg", model)
        self.left_alone("config.yaml", "graph", "config.yaml", "--html", "config.yaml")
        self.left_alone(model, "report", "run", "--out", model, *self.cpu,
                        reason="not written by smallworld report")
        for name in model, "s.tsv", "linked.html":
            self.left_alone(name, "show", model, *text, "--out", name, *self.cpu)
        self.left_alone("f.npy", "show", model, *text, "--features", "f", "--npy", "f", "--out", "p.html",
                        *self.cpu, reason="f.json describes features")
        self.left_alone("run/metrics.jsonl", "plot", "run", "--csv", "run/metrics.jsonl")
        self.left_alone(model, "prune", model, "--density", "0.5", "--out", model)
        command = [cli.PROGRAM, "show", model, "--text", "-", "--out", "s.tsv", *self.cpu]
        with open(self.folder / "s.tsv") as text:
            done = subprocess.run(command, cwd=self.folder, stdin=text, capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("s.tsv: this command reads it", done.stderr)
        self.write("page.tmp", documents(5, 3))  # the name of the unfinished page
        self.left_alone("page.tmp", "show", model, "--text", "page.tmp", "--out", "page", *self.cpu)

    def test_other_purposes(self):
        model = "run/last.safetensors"
        self.left_alone("run/last.state", "prune", model, "--density", "0.5", "--out", "run/last.state",
                        reason="it holds the state of a run")
        self.left_alone("f.npy", "graph", model, "--html", "f.npy", reason="it holds an array")
        self.left_alone(model, "graph", "config.yaml", "--svg", model, reason="it holds a checkpoint")
        self.run_program("graph", "config.yaml", "--svg", "new.svg")
        self.run_program("graph", "config.yaml", "--svg", "new.svg")  # the same again

    def test_two_outputs(self):
        _, err = self.run_program("graph", "config.yaml", "--svg", "one", "--html", "one", status=1)
        self.assertIn("one: this command has written it already", err)


if __name__ == "__main__":
    cli.main(__doc__)
