"""The example of PixelCNN++: its reader, its convolutions against PyTorch's, and runs that go on.

    /usr/bin/python3 tests/pixelcnn.py BUILD/libsmallworld.so

Without PyTorch only the reader is tested; skipped (77) without NumPy.
"""

import contextlib
import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

import needs

numpy = needs.module("numpy")

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "examples" / "pixelcnn"), str(ROOT / "python")]
if len(sys.argv) > 1:
    os.environ["SMALLWORLD_LIBRARY"] = sys.argv.pop(1)

import data

try:
    import torch
except ImportError:
    torch = None


def images(count, seed=1):
    return numpy.random.default_rng(seed).integers(0, 256, (count, 3, 32, 32), dtype=numpy.uint8)


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name)

    def refused(self, *said):
        with self.assertRaises(data.BadInput) as caught:
            data.load(self.path)
        for text in said:
            self.assertIn(text, str(caught.exception))


class Reader(Folder):
    def test_set(self):
        train, test = images(5), images(3, 2)
        data.save(self.path, train, test)
        found = data.load(self.path)
        numpy.testing.assert_array_equal(found[0], train)
        numpy.testing.assert_array_equal(found[1], test)

    def test_planes(self):
        """A record is a label, then red, green and blue, row by row."""
        record = bytes([7]) + bytes([1]) * 1024 + bytes([2]) * 1024 + bytes(range(256)) * 4
        for name in "data_batch_1.bin", "data_batch_2.bin", "test_batch.bin":
            (self.path / name).write_bytes(record)
        train, test = data.load(self.path)
        self.assertEqual((train.shape, test.shape), ((2, 3, 32, 32), (1, 3, 32, 32)))
        self.assertEqual(test[0, :, 1, 3].tolist(), [1, 2, 35])

    def test_damaged(self):
        data.save(self.path, images(2), images(2))
        file = self.path / "test_batch.bin"
        whole = file.read_bytes()
        file.write_bytes(whole[:-1] + b"\0" if whole[-1] else whole[:-1] + b"\1")
        self.refused("test_batch.bin", "damaged")
        for line in "", "abc  test_batch.bin", "\xff" * 64 + "  x", "0" * 64 + "x":
            (self.path / data.SUMS).write_text(line + "\n", encoding="latin-1")
            self.refused(f"{data.SUMS}:1: expected a SHA-256, two spaces and a file's name")
        (self.path / data.SUMS).unlink()
        file.write_bytes(whole[:-1])
        self.refused("test_batch.bin", "records of 3073 bytes, got 6145")
        file.unlink()
        self.refused(str(self.path), "test_batch.bin")

    def test_archive(self):
        """CIFAR-10 comes as an archive with a known sum; this one has its form, and a sum of its own."""
        data.save(self.path / "cifar-10-batches-bin", images(4), images(2, 2))
        path = self.path / "set.tar.gz"
        with tarfile.open(path, "w:gz") as archive:
            archive.add(self.path / "cifar-10-batches-bin", "cifar-10-batches-bin")
        self.path = path
        self.refused(str(path), data.CIFAR_MD5)
        files = data._archive(path, hashlib.md5(path.read_bytes()).hexdigest())
        self.assertEqual(len(files["data_batch_1.bin"]), 4 * data.RECORD)


