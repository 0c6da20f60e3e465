"""Options, exit statuses, bad input and odd input.

    /usr/bin/python3 tests/cli_usage.py BUILD/smallworld [CLASS.TEST...]
"""

import gzip
import lzma

import cli
from cli import COMMANDS, documents, settings
import needs

numpy = needs.module("numpy")


class Usage(cli.Case):
    def test_help_and_version(self):
        for option in "--help", "-h", "help":
            out, err = self.run_program(option)
            self.assertEqual(err, "")
            for command in COMMANDS:
                self.assertRegex(out, rf"(?m)^  {command} ")
        version = self.run_program("--version")[0]
        self.assertRegex(version, r"^smallworld \d+\.\d+\.\d+\nCPU: \S.*\nCUDA: \S")
        for command in COMMANDS:
            out, err = self.run_program(command, "--help")
            self.assertEqual(err, "")
            self.assertIn(f"Usage: smallworld {command} ", out)
            self.assertIn("Example:\n", out)
            self.assertEqual(self.run_program(command, "--version")[0], version)

    def test_help_config(self):
        out, err = self.run_program("train", "--help-config")
        self.assertEqual(err, "")
        for section, keys in settings().items():
            self.assertRegex(out, rf"(?m)^{section}:$")
            for key in keys:
                self.assertRegex(out, rf"(?m)^  {key} \(.+, .+\): \S")

    def test_bad_usage(self):
        for expected, *arguments in [
            ("expected a command",),
            ("unknown command 'trian'; the nearest is 'train'", "trian"),
            ("unrecognized option '--fast'", "train", "--fast"),
            ("expected a CONFIG.yaml", "train"),
            ("expected one CONFIG.yaml, got also 'b'", "train", "a", "b"),
            ("--resume: not together with --overwrite", "train", "a", "--resume", "--overwrite"),
            ("--set model.hidden: expected key.path=value", "train", "config.yaml", "--set",
             "model.hidden"),
            ("--set: modle.hidden: unknown key; the nearest is model.hidden", "train",
             "config.yaml", "--set", "modle.hidden=8"),
            ("--batch: train.batch: expected an integer", "train", "config.yaml", "--batch", "0"),
            ("--device: run.device: expected one of: auto cpu cuda, got 'tpu'", "train",
             "config.yaml", "--device", "tpu"),
            ("expected a CHECKPOINT", "eval"),
            ("expected --data FILE...", "eval", "a.safetensors"),
            ("--limit: expected an integer from 2", "eval", "a", "--data", "b", "--limit", "1"),
            ("--limit: expected an integer", "eval", "a", "--data", "b", "--limit", "9" * 30),
            ("--dynamic-...: expected --dynamic beside it", "eval", "a", "--data", "b", "--dynamic-rate", "1"),
            ("--dynamic-decay: expected a number from 0 to 1", "eval", "a", "--data", "b", "--dynamic",
             "--dynamic-decay", "2"),
            ("expected --out PREFIX", "features", "a", "--data", "b"),
            ("--pool: expected last, mean or max, or different ones joined by commas; got 'sum'",
             "features", "a", "--pool", "sum"),
            ("--pool: expected last, mean or max", "features", "a", "--pool", "max,mean,max"),
            ("--out: expected the beginning of files' names, got ''", "features", "a", "--data",
             "b", "--out", ""),
            ("--out: expected the beginning of files' names, got 'f/'", "features", "a", "--data",
             "b", "--out", "f/"),
            ("--out: expected a folder, got ''", "train", "config.yaml", "--out", ""),
            ("--threads: run.threads: expected an integer at least 0, at most 1024, got '60000'",
             "train", "config.yaml", "--threads", "60000"),
            ("--state: expected one of: cell hidden; got ''", "features", "a", "--state", ""),
            ("--temperature: expected a number", "generate", "a", "--temperature", "nan"),
            ("--prompt: expected at least one byte", "generate", "a", "--prompt", ""),
            ("--bytes: expected an integer", "generate", "a", "--bytes", "1e3"),
            ("expected a CONFIG.yaml or CHECKPOINT.safetensors", "graph"),
            ("expected --density SHARE", "prune", "a", "--out", "b"),
            ("--density: expected a number", "prune", "a", "--density", "1.5"),
            ("expected --out FILE", "prune", "a", "--density", "0.5"),
            ("expected --out DIR", "export", "a"),
            ("--to: expected torch, got 'onnx'", "export", "a", "--out", "b", "--to", "onnx"),
        ]:
            with self.subTest(arguments=arguments):
                self.refused(expected, *arguments, status=2)


