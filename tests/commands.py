"""Every command and every output in README and docs, run and compared.

    /usr/bin/python3 tests/commands.py BUILD/smallworld [QUICKSTART]

A fenced block of `sh`, `python` or `c` runs as it stands, from a folder that looks like a clone, except that
training is cut to a few updates. Blocks that need what this test has not (ELSEWHERE says what) are not run,
but the options and keys in them must exist. QUICKSTART is a folder that scripts/quickstart.sh has filled:
with it, only documents with outputs are run, and the numbers in these compared too; without it a model trained
for a moment stands in for that one, and only the words of outputs are compared. Skipped (77) without NumPy.
"""

import gzip
import importlib.util
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import needs

needs.module("numpy")

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("**/*.md"))]
FENCE = re.compile(r"(?ms)^```(\w*)\n(.*?)^```$")
ELSEWHERE = {
    r"scripts/(quickstart|test|install|build|lint|release)\.sh|dist/|cmake|tests/\w+\.sh|ctest": "other tests and CI run these",
    r"--gpus|mpirun|srun|peer|bench|fuzz|sanitize_gpu": "needs GPUs or minutes",
    r"git |neuron|aclImdb|datasets/|apt|pixelcnn": "needs files or packages from elsewhere",
}
PROGRAM = QUICKSTART = FOLDER = None  # set by main and setUpModule


def blocks():
    for document in DOCUMENTS:
        for number, found in enumerate(FENCE.finditer(document.read_text())):
            yield document.name, number, found[1], found[2]


def run(*command, **options):
    return subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, errors="replace",
                          timeout=600, **options)


