"""Easy ways in: text without a config, resuming by the run's name, run folders as checkpoints, paths
beside the config, standard input, help wherever it is asked for, man pages and completion.

    /usr/bin/python3 tests/ways_in.py BUILD/smallworld [CLASS.TEST...]
"""

import os
import re
import subprocess
import sys
import unittest
from pathlib import Path

import cli
from cli import Case, documents

ROOT = Path(__file__).resolve().parent.parent


class Data(Case):
    """train --data FILE chooses a config and writes it down."""

    def config_of(self, folder):
        text, section, found = self.read(f"{folder}/config.yaml").decode(), None, {}
        for line in text.splitlines():
            key, _, value = line.strip().partition(": ")
            if line[:1] != " ":
                section = line.rstrip(":")
            else:
                found[f"{section}.{key}"] = value
        return found

    def test_chosen_beside_what_is_set(self):
        """What --set says wins, and what was chosen beside it gives way."""
        self.write("plain.txt", "It was a dark and stormy night. " * 500)
        self.write("long.txt", "It was a dark and stormy night. " * 64000)
        for text, setting in [*(("plain.txt", setting) for setting in ("model.hubs=64", "model.parameters=200000", "model.graph=dense",
                                                                       "model.degree=4", "model.cell=lstm")),
                              *(("long.txt", setting) for setting in ("model.hubs=64", "model.graph=core_periphery", "model.density=0.3",
                                                                      "model.core=0.2", "model.norm=layer"))]:
            self.run_program("train", "--data", text, *self.cpu, "--set", "train.steps=1", "--set", setting, "--out",
                             "set", "--overwrite")
            key, _, value = setting.partition("=")
            if key != "model.parameters":  # which becomes model.hidden
                self.assertEqual(self.config_of("set")[key], value)

    def test_book(self):
        book = "my book's \"\x85\x90"  # with control characters, which YAML refuses or folds
        self.write(f"{book}.txt", "It was a dark and stormy night. " * 500)
        out, err = self.run_program("train", "--data", f"{book}.txt", *self.cpu, "--set",
                                    "train.steps=2", "--set", "model.hidden=64")
        self.assertEqual(out, f"runs/{book}/last.safetensors\n")
        chosen = re.search(r"chosen for 16 kB of text on the CPU:(.*)", err).group(1)
        config = self.config_of(f"runs/{book}")
        self.assertEqual(config["data.train"], r"""["my book's \"\u0085\u0090.txt"]""")
        for setting in chosen.split():
            key, value = setting.split("=")
            self.assertEqual(config[key], value)
        self.assertEqual((config["train.steps"], config["model.hidden"]), ("2", "64"))
        self.assertEqual((config["train.epochs"], config["train.minutes"]), ("null", "null"))
        self.assertNotIn("model.hidden", chosen)  # given
        # The written config gives the same run.
        self.run_program("train", f"runs/{book}/config.yaml", "--out", "again")
        self.assert_same_run(f"runs/{book}", "again")

    def test_name_that_is_no_text(self):
        """A name that is not UTF-8 stands in config.yaml as YAML's binary data, and can be resumed from."""
        with open(os.fsencode(self.folder) + b"/\xff\xfe.txt", "w") as file:
            file.write("It was a dark and stormy night. " * 500)
        how = ["--out", "run", *self.cpu, "--set", "model.hidden=64", "--set"]
        self.run_program("train", "--data", os.fsdecode(b"\xff\xfe.txt"), *how, "train.steps=2")
        self.assertEqual(self.config_of("run")["data.train"], '[!!binary "//4udHh0"]')
        self.assertEqual(self.results("train", "--resume", "run", "--set", "train.steps=4")["steps"], 4)
        self.refused("--set: data.train: expected base64", "train", "config.yaml", "--set",
                     "data.train=[!!binary a!]", status=2)

    def test_limits_and_sizes(self):
        self.write("large.txt", os.urandom(1 << 20) * 3)
        for size, units in ("train.tsv", 192), ("large.txt", 384):
            _, err = self.run_program("train", "--data", size, *self.cpu, "--out", f"run-{units}",
                                      "--set", "train.minutes=0.0001", "--set",
                                      "model.embedding=4", "--set", "train.bptt=8")
            self.assertIn(f"model.hidden={units} ", err)
            self.assertNotIn("epochs", err.split("chosen")[1].split("\n")[0])
        _, err = self.run_program("train", "--data", "train.tsv", "--data", "valid.tsv", *self.cpu,
                                  "--out", "dense", "--set", "model.graph=dense", "--set",
                                  "train.steps=1", "--set", "model.hidden=16")
        self.assertNotIn("density", err)
        self.assertEqual(self.config_of("dense")["data.train"], '["train.tsv", "valid.tsv"]')

    def test_refusals(self):
        for expected, status, *arguments in [
                ("nowhere.txt", 1, "--data", "nowhere.txt"),
                ("a config or --data, not both", 2, "config.yaml", "--data", "train.tsv"),
                ("train.tsv: expected a CONFIG.yaml; --data train.tsv trains on a text", 2, "train.tsv"),
                ("expected --set train.lr=0.1", 2, "config.yaml", "--lr", "0.1"),
                ("expected --set run.seed=7", 2, "--data", "train.tsv", "--seed=7"),
                ("--resume: not together with --init", 2, "--resume", "run", "--init", "run"),
                ("nowhere: ", 1, "--data", "train.tsv", "--init", "nowhere"),
                ("expected a CONFIG.yaml, or --data FILE", 2),
                ("--set: model.hiden: unknown key; the nearest is model.hidden", 2, "--data",
                 "train.tsv", "--set", "model.hiden=8"),
                ("expected the run folder to resume", 2, "--data", "train.tsv", "--resume")]:
            self.refused(expected, "train", *arguments, status=status)

    def test_many_files_and_folders(self):
        self.write("texts/a.txt", b"Some text. " * 700)
        self.write("texts/b.txt", b"Other text. " * 700)
        how = ["--set", "train.steps=2", *self.cpu, "--out"]
        for name, *files in [("folder", "texts"), ("files", "texts/a.txt", "texts/b.txt")]:
            _, err = self.run_program("train", "--data", *files, *how, name)
            self.assertIn("chosen for 17 kB of text", err)
        self.assertEqual(self.config_of("folder")["data.train"], '["texts"]')
        self.assertEqual(self.config_of("files")["data.train"], '["texts/a.txt", "texts/b.txt"]')
        self.assertEqual(self.read("folder/last.safetensors"), self.read("files/last.safetensors"))

    def test_init(self):
        """--init takes over the model, but for what --set says, and with a config the weights alone."""
        self.results("train", "config.yaml", "--out", "first", "--set", "train.steps=2")
        how = ["--init", "first", *self.cpu, "--set", "train.steps=1", "--set", "train.lr=1e-30"]
        _, err = self.run_program("train", "--data", "valid.tsv", *how, "--out", "second")
        self.assertNotIn("model.", err.split("chosen")[1].split("\n")[0])
        one, other = self.config_of("first"), self.config_of("second")
        for key in one:
            if key.startswith("model."):
                self.assertEqual(one[key], other[key], key)
        self.assertEqual(other["train.init"], '"first"')
        bpc = [self.results("eval", run, "--data", "valid.tsv", *self.cpu)["bpc"]
               for run in ("first", "second")]
        self.assertAlmostEqual(bpc[0], bpc[1], places=3)
        self.run_program("train", "config.yaml", *how, "--out", "third")
        self.assertEqual(self.config_of("third")["train.init"], '"first"')
        _, err = self.run_program("train", "--data", "valid.tsv", *how, "--set", "model.hidden=64", "--out",
                                  "fourth", status=1)
        self.assertIn("first: its model.hidden differs", err)

    def test_standard_input(self):
        for name, text in ("documents", documents(60, 1)), ("raw", b"All of this is raw text. " * 99):
            self.write("in", text)
            with open(self.folder / "in", "rb") as file:
                _, err = self.run_program("train", "--data", "-", *self.cpu, "--out", name, "--set",
                                          "train.steps=1", "--set", "train.bptt=4", stdin=file)
            self.assertIn("chosen for a text of unknown size on the CPU:", err)
            count = 60 if name == "documents" else 1
            self.assertIn(f"{count} documents" if count == 1 else "documents", err)
        with open(self.folder / "train.tsv", "rb") as file:
            piped = self.results("eval", "documents", "--data", "-", *self.cpu, stdin=file)
        named = self.results("eval", "documents", "--data", "train.tsv", *self.cpu)
        self.assertEqual((piped["bpc"], piped["bytes"]), (named["bpc"], named["bytes"]))
        self.refused("/dev/zero: expected a file or a pipe, found a device", "eval", "documents", "--data", "/dev/zero",
                     *self.cpu)
        self.refused("standard input: empty", "eval", "documents", "--data", "-", *self.cpu,
                     stdin=subprocess.DEVNULL)