class BadInput(cli.Case):
    def refused_config(self, expected, text):
        self.write("bad.yaml", text)
        self.refused(expected, "train", "bad.yaml", "--out", "run")

    def test_configs(self):
        self.refused("cannot open none.yaml: No such file", "train", "none.yaml")
        self.refused("cannot read .: Is a directory", "train", ".")
        self.refused("cannot read /proc/self/mem: ", "train", "/proc/self/mem")
        self.refused_config("bad.yaml: empty", "")
        self.refused_config("bad.yaml: data.train: expected the files", "{}")
        self.refused_config("bad.yaml: data.train: expected the files", "data: {train: []}")
        self.refused_config("bad.yaml:2: not valid YAML: found a character that cannot begin a word; lines are indented by "
                            "spaces, not by tabs", "model:\n\thidden: 8\n")
        self.refused_config("bad.yaml:1: model: expected keys of this section, such as cell", "model: 64\n")
        self.refused_config("bad.yaml:1: not valid YAML", b"\xff\xfe\x00")

    def test_many_files(self):
        """A folder or a list stands for its files in order, plain or compressed."""
        parts = [documents(200, seed) for seed in range(4)]
        half = len(parts[2]) // 2
        self.write("texts/1.tsv", parts[0])
        self.write("texts/2.tsv.gz", gzip.compress(parts[1]))
        self.write("texts/3/a.tsv.xz",
                   lzma.compress(parts[2][:half]) + lzma.compress(parts[2][half:]))
        self.write("texts/4.tsv", parts[3])
        self.write("texts/.hidden", b"not read")
        self.write("all.tsv", b"".join(parts))
        self.write("lists/all.list", "../texts/1.tsv\n../texts/2.tsv.gz\r\n\n../texts/3\n"
                                     "../texts/4.tsv")
        for name in "all.tsv", "texts", "lists/all.list":
            self.config("config.yaml", data_train=name)
            self.run_program("train", "config.yaml", "--out", name + ".run")
            self.assertEqual(self.read(name + ".run/last.safetensors"),
                             self.read("all.tsv.run/last.safetensors"))
        for name, content, expected in [
            ("cut.xz", lzma.compress(parts[0])[:-1], "cut.xz: xz cut short"),
            ("bad.xz", lzma.compress(parts[0])[:-30] + b"\0" * 30, "bad.xz: corrupt xz"),
            ("plain.xz", parts[0], "plain.xz: not an xz file, though its name ends in .xz"),
            ("none.list", "\n", "none.list: expected a file on each line, found none"),
            ("lost.list", "lost\n", "cannot open lost: No such file"),
            ("loop.list", "loop.list\n", "folders and lists more than 16 deep"),
            ("empty/.hidden", "x", "empty: expected a folder with files, found none")]:
            self.write(name, content)
            self.config("bad.yaml", data_train=name.removesuffix("/.hidden"))
            self.refused(expected, "train", "bad.yaml", "--out", "run")

    def test_data(self):
        for name, expected in ("none.txt", "cannot open none.txt: No such file or directory"), ("/proc/self/mem", "cannot read /proc"):
            for key, value in ("data_train", name), ("data_valid", ["valid.tsv", name]), ("data_exclude", name):
                self.config("bad.yaml", **{key: value})
                self.refused(expected, "train", "bad.yaml", "--out", "run")
        for size, status in (32, 1), (33, 0):
            self.write("just.txt", b"x" * size)
            self.config("just.yaml", data_train="just.txt", train_steps=1)
            _, err = self.run_program("train", "just.yaml", status=status)
            self.assertEqual("32 bytes are less than one minibatch" in err, bool(status))

    def test_nothing_left(self):
        self.config("bad.yaml", data_exclude="train.tsv")
        self.refused("data.train: 0 bytes are less than one minibatch", "train", "bad.yaml",
                     "--out", "run")

    def test_names(self):
        """Messages are one line, whatever the name of a file."""
        self.refused("cannot open no?such\u00e9: ", "train", "no\nsuch\u00e9")
        self.refused("unknown key", "train", "config.yaml", "--set", "a\nb=1", status=2)
        long = "/".join(["d" * 200] * 15)  # longer than the buffer that messages once had
        self.refused(f"cannot open {long}: No such file", "train", long)
        self.refused(f"cannot open {long}: No such file", "eval", long, "--data", "a")
        (self.folder / long).mkdir(parents=True)
        self.write(f"{long}/bad.yaml", "model: {hidden: 7}")
        self.refused(f"{long}/bad.yaml:1: model.hidden: expected an integer at least 8", "train",
                     f"{long}/bad.yaml")
        self.config("file.yaml", model_graph="file", model_degree=None)
        self.refused("file.yaml:1: model.graph: file: expected model.graph_file to name it", "train", "file.yaml")