@unittest.skipUnless(torch, "needs PyTorch")
class Model(Folder):
    def setUp(self):
        super().setUp()
        import model
        self.model, self.random = model, numpy.random.default_rng(3)

    def test_convolutions(self):
        """All shapes of the model, and others, with masks of all kinds, against conv2d of the weights put in
        their places: outputs, and gradients of weights, gain, bias and inputs."""
        shapes = [*self.model.FILTERS.values(), ((3, 3), ((1, 1), (1, 1))), ((1, 5), ((0, 0), (4, 0)))]
        for filter, pad in shapes:
            for stride in 1, 2:
                self.compare(filter, pad, stride, False)
        self.compare((2, 3), ((0, 0), (1, 0)), 2, True)
        self.compare((2, 2), ((0, 0), (0, 0)), 2, True)

    def compare(self, filter, pad, stride, transposed):
        torch.manual_seed(4)
        mask = numpy.tile(self.model.small_world(4, 2, self.random), (2, 1))
        sparse = self.model.Sparse(mask, 8, (6, 4), filter, pad, stride, transposed)
        inputs, outputs = (64, 32) if transposed else (32, 64)
        dense = self.model.Dense(inputs, outputs, (6, 4), filter, pad, stride, transposed)
        with torch.no_grad():
            sparse.gain.uniform_(0.5, 2), sparse.bias.uniform_(-1, 1)
            dense.gain.copy_(sparse.gain), dense.bias.copy_(sparse.bias), dense.v.zero_()
            places = list(zip(*numpy.nonzero(mask)))
            place = lambda i, j: (slice(i * 8, i * 8 + 8), slice(j * 8, j * 8 + 8))
            for block, (i, j) in enumerate(places):
                dense.v[place(i, j)] = sparse.v[block].permute(2, 3, 0, 1)
        x = torch.randn(16, inputs, *((3, 2) if transposed else (6, 4)), requires_grad=True)
        other = x.detach().permute(2, 3, 1, 0).contiguous().requires_grad_(True)
        expected = dense(x)
        dy = torch.randn_like(expected)
        expected.backward(dy)
        found = sparse(other)
        found.backward(dy.permute(2, 3, 1, 0).contiguous())
        close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-3, atol=3e-4)
        close(found.permute(3, 2, 0, 1), expected)
        close(other.grad.permute(3, 2, 0, 1), x.grad)
        close(sparse.gain.grad, dense.gain.grad)
        close(sparse.bias.grad, dense.bias.grad)
        for block, (i, j) in enumerate(places):
            close(sparse.v.grad[block].permute(2, 3, 0, 1), dense.v.grad[place(i, j)])

    def test_masks(self):
        for nodes, degree in (8, 2), (12, 3), (9, 4), (6, 6), (7, 6):
            mask = self.model.small_world(nodes, degree, self.random)
            self.assertTrue((mask.sum(0) == degree).all() and (mask.sum(1) == degree).all())
            self.assertTrue(mask.diagonal().all())

    def test_order(self):
        """A pixel's outputs depend on the pixels before it, all of them, and on no other."""
        for kind in "dense", "sparse":
            network = self.model.PixelCNN(kind, 16, 0.5, 8, 1, side=8)
            x = torch.rand(16, 3, 8, 8) * 2 - 1
            network.initialise(x)
            network.eval()
            changed = x.clone()
            changed[:, :, 3, 4] += 0.5
            with torch.no_grad():
                moved = (network(x) - network(changed)).abs().amax((0, 3)).reshape(-1) > 0
            self.assertFalse(moved[:3 * 8 + 5].any(), kind)
            self.assertTrue(moved[3 * 8 + 5] and moved[4 * 8 + 4], kind)

    def test_bits(self):
        """With one mixture and no coefficients the colours are independent, so the sums of p(red, green, blue) over
        the 256 values of one colour, for each of the three, have p squared as their product: values' probabilities
        sum to 1. A coefficient moves the mean of a later colour. Draws have the mean that the probabilities say."""
        torch.manual_seed(5)
        outputs = torch.randn(1, 1, 1, self.model.OUTPUTS)
        outputs[..., 0] = 60
        rest = outputs[..., self.model.MIXTURES:].view(-1, 9)
        rest[:, 6:] = 0
        p = lambda x: torch.exp2(-3 * self.model.bits(outputs.expand(len(x), 1, 1, -1), x))
        levels = torch.arange(256) / 127.5 - 1
        at = levels[[200, 90, 140]]
        every = at.view(1, 3, 1, 1).repeat(3, 256, 1, 1, 1).view(3, 256, 3, 1, 1)
        for colour in range(3):
            every[colour, :, colour, 0, 0] = levels
        sums = [p(values).sum() for values in every]
        one = p(at.view(1, 3, 1, 1))[0]
        torch.testing.assert_close(sums[0] * sums[1] * sums[2], one ** 2, rtol=1e-3, atol=0)

        expected = (p(every[0]) * levels).sum() / sums[0]
        generator = torch.Generator().manual_seed(6)
        drawn = self.model.draw(outputs.expand(20000, 1, 1, -1), generator)[:, 0, 0]
        self.assertLess(abs(drawn[:, 0].mean() - expected), 0.02)

        rest[:, 6] = 0.3
        moved = p(at.view(1, 3, 1, 1))[0]
        rest[:, 6] = 0
        rest[:, 1] += torch.tanh(torch.tensor(0.3)) * at[0]
        torch.testing.assert_close(moved, p(at.view(1, 3, 1, 1))[0])

    def test_resume(self):
        """A run that stops and goes on ends with the same bits as one that does not."""
        import pixelcnn
        data.save(self.path / "set", images(64), images(16, 2))
        common = ["--features", "16", "--block", "8", "--density", "0.5", "--residuals", "1", "--batch", "16",
                  "--eval-every", "3", "--log-every", "3", "--device", "cpu"]

        def run(name, updates, *more):
            sys.argv = ["pixelcnn.py", "train", str(self.path / "set"), "--out", str(self.path / name), "--updates",
                        str(updates), *common, *more]
            with contextlib.redirect_stdout(io.StringIO()):
                pixelcnn.main()
            return pixelcnn.read(self.path / name / "last.pt")

        whole = run("whole", 6)
        run("parts", 3)
        log = self.path / "parts" / "log.jsonl"
        log.write_text(log.read_text() + '{"update": 5}\n')  # as of a run that was killed after it
        parts = run("parts", 6, "--resume")
        self.assertEqual([json.loads(line)["update"] for line in log.read_text().splitlines()], [3, 6])
        for name in "weights", "first", "second", "average":
            self.assertTrue(torch.equal(whole[name], parts[name]), name)
        with self.assertRaises(data.BadInput) as caught:
            run("parts", 9, "--resume", "--seed", "2")
        self.assertIn("other options", str(caught.exception))
        with self.assertRaises(data.BadInput) as caught:
            run("odd", 3, "--features", "20")
        self.assertIn("--features: expected a multiple of 8, got 20", str(caught.exception))
        (self.path / "parts" / "last.pt").write_bytes(b"nothing")
        with self.assertRaises(data.BadInput) as caught:
            run("parts", 9, "--resume")
        self.assertIn("last.pt", str(caught.exception))


if __name__ == "__main__":
    unittest.main()
