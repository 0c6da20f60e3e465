"""What commands make of a checkpoint: scores, features, probes, texts, graphs.

    /usr/bin/python3 tests/cli_uses.py BUILD/smallworld [CLASS.TEST...]
"""

import base64
import csv
import ctypes
import gzip
import io
import json
import lzma
import os
import re
import subprocess
import tempfile
import zlib
from pathlib import Path

import cli
from cli import documents, settings, split_safetensors, change_metadata
import needs

numpy = needs.module("numpy")


class Uses(cli.Case):
    """eval, features, generate and graph, on one trained model."""

    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.holder.cleanup)
        folder = Path(cls.holder.name)
        (folder / "train.tsv").write_bytes(documents(60, 1))
        (folder / "valid.tsv").write_bytes(documents(9, 2))
        (folder / "config.yaml").write_text(json.dumps(settings(train_valid_bytes=0)))
        done = subprocess.run([cli.PROGRAM, "train", "config.yaml", "--json", "--out", "run"],
                              cwd=folder, capture_output=True, text=True, check=True)
        cls.result = json.loads(done.stdout)
        cls.checkpoint = (folder / "run" / "last.safetensors").read_bytes()

    def setUp(self):
        super().setUp()
        self.write("m.safetensors", self.checkpoint)

    def eval(self, *arguments):
        return self.results("eval", "m.safetensors", *self.cpu, *arguments)

    def test_eval(self):
        result = self.eval("--data", "valid.tsv", "--batch", "2")
        self.assertEqual(list(result), ["bpc", "bytes", "seconds", "bytes_per_second"])
        # LABEL<TAB> becomes "\n ", and the line's end becomes a blank.
        size = sum(len(line) + 1 for line in documents(9, 2).splitlines())
        self.assertEqual(result["bytes"], size - 1)
        self.assertAlmostEqual(result["bpc"], self.result["valid_bpc"], delta=1e-6)
        exact = self.eval("--data", "valid.tsv", "train.tsv", "--exact")
        self.assertAlmostEqual(self.eval("--data", "valid.tsv", "train.tsv")["bpc"], exact["bpc"],
                               delta=2e-3)
        other = self.eval("--data", "train.tsv", "valid.tsv", "--exact")
        self.assertEqual(other["bytes"], exact["bytes"])
        self.assertNotEqual(other["bpc"], exact["bpc"])
        self.assertEqual(self.eval("--data", "train.tsv", "--limit", "100")["bytes"], 99)
        half = self.eval("--data", "valid.tsv", "--precision", "bf16")["bpc"]
        self.assertAlmostEqual(half, result["bpc"], delta=0.05)
        self.assertNotEqual(half, result["bpc"])
        out, _ = self.run_program("eval", "m.safetensors", "--data", "valid.tsv", *self.cpu)
        self.assertRegex(out, rf"^{result['bpc']:.4f} bits per character over {size - 1} bytes ")

    def test_dynamic_evaluation(self):
        still = self.eval("--data", "train.tsv", "--exact")["bpc"]
        once, again = (self.eval("--data", "train.tsv", "--dynamic") for _ in range(2))
        self.assertEqual(list(once)[4:], ["stripes", "dynamic_rate", "dynamic_decay"])
        self.assertEqual((once["stripes"], once["dynamic_rate"], once["dynamic_decay"]), (1, 3e-4, 1e-3))
        self.assertEqual(once["bpc"], again["bpc"])
        self.assertLess(once["bpc"], still)
        self.assertEqual(self.read("m.safetensors"), self.checkpoint)
        # No rate at all is plain evaluation, in as many stripes.
        none = self.eval("--data", "train.tsv", "--dynamic", "--dynamic-rate", "0", "--batch", "2")
        self.assertAlmostEqual(none["bpc"], self.eval("--data", "train.tsv", "--batch", "2")["bpc"], delta=1e-6)
        tuned = self.eval("--data", "train.tsv", "--dynamic", "--dynamic-tune", "valid.tsv")
        self.assertLess(tuned["bpc"], still)
        out, err = self.run_program("eval", "m.safetensors", "--data", "train.tsv", "--dynamic", "--dynamic-tune",
                                    "valid.tsv", *self.cpu)
        self.assertRegex(err, r"valid.tsv: \d\.\d{4} bits, with learning \d\.\d{4}, at rate ")
        self.assertRegex(out, r"learning in 1 stripe at rate \S+ and decay \S+\n$")
        self.refused("missing.txt", "eval", "m.safetensors", "--data", "train.tsv", "--dynamic", "--dynamic-tune",
                     "missing.txt")

    def test_features(self):
        self.write("some.tsv", b"1\tgood\n-1\t\n0\tsome longer text\n2147483647\tx\n")
        result = self.results("features", "m.safetensors", "--data", "some.tsv", "--out", "f",
                              *self.cpu)
        self.assertEqual((result["documents"], result["units"]), (4, 64))
        features = numpy.load(self.folder / "f.npy")
        labels = numpy.load(self.folder / "f.labels.npy")
        self.assertEqual((features.shape, features.dtype), ((4, 64), numpy.float32))
        self.assertEqual(labels.tolist(), [1, -1, 0, 2**31 - 1])
        self.assertTrue(numpy.isfinite(features).all() and features.any())
        for batch in 1, 3, 100:
            self.run_program("features", "m.safetensors", "--data", "some.tsv", "--out", "g",
                             "--batch", batch, *self.cpu)
            self.assertEqual(self.read("g.npy"), self.read("f.npy"))
        self.write("some.tsv.xz", lzma.compress(self.read("some.tsv")))
        self.run_program("features", "m.safetensors", "--data", "some.tsv.xz", "--out", "x", *self.cpu)
        numpy.testing.assert_array_equal(numpy.load(self.folder / "x.npy"), features)
        numpy.testing.assert_array_equal(numpy.load(self.folder / "x.labels.npy"), labels)
        self.write("all.list", "some.tsv\n")
        self.run_program("features", "m.safetensors", "--data", "all.list", "--out", "x", *self.cpu)
        numpy.testing.assert_array_equal(numpy.load(self.folder / "x.npy"), features)
        self.refused("config.yaml: expected documents: a .tsv file", "features", "m.safetensors",
                     "--data", "config.yaml", "--out", "f")
        self.refused("cannot open none.txt: No such file", "features", "m.safetensors", "--data", "none.txt", "--out", "f")
        self.write("empty/x", "")
        for command in ["eval", "empty", "--data", "some.tsv"], ["predict", "empty", "--text", "some.tsv"]:
            self.refused("empty: expected the folder of a run, with last.safetensors, or, for predict, of a classifier", *command)
        self.write("f.json", '{"kind": "incomplete features"}')  # between the files of a pair
        self.refused("f.json: says that the features are incomplete", "probe", "--train", "f",
                     "--test", "g", *self.cpu)

    def test_tables(self):
        """Tables are read like the same documents as lines, in every command."""
        rows = [("pos", 'good, very "good"'), ("neg", "bad; poor"), ("pos", "two\nlines"), ("neg", "\u00fcble Sache")]
        self.write("rows.tsv", "".join(f"{label}\t{text}\n" for label, text in rows).replace("two\n", "two "))
        columns = "--text-column", "WHAT", "--label-column", "how"
        table = io.StringIO()
        csv.writer(table).writerows([("text", "label", "how", "what"), *(("x", "y", label, text) for label, text in rows)])
        self.write("other.csv", table.getvalue())
        self.write("rows.jsonl", "".join(json.dumps({"label": label, "text": text}) + "\n" for label, text in rows))
        self.write("rows.json.gz", gzip.compress(self.read("rows.jsonl")))
        for i, (label, text) in enumerate(rows):
            self.write(f"folder/{label}/{i}.txt", text + "\n")
        self.write("folder/unsup/more.txt", "nobody says")
        expected = self.results("eval", "m.safetensors", "--data", "rows.tsv", "--exact", *self.cpu)["bpc"]
        self.run_program("features", "m.safetensors", "--data", "rows.tsv", "--out", "expected", *self.cpu)
        for name, *given in (["other.csv", *columns], ["rows.jsonl"], ["rows.json.gz"], ["folder"]):
            with self.subTest(name):
                self.run_program("features", "m.safetensors", "--data", name, *given, "--out", "f", *self.cpu)
                order = [1, 3, 0, 2] if name == "folder" else range(4)  # by the folders' names
                self.assertEqual(numpy.load(self.folder / "f.labels.npy").tolist()[:4], [(1, 0, 1, 0)[i] for i in order])
                numpy.testing.assert_array_equal(numpy.load(self.folder / "f.npy")[:4],
                                                 numpy.load(self.folder / "expected.npy")[order])
                if name != "folder":
                    bpc = self.results("eval", "m.safetensors", "--data", name, *given, "--exact", *self.cpu)["bpc"]
                    self.assertEqual(bpc, expected)
                    self.assertEqual(self.read("f.json"), self.read("expected.json"))  # with the labels' names
        self.assertEqual(numpy.load(self.folder / "f.labels.npy").tolist()[4:], [-1])
        self.refused("other.csv:1: expected the names of columns, one of them when, found text, label, how, what",
                     "eval", "m.safetensors", "--data", "other.csv", "--label-column", "when", *self.cpu)
        self.write("source/one.json", '{"name": "a program"}\n')
        self.run_program("eval", "m.safetensors", "--data", "source", *self.cpu)  # raw text, not a table
        # Files beside folders of classes are in none.
        self.write("folder/urls.txt", "http://")
        _, err = self.run_program("features", "m.safetensors", "--data", "folder", "--out", "f", *self.cpu)
        self.assertIn("folder: left out what lies beside its folders of classes, files: 1", err)
        self.write("folder/a\tb/1.txt", "text")
        self.refused("expected a folder's name without tabs", "features", "m.safetensors", "--data", "folder", "--out",
                     "f", *self.cpu)

    def test_class_folders_of_folders(self):
        """Of two folders that could be a class neither is taken, but for train and test on top."""
        for name in "deep/pos/2019/a.txt", "deep/neg/2020/b.txt", "good/train/pos/a.txt", "good/test/neg/b.txt":
            self.write(name, "some text\n")
        self.train()
        command = ["features", "run/last.safetensors", "--out", "f", *self.cpu, "--data"]
        self.refused("deep/neg/2020/b.txt: in folders of folders: its class could be 'neg' or '2020'", *command, "deep")
        self.run_program(*command, "good")
        self.assertEqual(json.loads(self.read("f.json"))["names"], ["neg", "pos"])

    def test_output_that_fails(self):
        """What nobody takes is not computed: a pipe ends predict quietly, a full disk by name."""
        self.write("named.tsv", "".join(f"{'ab'[i % 2]}\ttext {'xy'[i % 2] * 3} {i}\n" for i in range(60)))
        self.run_program("classify", "--train", "named.tsv", "--out", "c", "--minutes", "0")
        self.write("many.csv", "text\n" + "a text of some words\n" * 60000)
        self.run_program("predict", "c", "--text", "many.csv", "--out", "all.jsonl")
        pipe = f'"{cli.PROGRAM}" predict c --text many.csv | head -1'
        done = subprocess.run(["bash", "-c", f"set -o pipefail; {pipe}"], cwd=self.folder, capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (141, ""))
        self.assertEqual(done.stdout.count("\n"), 1)
        for arguments in f'"{cli.PROGRAM}" predict c --text many.csv >/dev/full', :
            done = subprocess.run(["sh", "-c", arguments], cwd=self.folder, capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr),
                             (1, "smallworld: cannot write standard output: No space left on device\n"))
        self.assertEqual(self.read("all.jsonl").count(b"\n"), 60000)

    def test_pipes(self):
        """The size of a pipe is not known, and a table in one is named as what it is."""
        self.write("rows.csv", "label,text\n" + "a,some words\nb,other words\n" * 90)
        os.mkfifo(self.folder / "pipe")
        feeder = subprocess.Popen(["sh", "-c", "cat rows.csv > pipe"], cwd=self.folder)
        _, err = self.run_program("train", "--data", "pipe", "--set", "train.steps=1", "--out", "piped", *self.cpu)
        feeder.wait()
        self.assertIn("chosen for a text of unknown size", err)
        self.assertIn("pipe is read as raw text, but looks like a table with names of columns, which ends in .csv", err)

    def test_generate(self):
        def generate(*arguments):
            return self.run_program("generate", "m.safetensors", *self.cpu, *arguments)[0]

        text = generate("--bytes", "40", "--prompt", "the cat", "--seed", "3")
        self.assertTrue(text.startswith("the cat"))
        self.assertEqual(text, generate("--bytes", "40", "--prompt", "the cat", "--seed", "3"))
        self.assertNotEqual(text, generate("--bytes", "40", "--prompt", "the cat", "--seed", "4"))
        seeds = [generate("--bytes", "40", "--seed", str(2**63 - k)) for k in (1, 2)]  # the largest there are
        self.assertNotEqual(*seeds)
        self.refused("--seed: expected an integer from 0 to 9223372036854775807", "generate", "m.safetensors", "--seed",
                     str(2**63), status=2)
        likeliest = generate("--bytes", "40", "--temperature", "0", "--seed", "3")
        self.assertEqual(likeliest, generate("--bytes", "40", "--temperature", "0", "--seed", "4"))
        self.assertEqual(generate("--bytes", "0", "--prompt", "x"), "x\n")
        long, short = (self.results("generate", "m.safetensors", "--bytes", count, *self.cpu)["base64"]
                       for count in ("40", "37"))  # whole recordings, and single bytes after them
        self.assertEqual(base64.b64decode(long)[:39], base64.b64decode(short))
        result = self.results("generate", "m.safetensors", "--bytes", "300", "--temperature", "9",
                              *self.cpu)
        self.assertEqual(result["bytes"], 300)
        written = base64.b64decode(result["base64"])
        self.assertEqual(len(written), 302)  # the prompt included
        self.assertEqual(re.sub("\ufffd+", "\ufffd", result["text"]),
                         re.sub("\ufffd+", "\ufffd", written.decode("utf-8", "replace")))
        self.refused("unrecognized option '--batch'", "generate", "m.safetensors", "--batch", "2", status=2)

    def test_graph(self):
        for source in "config.yaml", "m.safetensors":
            patterns = self.results("graph", source)["patterns"]
            self.assertEqual([p["pattern"] for p in patterns], ["gates"])
            self.assertEqual((patterns[0]["nodes"], patterns[0]["blocks"]), (4, 12))
            self.assertEqual(patterns[0]["parameters"], 12 * 4 * 64)
            self.assertIn("4 nodes of 8 units, 12 blocks", self.run_program("graph", source)[0])
        self.config("deep.yaml", model_cell="deep", model_hidden=64, model_internal_steps=2)
        self.run_program("graph", "deep.yaml", "--svg", "p.svg", "--edges", "e")
        for stage in "step0", "step1", "gates":
            self.assertEqual(self.read(f"p.{stage}.svg")[:4], b"<svg")
        self.refused("m.safetensors is a checkpoint, whose graphs are made", "graph",
                     "m.safetensors", "--set", "model.degree=6", status=2)
        self.refused("cannot write none/p.svg.tmp", "graph", "config.yaml", "--svg", "none/p.svg")
        self.refused("cannot write none/e.0.txt.tmp", "graph", "deep.yaml", "--json", "--edges",
                     "none/e")

    def test_prune(self):
        result = self.results("prune", "m.safetensors", "--density", "0.5", "--out", "p.safetensors")
        pattern = self.results("graph", "p.safetensors")["patterns"][0]
        self.assertEqual((pattern["blocks"], result["density"]), (8, 0.5))
        self.assertEqual(self.result["parameters"] - result["parameters"], 4 * 4 * 64)
        text, _ = self.run_program("prune", "m.safetensors", "--density", "0.5", "--out",
                                   "again.safetensors")
        self.assertEqual(text, f"again.safetensors: density 0.5, {result['parameters']} parameters\n")
        self.assertEqual(self.read("again.safetensors"), self.read("p.safetensors"))

        before = self.results("eval", "p.safetensors", "--data", "valid.tsv", *self.cpu)["bpc"]
        tuned = self.results("train", "config.yaml", "--set", "train.init=p.safetensors", "--out",
                             "tuned")
        self.assertEqual(tuned["parameters"], result["parameters"])
        self.assertLess(tuned["valid_bpc"], before)
        for density in "0.2", "0.75":
            self.refused("--density: expected at least 0.25, the share of self-blocks, and below "
                         "0.75, the density of m.safetensors", "prune", "m.safetensors", "--density",
                         density, "--out", "none.safetensors")
        self.refused("cannot open none.safetensors", "prune", "none.safetensors", "--density", "0.5",
                     "--out", "x.safetensors")

    def test_layers(self):
        """Each layer has its own patterns. Features are those of the last layer."""
        names = ["step0", "gates", "layer2.below", "layer2.step0", "layer2.gates"]
        self.config("two.yaml", model_cell="mlstm", model_layers=2, train_valid_bytes=0)
        trained = self.results("train", "two.yaml", "--out", "two")
        model = "two/last.safetensors"
        for source in "two.yaml", model:
            patterns = self.results("graph", source)["patterns"]
            self.assertEqual([p["pattern"] for p in patterns], names)
            self.assertEqual([p["parameters"] for p in patterns],
                             [12 * 64 * gates for gates in (1, 4, 1, 1, 4)])
        scored = self.results("eval", model, "--data", "valid.tsv", *self.cpu)
        self.assertAlmostEqual(scored["bpc"], trained["valid_bpc"], delta=1e-6)
        features = self.results("features", model, "--data", "valid.tsv", "--out", "f", *self.cpu)
        self.assertEqual(features["units"], 64)  # mean and last
        self.run_program("generate", model, "--bytes", "5", *self.cpu)
        self.run_program("prune", model, "--density", "0.5", "--out", "p.safetensors")
        self.assertEqual([p["blocks"] for p in self.results("graph", "p.safetensors")["patterns"]],
                         [8] * 5)
        self.config("one.yaml", model_cell="mlstm", train_init=model)
        self.refused("its model.layers differs from the config's", "train", "one.yaml", "--out", "x")

    def test_sets_of_features(self):
        """Features and labels that were not written together are refused."""
        features = ["features", "m.safetensors", *self.cpu, "--data"]
        self.run_program(*features, "train.tsv", "--out", "f")
        self.run_program(*features, "train.tsv", "--out", "g")
        self.assertEqual(self.read("f.npy"), self.read("g.npy"))
        self.write("other.tsv", documents(60, 5))
        self.run_program(*features, "other.tsv", "--out", "h")
        self.assertEqual(numpy.load(self.folder / "h.labels.npy").shape, (60,))
        probe = ["probe", *self.cpu, "--test", "f", "--train"]
        self.run_program(*probe, "f")
        self.write("h.labels.npy", self.read("f.labels.npy"))
        self.refused("h.labels.npy: of other features than h.npy; export them again", *probe, "h")
        numpy.save(self.folder / "h.labels.npy", numpy.load(self.folder / "h.labels.npy"))
        self.run_program(*probe, "h")  # the user's own labels have no such number

    def test_memory_of_a_stranger(self):
        """The batch and bptt of a checkpoint's training do not set the memory that a short text takes."""
        content = change_metadata(self.checkpoint, "version", "1")
        header, data = split_safetensors(content)
        header["__metadata__"] |= {"train.batch": "65536", "train.bptt": "65536",
                                   "checksum": "00000000"}
        text = json.dumps(header).encode()
        text = text.ljust(-(-len(text) // 8) * 8)
        content = len(text).to_bytes(8, "little") + text + data
        self.write("large.safetensors",
                   content.replace(b"00000000", f"{zlib.crc32(content):08x}".encode(), 1))
        for command in ["eval"], ["features", "--out", "f"]:
            process = self.start(*command, "large.safetensors", "--data", "valid.tsv", *self.cpu)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            out, err = process.communicate()
            self.assertEqual(process.returncode, 0, err)
            self.assertLess(usage.ru_maxrss, 1 << 20)  # KiB
            if command == ["eval"]:
                bpc = self.eval("--data", "valid.tsv")["bpc"]
                self.assertTrue(out.startswith(f"{bpc:.4f} bits per character"), out)

    def test_scratch_files(self):
        """Temporary files in $TMPDIR never have a name, so a kill leaves none."""
        libc = ctypes.CDLL(None, use_errno=True)
        watch = libc.inotify_init1(os.O_NONBLOCK)
        create = 0x100
        self.assertGreater(libc.inotify_add_watch(watch, str(self.folder).encode(), create), 0)
        self.run_program("eval", "m.safetensors", "--data", "valid.tsv", *self.cpu,
                         env=os.environ | {"TMPDIR": str(self.folder)})
        with self.assertRaises(BlockingIOError):
            os.read(watch, 4096)
        os.close(watch)

    def test_full_disk(self):
        with open("/dev/full", "w") as full:
            for command in (["eval", "m.safetensors", "--data", "valid.tsv", *self.cpu],
                            ["graph", "config.yaml"], ["--help"], ["train", "--help-config"],
                            ["train", "--help"], ["eval", "--version"]):
                done = subprocess.run([cli.PROGRAM, *command], cwd=self.folder, stdout=full, text=True,
                                      stderr=subprocess.PIPE)
                self.assertEqual(done.returncode, 1, command)
                self.assertEqual(done.stderr.splitlines()[-1],
                                 "smallworld: cannot write standard output: No space left on device")
        self.refused("cannot write none/f.npy.tmp", "features", "m.safetensors", "--data",
                     "valid.tsv", "--out", "none/f", *self.cpu)

    def test_bad_checkpoints(self):
        whole, size = self.checkpoint, len(self.checkpoint)
        header = int.from_bytes(whole[:8], "little")
        other = b'{"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}'
        other = other.ljust(72)
        damaged = {
            "empty": (b"", "only 0 bytes"),
            "text": (documents(20, 1), "not a safetensors file"),
            "other program's": (len(other).to_bytes(8, "little") + other + bytes(4),
                                "not written by smallworld"),
            "longer": (whole + b"\0", "corrupt"),
        }
        for length in 7, 8, 100, 8 + header, size // 2, size - 1:
            damaged[f"cut to {length}"] = (whole[:length], ":")
        for at in 0, 9, 100, 8 + header - 60, 8 + header + 5, size // 2, size - 1:
            flipped = bytearray(whole)
            flipped[at] ^= 4
            damaged[f"flipped at {at}"] = (bytes(flipped), ":")
        for name, (content, expected) in damaged.items():
            with self.subTest(name=name):
                self.write("bad.safetensors", content)
                self.refused(expected, "eval", "bad.safetensors", "--data", "valid.tsv", *self.cpu)
        self.write("f.npy", "old")
        for *command, last in (["features", "--data", "valid.tsv", "--out", "f"],
                               ["generate", "--bytes=5"], ["graph", "--json"]):
            self.refused("bad.safetensors: corrupt", *command, last, "bad.safetensors")
            self.refused("cannot open none.safetensors: No such file", *command, last,
                         "none.safetensors")
        self.refused("bad.safetensors: corrupt", "train", "config.yaml", "--out", "run", "--set",
                     "train.init=bad.safetensors")
        (self.folder / "folder.safetensors").mkdir()
        self.refused("folder.safetensors: expected the folder of a run, with last.safetensors", "eval",
                     "folder.safetensors", "--data", "valid.tsv")

    def test_bad_text(self):
        self.write("one.txt", "x")
        self.refused("one.txt: nothing to score: expected at least 2 bytes, found 1", "eval", "m.safetensors", "--data", "one.txt", *self.cpu)
        # A line and a raw text that would fill the memory or the disk.
        self.write("bomb.tsv.gz", gzip.compress(b"1\t" + bytes(80 << 20), 1))
        self.refused("bomb.tsv.gz:1: a line of more than 67108864 bytes", "eval", "m.safetensors",
                     "--data", "bomb.tsv.gz")
        self.write("bomb.txt.gz", gzip.compress(bytes(80 << 20), 9))
        self.refused("bomb.txt.gz: gzip of more than 256 times its size", "eval", "m.safetensors",
                     "--data", "bomb.txt.gz")
        self.refused("cannot open none.txt", "eval", "m.safetensors", "--data", "none.txt")
        self.write("bad.tsv", "1\tfine\nno tab\n")
        self.refused("bad.tsv:2: expected LABEL<TAB>TEXT", "features", "m.safetensors", "--data",
                     "bad.tsv", "--out", "f")

    def test_without_a_gpu(self):
        hidden = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
        self.refused("", "eval", "m.safetensors", "--data", "valid.tsv", "--device", "cuda",
                     env=hidden)
        self.refused("", "train", "config.yaml", "--out", "run", "--device", "cuda", env=hidden)
        self.run_program("eval", "m.safetensors", "--data", "valid.tsv", "--device", "auto",
                         "--threads", "1", env=hidden)

    def test_does_not_fit(self):
        self.refused("does not fit", "train", "config.yaml", "--out", "run", "--set",
                     "model.hidden=131072", "--set", "model.block=128", "--set",
                     "model.graph=dense", "--set", "model.degree=null")


if __name__ == "__main__":
    cli.main(__doc__)
