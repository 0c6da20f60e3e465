"""Images of 32 x 32 pixels in the format of CIFAR-10's binary version.

A file is a row of records of 3,073 bytes: a label, then 1,024 bytes each of red, green and blue, row by row.
A set is a folder with data_batch_*.bin for training and test_batch.bin, or CIFAR-10's own archive,
cifar-10-binary.tar.gz. The archive is checked by the sum that its authors publish, a folder by its file
SHA256SUMS where it has one, which patches.py writes.
"""

import hashlib
import re
import sys
import tarfile
from pathlib import Path

import numpy

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from prepare import BadInput, new_files, reading, run, share  # the last two for the commands

SIDE = 32
RECORD = 1 + 3 * SIDE * SIDE
TRAIN, TEST, SUMS = r"data_batch_\w+\.bin", r"test_batch\.bin", "SHA256SUMS"
CIFAR_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"  # of cifar-10-binary.tar.gz, https://www.cs.toronto.edu/~kriz/cifar.html


def load(path):
    """(train, test): uint8 (images, 3, 32, 32) each."""
    path = Path(path)
    files = _folder(path) if path.is_dir() else _archive(path)
    train = [_images(f"{path}: {name}", data) for name, data in sorted(files.items()) if re.fullmatch(TRAIN, name)]
    test = [_images(f"{path}: {name}", data) for name, data in files.items() if re.fullmatch(TEST, name)]
    if not train or not test:
        raise BadInput(f"{path}: expected files data_batch_*.bin and test_batch.bin")
    return numpy.concatenate(train), test[0].copy()


def _images(name, data):
    if not data or len(data) % RECORD:
        raise BadInput(f"{name}: expected records of {RECORD} bytes, got {len(data)} bytes")
    records = numpy.frombuffer(data, numpy.uint8).reshape(-1, RECORD)
    return records[:, 1:].reshape(-1, 3, SIDE, SIDE)


def _folder(path):
    files = {file.name: file.read_bytes() for file in path.glob("*.bin")}
    sums = path / SUMS
    if sums.exists():
        for number, line in enumerate(sums.read_text(errors="replace").splitlines(), 1):
            found = re.fullmatch(r"([0-9a-fA-F]{64}) [ *](.+)", line)  # as sha256sum writes it
            if not found:
                raise BadInput(f"{sums}:{number}: expected a SHA-256, two spaces and a file's name")
            expected, name = found[1].lower(), found[2]
            if name not in files:
                raise BadInput(f"{path / name}: {SUMS} names it, but it is not there")
            if hashlib.sha256(files[name]).hexdigest() != expected:
                raise BadInput(f"{path / name}: its SHA-256 differs from the one in {SUMS}: the file is damaged")
    return files


def _archive(path, md5=None):
    data = path.read_bytes()
    if hashlib.md5(data).hexdigest() != (md5 or CIFAR_MD5):
        raise BadInput(f"{path}: expected a folder, or CIFAR-10's binary archive with the MD5 sum {CIFAR_MD5}")
    with reading(path), tarfile.open(path) as archive:
        return {Path(member.name).name: archive.extractfile(member).read()
                for member in archive if member.isfile()}


def save(folder, train, test):
    """Writes such a set, with its SHA256SUMS; labels are 0."""
    sets = {"data_batch_1.bin": train, "test_batch.bin": test}
    with new_files([folder / name for name in (*sets, SUMS)]) as (*files, sums):
        for (name, images), file in zip(sets.items(), files):
            records = numpy.zeros((len(images), RECORD), numpy.uint8)
            records[:, 1:] = images.reshape(len(images), -1)
            file.write(records.tobytes())
            sums.write(f"{hashlib.sha256(records.tobytes()).hexdigest()}  {name}\n".encode())
