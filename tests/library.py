"""libsmallworld and its Python module, installed as anybody would, against the program and NumPy.

    /usr/bin/python3 tests/library.py BUILD/smallworld

Installs the build into a temporary prefix, compiles a C program against it by way of pkg-config, and
imports the module from there. Skipped (77) without NumPy.
"""

import base64
import copy
import gc
import json
import os
import pickle
import random
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import warnings
from pathlib import Path

import needs

numpy = needs.module("numpy")

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = PREFIX = FOLDER = smallworld = None  # set by main, before any test

CONFIG = """
run: {device: cpu, threads: 1}
data: {train: train.tsv, valid: train.tsv}
model: {hidden: 64, block: 8, degree: 4, embedding: 8, init_noise: 0.3}
train: {batch: 4, bptt: 16, steps: 30, warmup: 2, lr: 0.02, average: 0.5}
"""
TEXTS = ["The cat sat.", "A dog ran on a mat, on a mat, on a mat.", "", "x" * 200,
         "A line\nbreak, an \u00e9 and a \x00."]

C_PROGRAM = r"""
#include <smallworld.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    smallworld_model *m = smallworld_load(argv[1], NULL);
    if (!m) {
        fprintf(stderr, "%s\n", smallworld_error());
        return 1;
    }
    const uint8_t *text = (const uint8_t *)"\n The cat sat. ";
    size_t length = strlen((const char *)text);
    float bits[64];
    double sum = 0;
    if (!smallworld_score(m, &text, &length, 1, bits) || !isnan(bits[0])) return 1;
    for (size_t i = 1; i < length; i++) sum += bits[i];
    printf("%s %.6f\n", smallworld_version(), sum / (double)(length - 1));
    smallworld_free(m);
    return 0;
}
"""


def run(*command, **how):
    return subprocess.run([str(word) for word in command], check=False, capture_output=True,
                          text=True, **how)


def program(*arguments):
    done = run(PROGRAM, *arguments, cwd=FOLDER)
    assert done.returncode == 0, done.stderr
    return done.stdout


class Installed(unittest.TestCase):
    def test_c_program(self):
        source = FOLDER / "program.c"
        source.write_text(C_PROGRAM)
        folder = next(PREFIX.glob("lib*/**/pkgconfig"))
        environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
        flags = run("pkg-config", "--cflags", "--libs", "smallworld", env=environment)
        self.assertEqual(flags.returncode, 0, flags.stderr)
        built = run("cc", "-std=c17", "-Wall", "-Wextra", "-Werror", source, "-o", FOLDER / "program",
                    *flags.stdout.split(), f"-Wl,-rpath,{folder.parent}", "-lm")
        self.assertEqual(built.returncode, 0, built.stderr)
        done = run(FOLDER / "program", FOLDER / "m.safetensors")
        self.assertEqual(done.returncode, 0, done.stderr)
        version, bits = done.stdout.split()
        self.assertEqual(version, smallworld.version())
        self.assertEqual(version, smallworld.__version__)
        self.assertAlmostEqual(float(bits), MODEL.bits_per_character("The cat sat."), places=4)
        self.assertIn(f"{version}\n", run("pkg-config", "--modversion", "smallworld",
                                          env=environment).stdout)
        refused = run(FOLDER / "program", FOLDER / "missing.safetensors")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("missing.safetensors", refused.stderr)
        compiled = run("c++", "-fsyntax-only", "-x", "c++", PREFIX / "include" / "smallworld.h")
        self.assertEqual(compiled.returncode, 0, compiled.stderr)

    def test_exported_names(self):
        library = next(PREFIX.glob("lib*/**/libsmallworld.so.0"))
        names = [line.split()[-1] for line in
                 run("nm", "-D", "--defined-only", library).stdout.splitlines()]
        self.assertTrue(names)
        self.assertEqual([name for name in names if not name.startswith("smallworld_")], [])