def shell(text, environment=None):
    """Runs a block with training cut short; returns what it prints."""
    short = re.sub(r"(smallworld train [^\n#&|]*)", r"\1 --set train.steps=4 --set train.valid_bytes=2000 ",
                   text.replace("\\\n", " "))
    done = run("bash", "-euo", "pipefail", "-c", short, env={**os.environ, **(environment or {})})
    if done.returncode:
        raise AssertionError(f"{short}\nexits with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def shortened(text):
    """A minute of training becomes three seconds."""
    text = re.sub(r"(classify .*)--minutes 1\b", r"\1--steps 10", text)  # which has a model of its own
    return re.sub(r"minutes([= ])1\b", r"minutes\g<1>0.05", text)


def setUpModule():
    """A folder that looks like a clone with a build and, as other documents say, a quickstart."""
    for name in "README.md", "LICENSE", "configs", "docs", "examples", "python", "scripts", "src", "tests":
        (FOLDER / name).symlink_to(ROOT / name)
    (FOLDER / "build").symlink_to(PROGRAM.parent)
    (FOLDER / "data").mkdir()
    for part in "train", "valid", "test":  # the first reviews are enough
        with gzip.open(ROOT / f"data/reviews_{part}.tsv.gz") as reviews:
            few = b"".join(itertools.islice(reviews, 300))
        (FOLDER / f"data/reviews_{part}.tsv.gz").write_bytes(gzip.compress(few))
    os.environ["PATH"] = f"{PROGRAM.parent}:{os.environ['PATH']}"
    quickstart = FOLDER / "runs" / "quickstart"
    if QUICKSTART:
        shutil.copytree(QUICKSTART, quickstart)
    else:
        shell("smallworld train configs/quickstart.yaml")
        for part in "train", "test":
            shell(f"smallworld features runs/quickstart --data data/reviews_{part}.tsv.gz "
                  f"--out runs/quickstart/{part}")
        shell("smallworld probe --train runs/quickstart/train --test runs/quickstart/test "
              "--out runs/quickstart/probe")
    text = "It was a bold, warm film. The baker sang, and my aunt laughed.\n" * 600
    (FOLDER / "texts").mkdir()
    for name in "book.txt", "other.txt", "texts/a.txt":
        (FOLDER / name).write_text(text)
    (FOLDER / "config.yaml").write_text("model: {hidden: 64, block: 16, density: 0.5}\n"
                                        "train: {batch: 2, bptt: 16}\n")
    for name in "a", "b":
        shell(f"smallworld train config.yaml --set data.train=book.txt --out runs/{name}")


class Commands(unittest.TestCase):
    def test_shell(self):
        ran, last = 0, None
        with_outputs = {document for document, _, kind, _ in blocks() if not kind}
        for document, number, kind, text in blocks():
            if kind != "sh" or (QUICKSTART and document not in with_outputs):
                continue
            if document != last:  # each begins with what setUpModule made
                for folder in (FOLDER / "runs").iterdir():
                    if folder.name not in ("quickstart", "a", "b"):
                        shutil.rmtree(folder)
            last = document
            with self.subTest(document=document, block=number):
                self.known(text)
                if any(re.search(pattern, text) for pattern in ELSEWHERE):
                    continue
                ran += 1
                self.outputs[document, number] = shell(shortened(text)) if "pkg-config" not in text else ""
        self.assertGreater(ran, 2 if QUICKSTART else 6)
        self.compare()

    outputs = {}

    def test_prose(self):
        """Commands within sentences have options and keys that exist."""
        for document in DOCUMENTS:
            for text in re.findall(r"`([^`\n]*smallworld \w+ [^`]*)`", FENCE.sub("", document.read_text())):
                with self.subTest(document=document.name, command=text):
                    self.known(text.replace("\n", " "))

    def known(self, text):
        """Options and keys of every command in the block exist."""
        keys = re.findall(r"(?m)^\| `([\w.]+)` \|", (ROOT / "docs" / "config.md").read_text())
        text = re.sub(r"--program \S+", "", text.replace("\\\n", " "))
        for command, rest in re.findall(r"smallworld (\w+)([^\n|&;]*)", text):
            if command == "bench":
                rest = rest.split(None, 1)[1] if len(rest.split()) > 1 else ""
                known = run(PROGRAM, "bench", "matmul", "--help").stdout + run(
                    PROGRAM, "bench", "train", "--help").stdout
            else:
                known = run(PROGRAM, command, "--help").stdout
            for option in re.findall(r"(?<=\s)--[\w-]+", rest.split("#")[0]):
                self.assertIn(option, known, f"smallworld {command}")
            for key in re.findall(r"--set (?:')?([\w.]+)=", rest):
                self.assertIn(key, keys)

    def compare(self):
        """Each block without a language is the output of the block before it, or of the quickstart."""
        for document, number, kind, text in blocks():
            if kind:
                continue
            with self.subTest(document=document, block=number):
                if document == "README.md":
                    self.quickstart(text)
                    continue
                printed = self.outputs[document, number - 1]
                if text.startswith("{"):
                    self.lines(text, printed)
                else:
                    words = self.words(text)  # of the last command
                    self.assertEqual(words, self.words(printed)[-len(words):])

    @staticmethod
    def words(text):
        """A table's words, without the numbers and what follows from them."""
        return re.findall(r"[A-Za-z]{2,}", re.sub(r"pooling .*|features of .*|saved.*|not tried", "", text))

    def lines(self, expected, printed):
        expected, printed = [[json.loads(line) for line in text.splitlines()] for text in (expected, printed)]
        self.assertEqual(len(expected), len(printed))
        for ours, theirs in zip(expected, printed):
            self.assertEqual(list(ours), list(theirs))
            self.assertEqual(list(ours["probability"]), list(theirs["probability"]))
            if QUICKSTART:
                self.assertEqual(ours["class"], theirs["class"])
                for name, value in ours["probability"].items():
                    self.assertAlmostEqual(value, theirs["probability"][name], delta=0.1)

    def quickstart(self, text):
        """Rounding differs between processors, and with it what is learned."""
        if "bits per byte" not in text:
            return self.assertRegex(text, r"\w\.\n")  # reviews that the model wrote: never twice the same
        if not QUICKSTART:
            return None
        read = lambda name: json.loads((FOLDER / "runs/quickstart" / name).read_text().splitlines()[-1])
        floor, bpc, _, bayes, error, untrained = [float(n) for n in re.findall(r"\d+\.\d+", text)]
        self.assertAlmostEqual(floor, read("floor.json")["floor_bpc"], delta=1e-4)
        self.assertAlmostEqual(bpc, read("eval.json")["bpc"], delta=0.005)
        self.assertAlmostEqual(bayes, 100 * read("floor.json")["bayes_error"], delta=0.01)
        self.assertAlmostEqual(error, read("probe.json")["error"], delta=0.8)
        self.assertAlmostEqual(untrained, read("untrained/probe.json")["error"], delta=2)

    def test_python(self):
        if QUICKSTART:
            self.skipTest("the same without it")
        library = next(PROGRAM.parent.glob("libsmallworld.so*"))
        without = "torch" if not importlib.util.find_spec("torch") else None
        text = shortened("\n".join(text for document, _, kind, text in blocks()
                                   if kind == "python" and not (without and without in text)))
        done = run(sys.executable, "-B", "-c", text, env={
            **os.environ, "PYTHONPATH": str(ROOT / "python"), "SMALLWORLD_LIBRARY": str(library)})
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_c(self):
        if QUICKSTART:
            self.skipTest("the same without it")
        programs = [text for document, _, kind, text in blocks() if kind == "c" and "int main" in text]
        self.assertTrue(programs)
        for text in programs:
            (FOLDER / "program.c").write_text(text)
            made = run("cc", "program.c", "-o", "program", f"-I{ROOT}/src/library", f"-L{PROGRAM.parent}",
                       "-lsmallworld", f"-Wl,-rpath,{PROGRAM.parent}")
            self.assertEqual(made.returncode, 0, made.stderr)
            done = run("./program")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertGreater(len(done.stdout), 100)


if __name__ == "__main__":
    PROGRAM = Path(sys.argv.pop(1)).resolve()
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        QUICKSTART = Path(sys.argv.pop(1)).resolve()
    with tempfile.TemporaryDirectory(prefix="smallworld-") as folder:
        FOLDER = Path(folder)
        unittest.main()
