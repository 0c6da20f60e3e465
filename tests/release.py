"""scripts/release.sh, and a stranger's first use of the wheel that it makes: installed, trained on text of one's
own, loaded in PyTorch, a classifier.

    /usr/bin/python3 tests/release.py BUILD/smallworld [ROOT]

Nothing of this checkout is in the wheel's reach. ROOT is a folder with another Debian or Ubuntu to change into,
as root, with python3-pip and python3-numpy; without it this system serves. Skipped (77) without what
`scripts/install.sh --release` installs; PyTorch's part needs PyTorch.
"""

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
from pathlib import Path

import needs

needs.module("numpy")
SOURCE = Path(__file__).resolve().parent.parent
PROGRAM = ROOT = None  # set by main

FIRST_USE = r"""set -e
cd "$HOME"
python3 -m pip install -q --no-deps --no-index --target site ./*.whl 2>&1
export PYTHONPATH=$HOME/site PATH=$HOME/site/bin:$PATH
smallworld --version
python3 -m smallworld --help | head -1
smallworld train --data text.txt --set train.minutes=0.05 --set model.hidden=64 --out run
smallworld classify --train labelled.csv --model run --minutes 0.05 --out classes
echo "a cat sat" | smallworld predict classes --text -
cat > use.py <<'END'
import sys
import numpy
import smallworld
texts = ["the cat sat on the mat", "dogs run"]
model = smallworld.Model.load("run/last.safetensors", device="cpu")
print("features", model.features(texts).shape)
mask = numpy.random.random((4, 6)) < 0.5
mask[0, 0] = True
print("product", smallworld.bsmm(smallworld.Pattern(mask, 8, "cpu"), *(numpy.ones(shape, "float32") for shape in
                                                             ((mask.sum(), 8, 8), (48, 16)))).shape)
try:
    import torch
except ImportError:
    sys.exit()
from smallworld.torch import BlockSparseLinear, SmallWorldLSTM
layer = BlockSparseLinear(mask, 8)
layer(torch.randn(5, 48)).sum().backward()
text = b"the cat sat on the mat"
bits = SmallWorldLSTM.load("run").bits(torch.tensor([list(text)])).mean()
ours = model.bits_per_character(text, framed=False)
assert abs(float(bits) - ours) < 1e-3, (bits, ours)
print("torch", layer.weight.grad.shape)
END
python3 use.py
for file in site/smallworld/libsmallworld.so.0 site/smallworld/smallworld; do ldd $file; done
"""


class Release(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.dist = Path(folder.name) / "dist"
        done = subprocess.run(["scripts/release.sh"], cwd=SOURCE, capture_output=True, text=True,
                              env={**os.environ, "BUILD": os.path.relpath(PROGRAM.parent, SOURCE), "DIST": str(cls.dist)})
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        cls.version = re.search(r"project\(smallworld VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text())[1]

    def test_files(self):
        version, names = self.version, {path.name: path for path in self.dist.iterdir()}
        wheel, = (name for name in names if name.endswith(".whl"))
        self.assertRegex(wheel, rf"^smallworld-{version}-py3-none-manylinux_2_\d+_\w+\.whl$")
        self.assertLess(names[wheel].stat().st_size, 60e6)
        package, = (name for name in names if name.endswith(".deb"))
        self.assertEqual(set(names), {wheel, package, f"smallworld-{version}.tar.gz", "SHA256SUMS"})
        for line in names.pop("SHA256SUMS").read_text().splitlines():
            digest, name = line.split()
            self.assertEqual(hashlib.sha256(names.pop(name).read_bytes()).hexdigest(), digest)
        self.assertEqual(names, {})
        with tarfile.open(self.dist / f"smallworld-{version}.tar.gz") as archive:
            self.assertIn(f"smallworld-{version}/scripts/quickstart.sh", archive.getnames())
        described = subprocess.run(["dpkg-deb", "--field", self.dist / package], capture_output=True, text=True, check=True)
        self.assertIn(f"Version: {version}\n", described.stdout)
        self.assertRegex(described.stdout, r"(?m)^Depends: .*libyaml-0-2")

    def test_first_use(self):
        with tempfile.TemporaryDirectory(dir=ROOT / "tmp" if ROOT else None) as name:
            home = Path(name)
            for wheel in self.dist.glob("*.whl"):
                shutil.copy(wheel, home)
            (home / "text.txt").write_text("the cat sat on the mat and dogs run. " * 400)
            (home / "labelled.csv").write_text("text,label\n" + "".join(
                f"the cat sat {i},cat\ndogs run {i},dog\n" for i in range(60)))
            inside = Path("/", home.relative_to(ROOT)) if ROOT else home
            command = ["env", "-i", f"HOME={inside}", "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", "sh", "-c", FIRST_USE]
            done = subprocess.run([*(["chroot", ROOT] if ROOT else []), *command], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            self.assertIn(f"smallworld {self.version}\n", done.stdout)
            self.assertIn("Usage: smallworld COMMAND", done.stdout)
            self.assertIn("features (2, 128)\nproduct (32, 16)\n", done.stdout)
            self.assertIn('"class":', done.stdout.replace(" ", ""))
            if not ROOT and importlib.util.find_spec("torch"):
                self.assertIn("torch torch.Size(", done.stdout)
            system = r"(linux-vdso|/lib64/ld-linux|lib(c|m|dl|rt|pthread|stdc\+\+|gcc_s|z)\.so)"
            for line in re.findall(r"(?m)^\t(.*)$", done.stdout):
                if not re.match(system, line):
                    self.assertIn("site/smallworld/", line)


if __name__ == "__main__":
    PROGRAM = Path(sys.argv.pop(1)).resolve()
    ROOT = Path(sys.argv.pop(1)).resolve() if len(sys.argv) > 1 else None
    modules = all(map(importlib.util.find_spec, ("pip", "setuptools", "wheel")))
    if not modules or not all(map(shutil.which, ("patchelf", "dpkg-shlibdeps", "git"))) or not (SOURCE / ".git").exists():
        print("skipped: needs a clone, and scripts/install.sh --release")
        sys.exit(1 if os.environ.get("SMALLWORLD_REQUIRE_ALL_TESTS") == "1" else needs.SKIPPED)
    unittest.main(verbosity=2)