class Models(unittest.TestCase):
    def test_facts(self):
        self.assertEqual(MODEL.units, 64)
        self.assertRegex(repr(MODEL), r"^<smallworld.Model: 64 units, [\d,]+ parameters, CPU .*>$")
        self.assertIn("CPU", MODEL.device)
        described = run(PROGRAM, "graph", "m.safetensors", "--json", cwd=FOLDER)
        self.assertEqual(described.returncode, 0)
        self.assertGreater(MODEL.parameters, 64 * 256)

    def test_score_is_evals(self):
        text = (b"The cat sat on a mat. " * 40)[:700]
        (FOLDER / "raw.txt").write_bytes(text)
        result = json.loads(program("eval", "m.safetensors", "--data", "raw.txt", "--device", "cpu",
                                    "--threads", "1", "--exact", "--json"))
        self.assertAlmostEqual(MODEL.bits_per_character(text, framed=False), result["bpc"], places=5)
        self.assertEqual(result["bytes"], len(text) - 1)

    def test_texts_do_not_depend_on_each_other(self):
        for alone, among in zip([MODEL.score(text)[0] for text in TEXTS], MODEL.score(TEXTS)):
            numpy.testing.assert_array_equal(alone, among)
        many = MODEL.features(TEXTS * 20)  # more than are read side by side
        numpy.testing.assert_array_equal(many, numpy.tile(MODEL.features(TEXTS), (20, 1)))

    def test_features_are_the_programs(self):
        lines = [text for text in TEXTS if "\n" not in text]
        (FOLDER / "texts.tsv").write_text("".join(f"{i}\t{text}\n" for i, text in enumerate(lines)))
        for state in MODEL.STATES:
            for pool in (*MODEL.POOLS, "max,last", "mean,last"):
                program("features", "m.safetensors", "--data", "texts.tsv", "--out", "f", "--state",
                        state, "--pool", pool, "--device", "cpu", "--threads", "1")
                numpy.testing.assert_allclose(MODEL.features(lines, state=state, pool=pool),
                                              numpy.load(FOLDER / "f.npy"), rtol=1e-6, atol=1e-7)

    def test_decimal_comma(self):
        """A host whose locale has a decimal comma loads, scores, trains and predicts as any other."""
        folder = FOLDER / "locales"
        folder.mkdir()
        if run("localedef", "-i", "de_DE", "-f", "UTF-8", folder / "de_DE.UTF-8").returncode:
            self.skipTest("no locales")
        (FOLDER / "comma.py").write_text(
            "import locale, sys\n"
            "locale.setlocale(locale.LC_ALL, 'de_DE.UTF-8')\n"
            "assert locale.localeconv()['decimal_point'] == ','\n"
            "import smallworld\n"
            "model = smallworld.Model.load('m.safetensors', device='cpu', threads=1)\n"
            "model = smallworld.train('config.yaml', 'comma', steps=3, lr=0.01)\n"
            "texts = [f'the {word} cat {i}' for i in range(12) for word in ('x', 'yy')]\n"
            "probe = smallworld.Probe.fit(model, texts, [-1, 1] * 12)\n"
            "probe.save('comma.probe.safetensors')\n"
            "print(sorted(model.predict('the x cat', 'comma.probe.safetensors')[0]))\n")
        done = run(sys.executable, "comma.py", cwd=FOLDER,
                   env={**os.environ, "LOCPATH": str(folder), "PYTHONPATH": str(Path(smallworld.__file__).parents[1])})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout, "['-1', '1']\n")

    def test_probe_labels(self):
        """Labels are taken as they are, and a saved probe is whole or not there."""
        texts = [f"the {word} cat {i}" for i in range(12) for word in ("x", "yy")]
        probe = smallworld.Probe.fit(MODEL, ["label", *texts], ["text", *["text", "label"] * 12])
        self.assertEqual(probe.result["train_documents"], 25)
        other = copy.copy(probe)
        del probe
        other.save(FOLDER / "other.probe.safetensors")
        self.assertEqual(sorted(MODEL.predict("the x cat", FOLDER / "other.probe.safetensors")[0]), ["label", "text"])
        numbers = smallworld.Probe.fit(MODEL, texts, [0.0, 1.0] * 12)
        self.assertEqual(sorted(MODEL.predict("the x cat", numbers)[0]), ["0.0", "1.0"])
        for wrong, message in ((["pos\tx", "neg"] * 12, "expected a label without tabs"), (["", "a"] * 12, "label")):
            with self.assertRaisesRegex(smallworld.Error, message):
                smallworld.Probe.fit(MODEL, texts, wrong)
        with self.assertRaisesRegex(smallworld.Error, "--minutes"):  # bad usage has its reason too
            smallworld.classify("rows.csv", "out", minutes="many")

    def test_train_probe_and_classify(self):
        """What the program does, from Python: the same model, probe and errors."""
        rows = [(f"the {'xyz'[i % 2] * (i % 7 + 1)} cat sat on mat {i}", "good" if i % 2 else "bad") for i in range(80)]
        (FOLDER / "rows.csv").write_text("what,how\n" + "".join(f"{text},{label}\n" for text, label in rows))
        trained = smallworld.train(FOLDER / "config.yaml", FOLDER / "by-python", steps=20,
                                   **{"data.train": str(FOLDER / "train.tsv"), "data.valid": str(FOLDER / "train.tsv")})
        program("train", "config.yaml", "--out", "by-program", "--set", "train.steps=20")
        self.assertEqual(trained.units, 64)
        there = [smallworld.Model.load(FOLDER / f"by-{one}/last.safetensors", device="cpu", threads=1)
                 for one in ("python", "program")]
        numpy.testing.assert_array_equal(*(model.features(TEXTS) for model in there))
        with self.assertRaisesRegex(TypeError, "expected the name of a setting, such as lr or model.hidden, got 'oops'"):
            smallworld.train(FOLDER / "config.yaml", oops=1)
        with self.assertRaisesRegex(smallworld.Error, "holds a run"):
            smallworld.train(FOLDER / "config.yaml", FOLDER / "by-python")

        texts, labels = zip(*rows)
        probe = smallworld.Probe.fit(MODEL, texts, labels)
        probe.save(FOLDER / "saved.probe.safetensors")
        said = MODEL.predict(texts, probe)
        self.assertEqual(said, MODEL.predict(texts, FOLDER / "saved.probe.safetensors"))
        wrong = sum(next(iter(likely)) != label for likely, label in zip(said, labels))
        self.assertAlmostEqual(probe.result["error"], 100 * wrong / 80)
        with self.assertRaisesRegex(ValueError, "labels: expected 80, got 1"):
            smallworld.Probe.fit(MODEL, texts, ["good"])

        made = smallworld.classify(FOLDER / "rows.csv", FOLDER / "classes", model=MODEL, text_column="what",
                                   label_column="how")
        self.assertEqual(made, json.loads((FOLDER / "classes/results.json").read_text()))
        self.assertEqual(made["class_names"], ["bad", "good"])
        with self.assertRaisesRegex(smallworld.Error, "rows.csv:1: expected the names of columns"):
            smallworld.classify(FOLDER / "rows.csv", FOLDER / "classes", model=MODEL, overwrite=True)

    def test_example(self):
        """examples/reviews.py from a table to a picture."""
        (FOLDER / "example").mkdir()
        text = (ROOT / "examples" / "reviews.py").read_text().replace("steps=200", "steps=20")
        (FOLDER / "example" / "reviews.py").write_text(text)
        rows = [f"{i % 2}\tthe {'xyz'[i % 2] * (i % 7 + 1)} cat sat on mat {i}\n" for i in range(100)]
        (FOLDER / "example" / "rows.tsv").write_text("".join(rows))
        done = run(sys.executable, "reviews.py", "rows.tsv", "out", cwd=FOLDER / "example",
                   env={**os.environ, "PYTHONPATH": str(Path(smallworld.__file__).parents[1])})
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue((FOLDER / "example/out/picture.svg").read_text().startswith("<svg"))

    def test_predict_is_the_programs(self):
        names, cpu = ["bad", "good", "mixed"], ("--device", "cpu", "--threads", "1")
        for count in 2, 3:
            lines = [f"{names[i % count]}\tthe {'xyz'[i % count] * (i % 7 + 1)} cat" for i in range(60)]
            (FOLDER / "named.tsv").write_text("".join(line + "\n" for line in lines))
            program("features", "m.safetensors", "--data", "named.tsv", "--out", "n", *cpu)
            program("probe", "--train", "n", "--test", "n", "--out", "p", *cpu)
            theirs = program("predict", "m.safetensors", "--probe", "p", "--text", "named.tsv", *cpu)
            ours = MODEL.predict([line.split("\t")[1] for line in lines], FOLDER / "p.probe.safetensors")
            for line, likely in zip(theirs.splitlines(), ours, strict=True):
                said = json.loads(line)
                self.assertEqual(next(iter(likely)), said["class"])
                for name, value in said["probability"].items():
                    self.assertAlmostEqual(likely[name], value, places=5)
        with self.assertRaisesRegex(smallworld.Error, "a model without classes"):
            MODEL.predict("a")
        with self.assertRaisesRegex(smallworld.Error, "m.safetensors: not a probe"):
            MODEL.predict("a", FOLDER / "m.safetensors")
        self.assertEqual(MODEL.predict([], FOLDER / "p.probe.safetensors"), [])
        program("train", "config.yaml", "--out", "another", "--set", "run.seed=2")
        other = smallworld.Model.load(FOLDER / "another/last.safetensors", device="cpu", threads=1)
        with self.assertRaisesRegex(smallworld.Error, "fitted on features of another checkpoint"):
            other.predict("a", FOLDER / "p.probe.safetensors")

    def test_states_pool_to_features(self):
        for state in MODEL.STATES:
            states = MODEL.states(TEXTS, state=state)
            self.assertEqual([len(rows) for rows in states],
                             [len(text.encode()) + 3 for text in TEXTS])
            for pool, fold in ("last", lambda s: s[-1]), ("mean", lambda s: s.mean(0)), \
                              ("max", lambda s: s.max(0)):
                numpy.testing.assert_allclose(MODEL.features(TEXTS, state=state, pool=pool),
                                              [fold(rows) for rows in states], rtol=1e-4, atol=1e-6)

    def test_line_breaks_are_framed_as_spaces(self):
        numpy.testing.assert_array_equal(MODEL.states("a\nb\rc")[0],
                                         MODEL.states(b"\n a b c ", framed=False)[0])

    def test_generate(self):
        written = program("generate", "m.safetensors", "--bytes", "80", "--seed", "5", "--top-k", "9",
                          "--top-p", "0.8", "--device", "cpu", "--threads", "1", "--json")
        text = MODEL.generate(80, seed=5, top_k=9, top_p=0.8)
        self.assertEqual(b"\n " + text, base64.b64decode(json.loads(written)["base64"]))
        written = program("generate", "m.safetensors", "--bytes", "80", "--seed", "5", "--device", "cpu",
                          "--threads", "1", "--json")  # by the same defaults
        self.assertEqual(b"\n " + MODEL.generate(80, seed=5), base64.b64decode(json.loads(written)["base64"]))
        likeliest = MODEL.generate(40, temperature=0)
        self.assertEqual(likeliest, MODEL.generate(40, top_k=1, seed=9))
        self.assertEqual(likeliest, MODEL.generate(40, top_p=1e-6, seed=3))
        self.assertNotEqual(MODEL.generate(80, seed=5), MODEL.generate(80, seed=6))
        self.assertEqual(MODEL.generate(0), b"")

    def test_replaced_file(self):
        """A model writes its own text, also when the trainer has replaced its file before the first time."""
        (FOLDER / "r.safetensors").write_bytes((FOLDER / "m.safetensors").read_bytes())
        model = smallworld.Model.load(FOLDER / "r.safetensors", device="cpu", threads=1)
        (FOLDER / "other").write_bytes((FOLDER / "run" / "best.safetensors").read_bytes()[:100])
        (FOLDER / "other").rename(FOLDER / "r.safetensors")
        self.assertEqual(model.generate(40, seed=3), MODEL.generate(40, seed=3))

    def test_refusals(self):
        """What Python refuses by itself; tests/test_library.c has what C does."""
        for name, value in ("streams", -1), ("streams", 2**32 + 1), ("threads", -1):
            with self.assertRaisesRegex(ValueError, f"{name}: expected 0 to"):
                smallworld.Model.load(FOLDER / "m.safetensors", **{name: value})
        with self.assertRaisesRegex(ValueError, "path: expected no zero byte"):
            smallworld.Model.load(f"{FOLDER}/m.safetensors\0b")
        for texts in ([1, 2], numpy.arange(3), [numpy.ones(2)], [None]):
            with self.assertRaisesRegex(TypeError, "text: expected"):
                MODEL.features(texts)
        for error, message, call in (
                (ValueError, "seed: expected 0 to", lambda: MODEL.generate(3, seed=2**64)),
                (smallworld.Error, "text 1: expected at least one byte", lambda: MODEL.score(["a", ""], framed=False)),
                (smallworld.Error, "top_p", lambda: MODEL.generate(3, top_p=0)),
                (smallworld.Error, "prompt", lambda: MODEL.generate(3, prompt="")),
                (ValueError, "at least two bytes", lambda: MODEL.bits_per_character([])),
                (ValueError, "state: expected one of cell, hidden", lambda: MODEL.features("a", state="sell")),
                (ValueError, "pool: expected .*one of last, mean, max, got 'sum'", lambda: MODEL.features("a", pool="mean,sum")),
                (ValueError, "pool: expected .*different ones", lambda: MODEL.features("a", pool="max,max"))):
            with self.assertRaisesRegex(error, message):
                call()
        text = numpy.frombuffer(b"A cat.", numpy.uint8)
        for same in text, [text], memoryview(b"A cat."), bytearray(b"A cat."), [memoryview(b"A cat.")]:
            numpy.testing.assert_array_equal(MODEL.features(same), MODEL.features("A cat."))
        self.assertEqual(MODEL.score([]), [])
        self.assertEqual(MODEL.features([]).shape, (0, 128))

    def test_no_copies(self):
        conv = smallworld.Conv(numpy.ones((2, 3)), 8, 4, device="cpu", threads=1)
        for act in copy.copy, copy.deepcopy, pickle.dumps:
            with self.assertRaisesRegex(TypeError, "expected no copy nor pickle"):
                act(conv)

    def test_shared_by_threads(self):
        expected, wrong = [MODEL.features(text) for text in TEXTS], []

        def work(k):
            for _ in range(8):
                for k in (*range(k, len(TEXTS)), *range(k)):
                    if not numpy.array_equal(MODEL.features(TEXTS[k]), expected[k]):
                        wrong.append(k)
                MODEL.score(TEXTS)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(wrong, [])

    def in_another_process(self, text, **how):
        """What a program prints that has MODEL, of `threads` threads, and numpy."""
        head = (f"import sys; sys.path.insert(0, {str(Path(smallworld.__file__).parents[1])!r})\n"
                "import os, signal, threading, time, numpy, smallworld\n"
                f"model = smallworld.Model.load({str(FOLDER / 'm.safetensors')!r}, device='cpu', "
                f"threads={how.get('threads', 1)})\n")
        return run(sys.executable, "-c", head + text, timeout=600)

    def test_fork(self):
        text = ("model.features(['a cat', 'a dog'] * 40)\nif os.fork() == 0:\n"
                "    try: print(model.features('a').shape, flush=True)\n"
                "    except smallworld.Error as problem: print(problem, flush=True)\n"
                "    os._exit(0)\nos.wait()")
        self.assertIn("(1, 128)", self.in_another_process(text).stdout)
        self.assertIn("was forked after its parent", self.in_another_process(text, threads=2).stdout)

    def test_thread_at_the_end(self):
        """A thread that computes while the interpreter ends."""
        done = self.in_another_process("threading.Thread(target=lambda: model.generate(10**6), daemon=True).start()\n"
                                       "time.sleep(0.3)")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_interrupt(self):
        """Ctrl-C in a call of minutes: one long text, and a long generation."""
        for call in "model.generate(10**8)", "model.features(b'a' * 10**8)":
            began = time.monotonic()
            done = self.in_another_process("threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()\n"
                                           f"try: {call}\nexcept KeyboardInterrupt: print('stopped')")
            self.assertEqual((done.stdout, done.stderr), ("stopped\n", ""))
            self.assertLess(time.monotonic() - began, 60)

    def test_threads_and_lifetime(self):
        expected, results = MODEL.features(TEXTS), []

        def work():
            model = smallworld.Model.load(FOLDER / "m.safetensors", device="cpu", threads=1)
            results.append(model.features(TEXTS))

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        gc.collect()
        self.assertEqual(len(results), 3)
        for result in results:
            numpy.testing.assert_array_equal(result, expected)