class Runs(Case):
    def test_resume_by_folder(self):
        whole = self.results("train", "config.yaml", "--out", "whole", "--set", "train.steps=20",
                             "--set", "train.schedule=constant")
        self.results("train", "config.yaml", "--out", "parts", "--set", "train.steps=9", "--set",
                     "train.schedule=constant")
        (self.folder / "config.yaml").unlink()
        parts = self.results("train", "--resume", "parts", "--set", "train.steps=20")
        self.assertEqual(parts["steps"], 20)
        self.assertEqual(self.read("whole/last.safetensors"), self.read("parts/last.safetensors"))
        self.assertEqual(whole["valid_bpc"], parts["valid_bpc"])
        self.results("train", "parts", "--resume", "--set", "train.steps=24", "--set",
                     "train.valid_every=2", "--set", "train.log_every=1")
        self.refused("train.lr: cannot change on resuming", "train", "--resume", "parts", "--set",
                     "train.lr=1")
        self.refused("nowhere", "train", "--resume", "nowhere")

    def test_folder_serves_as_checkpoint(self):
        self.train()
        for command in [["eval", "--data", "valid.tsv"], ["generate", "--bytes", "20"],
                        ["features", "--data", "valid.tsv", "--out", "f"], ["graph"]]:
            name, *rest = command
            device = [] if name == "graph" else self.cpu
            results = [self.results(name, model, *rest, *device)
                       for model in ("run", "run/", "run/last.safetensors")]
            for result in results:
                for key in cli.TIMED:
                    result.pop(key, None)
            self.assertEqual(results[0], results[2])
            self.assertEqual(results[1], results[2])
        self.results("train", "config.yaml", "--out", "second", "--set", "train.init=run")
        self.write("empty/x", "")
        self.refused("empty: expected the folder of a run", "eval", "empty", "--data", "valid.tsv")

    def test_paths_beside_the_config(self):
        for name in "train.tsv", "valid.tsv", "config.yaml":
            self.write(f"project/{name}", self.read(name))
            (self.folder / name).unlink()
        self.results("train", "project/config.yaml", "--out", "run")
        self.assertIn(b'"project/train.tsv"', self.read("run/config.yaml"))
        self.results("train", "--resume", "run", "--set", "train.steps=14")
        self.write("train.tsv", documents(30, 5))  # the file in the current folder comes first
        self.results("train", "project/config.yaml", "--out", "other")
        self.assertIn(b'train: ["train.tsv"]', self.read("other/config.yaml"))