class OddInput(cli.Case):
    def test_documents(self):
        odd = b"\n".join([b"0\t", b"1\t\r", b"-1\t\x00\x00", b"0\t\xff\xfe\x80", b"1\ttab\tinside",
                          b"+7\t a ", b"0\tline\r", b"1\t" + b"long " * 400, b"0\tno end"])
        self.write("odd.tsv", odd)
        self.config("odd.yaml", data_train=["odd.tsv", "train.tsv"], data_valid="odd.tsv")
        result = self.results("train", "odd.yaml", "--out", "run")
        self.assertTrue(0 < result["valid_bpc"] < 16)
        lengths = [0, 0, 2, 3, 10, 3, 4, 2000, 6]
        scored = self.results("eval", "run/last.safetensors", "--data", "odd.tsv", *self.cpu)
        self.assertEqual(scored["bytes"], sum(lengths) + 3 * len(lengths) - 1)
        self.run_program("features", "run/last.safetensors", "--data", "odd.tsv", "--out", "f",
                         *self.cpu)
        features = numpy.load(self.folder / "f.npy")
        self.assertEqual(features.shape, (9, 64))
        self.assertTrue((features[0] == features[1]).all())  # both hold nothing but framing
        self.assertTrue(numpy.isfinite(features).all())

    def test_raw_bytes(self):
        self.write("raw.bin", bytes(range(256)) * 9)
        self.write("raw.gz", gzip.compress(b"\r\n\x00" * 500))
        self.config("raw.yaml", data_train=["raw.bin", "raw.gz"], data_valid=None)
        self.run_program("train", "raw.yaml", "--out", "run")
        scored = self.results("eval", "run/last.safetensors", "--data", "raw.bin", "raw.gz",
                              *self.cpu)
        self.assertEqual(scored["bytes"], 256 * 9 + 1500 - 1)

    def test_graph_in_parts(self):
        self.write("edges", "0 1\n1 0\n")
        self.config("parts.yaml", model_graph="file", model_graph_file="edges", model_degree=None)
        _, err = self.run_program("train", "parts.yaml", "--out", "run")
        self.assertRegex(err, r"(?m)^smallworld: warning: the graph of gates has 3 components")
        self.assertEqual(self.results("graph", "parts.yaml")["patterns"][0]["components"], 3)
        # The pattern is in the checkpoint, so the file is not needed again, even for resuming.
        (self.folder / "edges").unlink()
        self.results("eval", "run/last.safetensors", "--data", "valid.tsv", *self.cpu)
        self.run_program("train", "parts.yaml", "--out", "run", "--resume", "--set",
                         "train.steps=15")
        mask = numpy.ones((4, 4), bool)
        numpy.save(self.folder / "mask.npy", mask)
        self.config("mask.yaml", model_graph="file", model_graph_file="mask.npy", model_degree=None)
        _, err = self.run_program("train", "mask.yaml", "--out", "masked")
        self.assertNotIn("warning", err)

    def test_graph_file_of_hubs(self):
        mask = numpy.ones((4, 2), bool)
        mask[3, 0] = False
        numpy.save(self.folder / "mask.npy", mask)
        self.config("hubs.yaml", model_cell="mlstm", model_hubs=16, model_graph="file",
                    model_graph_file="mask.npy", model_degree=None)
        step, gates = self.results("graph", "hubs.yaml")["patterns"]
        self.assertEqual([step["blocks"], gates["blocks"]], [7, 7])
        for name in "clustering", "path_mean", "path_max", "unreachable":
            self.assertIsNone(step[name])
        self.run_program("train", "hubs.yaml", "--out", "run")
        (self.folder / "mask.npy").unlink()
        stages = self.results("graph", "run/last.safetensors")["patterns"]
        self.assertEqual([stage["blocks"] for stage in stages], [7, 7])

    def test_no_validation(self):
        self.config("none.yaml", data_valid=None, data_valid_fraction=0)
        result = self.results("train", "none.yaml", "--out", "run")
        self.assertIsNone(result["valid_bpc"])
        self.assertFalse((self.folder / "run" / "best.safetensors").exists())
        self.assertEqual(self.results("train", "none.yaml", "--out", "run", "--resume"), result)


if __name__ == "__main__":
    cli.main(__doc__)