def read_only(array):
    array = array.view()
    array.flags.writeable = False
    return array


def reviews(count):
    """Texts, and what they praise or blame, which one word in four tells."""
    draw = random.Random(count)
    labels = [draw.choice(["good", "bad"]) for _ in range(count)]
    words = {"good": ["fine", "warm"], "bad": ["dull", "flat"]}
    return [f"{draw.choice('abcd')} {draw.choice(words[label])}, \"{i}\" film" for i, label in enumerate(labels)], labels


class Classifiers(unittest.TestCase):
    def test_classifier(self):
        """Of n-grams, of a probe and of a run with labels: what the program's predict says."""
        texts, labels = reviews(120)
        (FOLDER / "reviews.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in zip(texts, labels)))
        smallworld.classify(FOLDER / "reviews.tsv", FOLDER / "by-reviews", minutes=0)
        smallworld.train(FOLDER / "config.yaml", FOLDER / "labels", steps=20, label_weight=1,
                         **{"data.train": str(FOLDER / "reviews.tsv"), "data.valid": str(FOLDER / "reviews.tsv")})
        for path in "by-reviews", "labels":
            classifier = smallworld.Classifier.load(FOLDER / path, device="cpu")
            self.assertEqual(classifier.classes_.tolist(), ["bad", "good"])
            lines = program("predict", path, "--text", "reviews.tsv", "--device", "cpu").splitlines()
            said = [json.loads(line) for line in lines]
            self.assertEqual(classifier.predict(texts).tolist(), [line["class"] for line in said])
            likely = classifier.predict_proba(texts)
            numpy.testing.assert_array_equal(likely, [list(line["probability"].values()) for line in said])
            again = pickle.loads(pickle.dumps(classifier))
            numpy.testing.assert_array_equal(again.predict_proba(texts[:3]), likely[:3])
            self.assertEqual(classifier.predict_proba([]).shape, (0, 2))
        self.assertLess((smallworld.Classifier(FOLDER / "by-reviews").predict(texts) != labels).mean(), 0.1)
        with self.assertRaisesRegex(smallworld.Error, "nowhere"):
            smallworld.Classifier.load("nowhere")

    def test_one_text(self):
        """One text is one where that is documented, else refused; never a text for each character."""
        texts, labels = reviews(60)
        (FOLDER / "sixty.tsv").write_text("".join(f"{label}\t{text}\n" for text, label in zip(texts, labels)))
        smallworld.classify(FOLDER / "sixty.tsv", FOLDER / "sixty", minutes=0, verbose=False)
        classifier = smallworld.Classifier.load(FOLDER / "sixty")
        self.assertEqual(len(classifier.predict(["GTK game"])), 1)
        self.assertEqual(len(MODEL.features("GTK game")), 1)
        for one in "GTK game", b"GTK game":
            for call in (classifier.predict, classifier.predict_proba, lambda text: smallworld.Probe.fit(MODEL, text, labels)):
                with self.assertRaisesRegex(TypeError, "texts: expected a list of texts, got one"):
                    call(one)

    def test_kinds_of_labels(self):
        """Missing labels are none, bytes and columns are labels; a NumPy number is a setting."""
        texts, labels = reviews(60)
        fit = lambda labels: sorted(MODEL.predict("a", smallworld.Probe.fit(MODEL, texts, labels))[0])
        missing = [None, float("nan"), numpy.datetime64("NaT"), type("NAType", (), {})(), type("NaTType", (), {})()]
        self.assertEqual(fit(missing + labels[5:]), ["bad", "good"])
        self.assertEqual(fit([label.encode() for label in labels]), ["bad", "good"])
        self.assertEqual(fit(numpy.array(labels).reshape(-1, 1)), ["bad", "good"])
        self.assertEqual(fit(["007" if label == "good" else "7" for label in labels]), ["007", "7"])
        for wrong, message in ((numpy.array(labels).reshape(-1, 2), "labels: expected one for each text, got an array"),
                               (labels[1:], "labels: expected 60, got 59")):
            with self.assertRaisesRegex(ValueError, message):
                fit(wrong)
        with self.assertRaisesRegex(TypeError, "labels: expected a list of labels, got one str"):
            fit("x" * 60)
        smallworld.train(FOLDER / "config.yaml", FOLDER / "numpy", lr=numpy.float32(0.01), steps=numpy.int64(2))
        self.assertIn("steps: 2\n", (FOLDER / "numpy/config.yaml").read_text())

    def test_fork(self):
        """A forked child's end leaves a probe to its parent."""
        texts, labels = reviews(60)
        probe = smallworld.Probe.fit(MODEL, texts, labels)
        child = os.fork()
        if child == 0:
            del probe
            gc.collect()
            os._exit(0)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(MODEL.predict("a", probe)[0]), 2)

    def test_pickles(self):
        texts, labels = reviews(60)
        for model in pickle.loads(pickle.dumps(MODEL)), copy.deepcopy(MODEL):
            numpy.testing.assert_array_equal(model.features(TEXTS), MODEL.features(TEXTS))
        probe = smallworld.Probe.fit(MODEL, texts, labels)
        content = pickle.dumps(probe)
        before = os.umask(0o027)
        probe.save(FOLDER / "kept.probe.safetensors")
        os.umask(before)
        self.assertEqual((FOLDER / "kept.probe.safetensors").stat().st_mode & 0o777, 0o640)
        said = MODEL.predict(texts, probe)
        del probe
        for other in pickle.loads(content), smallworld.Probe.load(FOLDER / "kept.probe.safetensors"):
            self.assertEqual(MODEL.predict(texts, other), said)
        with self.assertRaises(FileNotFoundError):
            smallworld.Probe.load("nowhere")

    def test_scikit_learn(self):
        """Clones, pipelines, cross-validation and joblib; check_estimator as far as texts allow."""
        needs.module("sklearn")
        import joblib
        from sklearn.base import clone
        from sklearn.linear_model import LogisticRegression
        from sklearn.model_selection import cross_val_score
        from sklearn.pipeline import make_pipeline
        from sklearn.utils.estimator_checks import check_estimator
        from smallworld.sklearn import Features, TextClassifier
        texts, labels = reviews(150)
        run = FOLDER / "m.safetensors"
        features = clone(Features(run, pool="mean", device="cpu"))
        numpy.testing.assert_array_equal(features.fit_transform(texts), MODEL.features(texts, pool="mean"))
        probe = make_pipeline(Features(MODEL), LogisticRegression(C=100, max_iter=1000)).fit(texts, labels)
        self.assertEqual(probe.named_steps["features"].n_features_out_, 128)
        self.assertGreater(probe.score(texts, labels), 0.8)
        for numbers in False, True:
            y = numpy.array([7 if label == "good" else -1 for label in labels]) if numbers else labels
            classifier = TextClassifier(minutes=0, device="cpu")
            self.assertGreater(cross_val_score(classifier, texts, y, cv=3).mean(), 0.9)
            classifier.fit(texts, y)
            self.assertEqual(classifier.classes_.tolist(), [-1, 7] if numbers else ["bad", "good"])
            joblib.dump(classifier, FOLDER / "classifier.joblib")
            likely = classifier.predict_proba(texts)
            numpy.testing.assert_allclose(likely.sum(1), 1)
            del classifier
            again = joblib.load(FOLDER / "classifier.joblib")
            numpy.testing.assert_array_equal(again.predict_proba(texts), likely)
            self.assertEqual(clone(again).get_params(), again.get_params())
        from sklearn.exceptions import NotFittedError
        with self.assertRaises(NotFittedError):
            TextClassifier().predict(texts)
        with self.assertRaises(NotFittedError):
            Features(run).transform(texts)
        for labels_, error, message in (([float("nan"), *labels[1:]], ValueError, "labels: expected one for each text, got nan for text 0"),
                                        ([*labels[:-1], "lonely"], smallworld.Error, "'lonely'")):
            kept = again.classes_
            with self.assertRaisesRegex(error, message):
                again.fit(texts, labels_)
            self.assertIs(again.classes_, kept)  # as it was
            again.predict(texts[:2])
        for one in "GTK game", b"GTK game":
            for call in again.predict, again.predict_proba, Features(MODEL).fit(texts).transform, lambda text: again.fit(text, labels):
                with self.assertRaisesRegex(TypeError, "texts: expected a list of texts, got one"):
                    call(one)
        column = TextClassifier(minutes=0, verbose=False, class_weight="balanced").fit(texts, numpy.array(labels).reshape(-1, 1))
        self.assertEqual(column.predict(texts[:3]).shape, (3,))
        self.assertEqual(column.result_["class_weight"], "balanced")
        for estimator in Features(run), TextClassifier(minutes=0):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of checks that take numbers alone
                check_estimator(estimator)