class Help(Case):
    def test_help_anywhere(self):
        for command in cli.COMMANDS:
            expected = self.run_program(command, "--help")
            self.assertEqual(self.run_program(command, "-h"), expected)
            self.assertEqual(self.run_program("help", command), expected)
            self.assertEqual(self.run_program(command, "x", "-h"), expected)
        self.refused("unknown command 'trian'; the nearest is 'train'", "help", "trian", status=2)

    def test_nothing_near(self):
        out, err = self.run_program("xyzzy", status=2)
        self.assertIn("smallworld: unknown command 'xyzzy'\n", err)
        self.refused("--set: colour: unknown key; 'smallworld train --help-config' lists them",
                     "train", "config.yaml", "--set", "colour=red", status=2)

    def test_progress_fits_the_terminal(self):
        for columns in 30, 60:
            text = self.on_terminal("train", "config.yaml", "--out", f"run{columns}",
                                    columns=columns)
            shown = re.findall(r"\r\x1b\[K(step [^\r]*)", text)
            self.assertTrue(shown)
            self.assertLess(max(map(len, shown)), columns)


class Manual(Case):
    """Man pages and completion, made from --help."""

    def test_pages(self):
        made = subprocess.run([ROOT / "scripts" / "make_manual.sh", cli.PROGRAM, self.folder / "manual"],
                              capture_output=True, text=True, check=False)
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        pages = sorted(path.name for path in (self.folder / "manual").glob("*.1"))
        self.assertEqual(pages, sorted(["smallworld.1",
                                        *(f"smallworld-{name}.1" for name in self.commands()),
                                        *(f"smallworld-bench-{name}.1" for name in self.benchmarks())]))
        for page in pages:
            text = self.read(f"manual/{page}").decode()
            for section in "NAME", "SYNOPSIS":
                self.assertIn(f".SH {section}\n", text)
        train = self.read("manual/smallworld-train.1").decode()
        self.assertIn("\\-\\-help\\-config", train)
        self.assertIn("smallworld train configs/quickstart.yaml", train.replace("\\-", "-"))

    def commands(self):
        return re.findall(r"(?m)^  ([a-z]+) ", self.run_program("--help")[0])

    def benchmarks(self):
        return re.findall(r"(?m)^  ([a-z]+) ", self.run_program("bench", "--help")[0])

    def complete(self, *words):
        script = (f"PATH={Path(cli.PROGRAM).parent}:$PATH; source {ROOT}/scripts/smallworld.bash; "
                  f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; "
                  "_smallworld; printf '%s\\n' \"${COMPREPLY[@]}\"")
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False,
                              cwd=self.folder)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return done.stdout.split()

    def test_completion(self):
        self.assertEqual(self.complete("smallworld", "tr"), ["train"])
        self.assertEqual(sorted(self.complete("smallworld", "")),
                         sorted([*self.commands(), "help"]))
        self.assertEqual(self.complete("smallworld", "train", "--over"), ["--overwrite"])
        self.assertEqual(self.complete("smallworld", "eval", "m", "--ex"), ["--exact"])
        self.assertIn("config.yaml", self.complete("smallworld", "train", "conf"))
        self.assertIn("train.lr=", self.complete("smallworld", "train", "x", "--set", "train.lr"))
        self.assertEqual(self.complete("smallworld", "help", "gen"), ["generate"])
        self.assertEqual(self.complete("smallworld", "bench", ""), self.benchmarks())
        self.assertEqual(self.complete("smallworld", "bench", "train", "--ex"), ["--explain"])
        self.assertEqual(self.complete("smallworld", "train", "--ex"), [])


if __name__ == "__main__":
    cli.PROGRAM = str(Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
