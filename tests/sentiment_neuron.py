"""scripts/import_sentiment_neuron.py on made-up arrays of the published names and shapes: what the
program computes from the checkpoint, against the published equations in NumPy.

    /usr/bin/python3 tests/sentiment_neuron.py BUILD/smallworld
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import needs

numpy = needs.module("numpy")

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "import_sentiment_neuron.py"
PROGRAM = None  # set below
UNITS, FEATURES = 64, 12


def made_up(random, units=UNITS, features=FEATURES):
    """The fifteen arrays, in double."""
    shapes = [(256, features), (features, 4 * units), *[(units, units)] * 4, (features, units),
              (units, units), (4 * units,), (4 * units,), (4 * units,), (units,), (units,),
              (units, 256), (256,)]
    return [random.normal(size=shape) for shape in shapes]


def sigmoid(z):
    return 1 / (1 + numpy.exp(-z))


def forward(arrays, text):
    """Returns the cell states after each byte and the bits of each byte but the first, by the paper's
    code."""
    embedding, wx, wi, wf, wo, wu, wmx, wmh, b, gx, gh, gmx, gmh, out, bias = arrays
    norm = lambda w, g: w / numpy.sqrt((w**2).sum(axis=0)) * g
    wx, wh = norm(wx, gx), norm(numpy.hstack([wi, wf, wo, wu]), gh)
    wmx, wmh = norm(wmx, gmx), norm(wmh, gmh)
    h, c, states, bits = numpy.zeros(len(wmh)), numpy.zeros(len(wmh)), [], []
    for position, byte in enumerate(text):
        x = embedding[byte]
        m = (x @ wmx) * (h @ wmh)
        i, f, o, u = numpy.split(x @ wx + m @ wh + b, 4)
        c = sigmoid(f) * c + sigmoid(i) * numpy.tanh(u)
        h = sigmoid(o) * numpy.tanh(c)
        states.append(c)
        if position + 1 < len(text):
            logits = h @ out + bias
            total = numpy.logaddexp.reduce(logits)
            bits.append((total - logits[text[position + 1]]) / numpy.log(2))
    return numpy.array(states), numpy.array(bits)


class Import(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.arrays = made_up(numpy.random.default_rng(1))
        self.save(self.arrays)

    def save(self, arrays, folder="model"):
        (self.folder / folder).mkdir(exist_ok=True)
        for number, array in enumerate(arrays):
            numpy.save(self.folder / folder / f"{number}.npy", array.astype("float32"))

    def convert(self, *arguments):
        return subprocess.run([sys.executable, "-B", SCRIPT, *map(str, arguments)], text=True,
                              capture_output=True, cwd=self.folder, check=False)

    def program(self, *arguments):
        done = subprocess.run([PROGRAM, *map(str, arguments), "--device", "cpu", "--threads", "1"],
                              cwd=self.folder, text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def test_against_the_equations(self):
        done = self.convert("model", "--out", "n.safetensors")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("next: build/smallworld generate n.safetensors", done.stdout)
        arrays = [array.astype("float32").astype("float64") for array in self.arrays]
        text = bytes(range(256)) + b"\n A text. "
        (self.folder / "text.txt").write_bytes(text)
        result = json.loads(self.program("eval", "n.safetensors", "--data", "text.txt", "--exact",
                                         "--json"))
        states, bits = forward(arrays, text)
        self.assertAlmostEqual(result["bpc"], bits.mean(), delta=2e-4 * bits.mean())

        (self.folder / "reviews.tsv").write_text("1\tI liked it &amp; more.\n0\tNo.\n")
        self.program("features", "n.safetensors", "--data", "reviews.tsv", "--out", "f")
        states = [forward(arrays, review)[0]
                  for review in (b"\n I liked it & more. ", b"\n No. ")]
        expected = [numpy.hstack([s.mean(0), s[-1]]) for s in states]
        numpy.testing.assert_allclose(numpy.load(self.folder / "f.npy"), expected, atol=2e-4)
        self.assertEqual(len(self.program("generate", "n.safetensors", "--bytes", "0")), 3)

    def refused(self, expected):
        done = self.convert("model", "--out", "x.safetensors")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertIn(expected, done.stderr)
        self.assertEqual(list(self.folder.glob("x.*")), [])

    def test_refusals(self):
        random = numpy.random.default_rng(2)
        self.save([*made_up(random)[:3], random.normal(size=(UNITS, UNITS + 1)), *made_up(random)[4:]])
        self.refused("model/3.npy: expected shape (64, 64) (wh.f), found (64, 65)")
        self.save(made_up(random))
        numpy.save(self.folder / "model" / "8.npy", numpy.arange(4 * UNITS))
        self.refused("model/8.npy: expected floating-point numbers")
        numpy.save(self.folder / "model" / "8.npy", numpy.full(4 * UNITS, numpy.nan, "float32"))
        self.refused("model/8.npy: expected finite numbers")
        (self.folder / "model" / "8.npy").write_bytes(b"<html>")
        self.refused("model/8.npy: no array")
        (self.folder / "model" / "8.npy").unlink()
        self.refused("model/8.npy: No such file")
        self.save(made_up(random, units=12))
        self.refused("expected a multiple of 8 units, found 12")


if __name__ == "__main__":
    PROGRAM = str(Path(sys.argv.pop(1)).resolve())
    unittest.main(verbosity=2)