class Products(unittest.TestCase):
    def setUp(self):
        self.random = numpy.random.default_rng(1)

    def pattern(self, nodes=7, block=8, share=0.3):
        mask = self.random.random((nodes, nodes)) < share
        numpy.fill_diagonal(mask, True)
        return mask, smallworld.Pattern(mask, block, device="cpu", threads=1)

    def dense(self, mask, w, block):
        matrix = numpy.zeros([n * block for n in mask.shape], numpy.float32)
        for weights, (i, j) in zip(w, numpy.argwhere(mask)):
            matrix[i * block:(i + 1) * block, j * block:(j + 1) * block] = weights
        return matrix

    def test_against_dense(self):
        for nodes, block, share in (7, 8, 0.3), (5, 16, 0.5), (4, 32, 0.2), (3, 8, 1.0), (1, 64, 1):
            mask, pattern = self.pattern(nodes, block, share)
            columns = {7: 1, 5: 48}.get(nodes, 37)  # of which only 48 need no padding
            w, x, dy = (self.random.standard_normal(shape, numpy.float32) for shape in
                        (pattern.weight_shape, *[(pattern.in_features, columns)] * 2))
            full = self.dense(mask, w, block)
            close = lambda a, b: numpy.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
            close(smallworld.bsmm(pattern, w, x), full @ x)
            numpy.testing.assert_array_equal(smallworld.bsmm(pattern, w.astype(float), x.astype(float)),
                                             smallworld.bsmm(pattern, w, x))
            close(pattern.dgrad(w, dy), full.T @ dy)
            dw = pattern.wgrad(dy, x)
            close(self.dense(mask, dw, block), (dy @ x.T) * numpy.kron(mask, numpy.ones((block,) * 2)))
            wide = numpy.tile(x, 40)  # for which the workspace grows
            close(self.dense(mask, pattern.wgrad(numpy.tile(dy, 40), wide), block),
                  40 * (dy @ x.T) * numpy.kron(mask, numpy.ones((block,) * 2)))
            out = numpy.full_like(x, numpy.nan)
            self.assertIs(pattern.fprop(w, x, out=out), out)
            close(out, full @ x)

    def test_refusals(self):
        mask, pattern = self.pattern()
        w = numpy.zeros(pattern.weight_shape, numpy.float32)
        x = numpy.zeros((pattern.in_features, pattern.columns), numpy.float32)
        for message, call in (
                ("x: expected shape", lambda: pattern.fprop(w, x[:, :0])),
                ("out: expected a writable", lambda: pattern.fprop(w, x, out=read_only(x))),
                ("x: expected shape", lambda: pattern.fprop(w, x[1:])),
                ("w: expected shape", lambda: pattern.fprop(w[1:], x)),
                ("x: expected float32", lambda: pattern.fprop(w, x.astype("float16"))),
                ("x: expected a contiguous", lambda: pattern.fprop(w, numpy.asfortranarray(x))),
                ("block: expected", lambda: smallworld.Pattern(mask, 2**32 + 8)),
                ("mask: expected", lambda: smallworld.Pattern(mask[0], 8))):
            with self.assertRaisesRegex(ValueError, message):
                call()
        with self.assertRaisesRegex(TypeError, "x: expected an array with __dlpack__, got list"):
            pattern.fprop(w, x.tolist())
        numpy.testing.assert_array_equal(pattern.fprop(read_only(w), read_only(x)), pattern.fprop(w, x))


class Convolutions(unittest.TestCase):
    """Against shifted copies of a padded image, and dense matrices, in NumPy."""

    def check(self, size, filter, stride, dilation, pad, shape=(3, 4), block=8, images=32):
        mask = numpy.random.default_rng(1).random(shape) < 0.6
        mask[1:2], mask[:, 2:3] = False, False
        mask[0, 0] = True
        conv = smallworld.Conv(mask, block, size, filter, stride, dilation, pad, device="cpu", threads=1)
        draw = lambda *shape: numpy.random.default_rng(2).normal(size=shape).astype(numpy.float32)
        w, x = draw(*conv.weight_shape), draw(*conv.size, conv.in_features, images)
        dy = draw(*conv.out, conv.out_features, images)
        dense = numpy.zeros((*conv.filter, shape[0], block, shape[1], block))
        for k, (i, j) in enumerate(numpy.argwhere(mask)):
            dense[:, :, i, :, j] = w[k]
        dense = dense.reshape(*conv.filter, conv.out_features, conv.in_features)
        (above, below), (left, right) = pad
        padded = numpy.pad(x, ((above, below), (left, right), (0, 0), (0, 0)))
        y, dpadded, dw = numpy.zeros(dy.shape), numpy.zeros(padded.shape), numpy.zeros(dense.shape)
        for f in range(conv.filter[0]):
            for g in range(conv.filter[1]):
                part = tuple(slice(k * d, k * d + (n - 1) * s + 1, s)
                             for k, d, n, s in zip((f, g), dilation, conv.out, stride))
                y += dense[f, g] @ padded[part]
                dpadded[part] += dense[f, g].T @ dy
                dw[f, g] = numpy.einsum("rcin,rcjn->ij", dy, padded[part])
        dx = dpadded[above:above + size[0], left:left + size[1]]
        blocks = dw.reshape(*conv.filter, shape[0], block, shape[1], block)
        for found, expected in ((conv.fprop(w, x), y), (conv.dgrad(w, dy), dx),
                                (conv.wgrad(dy, x), [blocks[:, :, i, :, j] for i, j in numpy.argwhere(mask)])):
            numpy.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)

    def test_any_number_of_images(self):
        for images in 1, 15, 33:
            self.check((4, 3), 3, (1, 1), (1, 1), ((1, 1), (1, 1)), images=images)

    def test_one_node(self):
        for images in 16, 5:
            self.check((3, 3), 3, (1, 1), (1, 1), ((1, 1), (1, 1)), shape=(1, 1), block=64, images=images)

    def test_pads(self):
        make = lambda pad, stride=1: smallworld.Conv(numpy.ones((1, 2)), 8, (numpy.int64(6), 5), 3, stride, pad=pad,
                                                     device="cpu", threads=1).out
        self.assertEqual(make(numpy.int32(1)), (6, 5))
        self.assertEqual(make((1, 0)), (6, 3))
        self.assertEqual(make([[2, 0], 1]), (6, 5))
        self.assertEqual(make(1, numpy.int64(2)), (3, 3))
        for pad in ((1, 1),), [1], (), (1, 1, 1, 1), (1, (1, 2, 3)), (1, ((1, 1), 1)):
            with self.assertRaisesRegex(ValueError, "pad: expected"):
                make(pad)

    def test_image(self):
        self.check((5, 6), 3, (1, 1), (1, 1), ((1, 1), (1, 1)))

    def test_causal_signal(self):
        self.check((1, 11), (1, 2), (1, 1), (1, 3), ((0, 0), (3, 0)))

    def test_strides_and_dilation(self):
        self.check((9, 7), (3, 2), (2, 3), (2, 1), ((2, 1), (0, 1)))

    def test_rectangle(self):
        self.check((1, 1), 1, (1, 1), (1, 1), ((0, 0), (0, 0)))

    def test_refusals(self):
        mask = numpy.ones((2, 3), bool)
        for words, make in (("stride: expected", lambda: smallworld.Conv(mask, 8, 4, stride=0)),
                            ("pad: expected", lambda: smallworld.Conv(mask, 8, 4, pad=((1, 1, 1), 1))),
                            ("mask: expected", lambda: smallworld.Conv(mask[0], 8, 4))):
            with self.assertRaisesRegex(ValueError, words):
                make()
        conv = smallworld.Conv(mask, 8, 4, device="cpu")
        with self.assertRaisesRegex(ValueError, r"x: expected shape \(4, 4, 24, columns\)"):
            conv.fprop(numpy.zeros(conv.weight_shape), numpy.zeros((4, 4, 16, 16)))


def main():
    global PROGRAM, PREFIX, FOLDER, MODEL, smallworld
    PROGRAM = Path(sys.argv.pop(1)).resolve()
    with tempfile.TemporaryDirectory() as folder:
        FOLDER, PREFIX = Path(folder), Path(folder) / "prefix"
        installed = run("cmake", "--install", PROGRAM.parent, "--prefix", PREFIX)
        assert installed.returncode == 0, installed.stderr
        sys.path.insert(0, str(next(PREFIX.glob("lib/python3*/*-packages"))))
        os.environ.pop("SMALLWORLD_LIBRARY", None)
        import smallworld as module
        smallworld = module
        (FOLDER / "train.tsv").write_text("1\tThe cat sat on a mat.\n0\tA dog ran.\n" * 60)
        (FOLDER / "config.yaml").write_text(CONFIG)
        program("train", "config.yaml", "--out", "run")
        (FOLDER / "run" / "last.safetensors").rename(FOLDER / "m.safetensors")
        MODEL = smallworld.Model.load(FOLDER / "m.safetensors", device="cpu", threads=1)
        unittest.main(verbosity=2)


if __name__ == "__main__":
    main()
