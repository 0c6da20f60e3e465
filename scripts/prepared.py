"""Functions that the prepare_*.py scripts and examples/pixelcnn share. They write documents as smallworld
reads them, and files that are complete or absent."""

import argparse
import bz2
import contextlib
import gzip
import hashlib
import lzma
import sys
import tarfile
import zipfile
import zlib
from pathlib import Path


class BadInput(Exception):
    """Ends the program with one line."""


def document(label, text):
    """A line LABEL<TAB>TEXT of bytes; line breaks inside the text become spaces."""
    return b"%s\t%s\n" % (str(label).encode("utf-8", "surrogateescape"), text.replace(b"\r\n", b" ").replace(b"\n", b" "))


@contextlib.contextmanager
def new_files(paths):
    """Opens files for writing, .gz and .xz ones compressed, without a name or a time, so that equal
    text gives equal files. They get their names only when all are complete."""
    paths = [Path(path) for path in paths]
    parts = [path.with_name(path.name + ".tmp") for path in paths]
    try:
        with contextlib.ExitStack() as stack:
            files = []
            for path, part in zip(paths, parts):
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(open(part, "wb"))
                if path.suffix == ".gz":
                    file = stack.enter_context(gzip.GzipFile("", "wb", 9, file, mtime=0))
                elif path.suffix == ".xz":
                    file = stack.enter_context(lzma.open(file, "wb"))
                files.append(file)
            yield files
        for part, path in zip(parts, paths):
            part.replace(path)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


def open_source(path):
    """A text as a binary stream: plain, compressed, or the one file of a zip, but for what macOS adds
    to those."""
    with open(path, "rb") as file:
        if file.read(4) != b"PK\3\4":
            return decompressed(path)
    archive = zipfile.ZipFile(path)
    files = [member for member in archive.infolist() if not member.is_dir()
             and not is_mac_os(member.filename)]
    if len(files) != 1:
        raise BadInput(f"{path}: holds {len(files)} files; expected one")
    return archive.open(files[0])


def is_mac_os(name):
    """Whether macOS added this file to an archive."""
    parts = name.split("/")
    return "__MACOSX" in parts or parts[-1] == ".DS_Store" or parts[-1].startswith("._")


def check_sum(path, expected, blocks):
    """Warns if the md5 of the blocks is not the published one."""
    found = hashlib.md5(usedforsecurity=False)
    for block in blocks:
        found.update(block)
    if found.hexdigest() != expected:
        print(f"{path}: warning: md5 {found.hexdigest()}, that of the published file is {expected}",
              file=sys.stderr)


def share(text, expected="a share from 0, below 1"):
    """The value of an option that is a share. `expected` says in the error what the option takes."""
    try:
        if 0 <= float(text) < 1:
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"expected {expected}, got '{text}'")


def next_command(command):
    print(f"next: {command}")


def run(main):
    """Runs main(). An error in its input or its files ends the program with one line and status 1."""
    name = Path(sys.argv[0]).name
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
    except BadInput as problem:
        sys.exit(f"{name}: {problem}")
    except OSError as problem:
        where = f"{problem.filename}: " if problem.filename else ""
        sys.exit(f"{name}: {where}{problem.strerror or problem}")


@contextlib.contextmanager
def reading(path):
    """Turns the exceptions of a damaged archive into a BadInput that names it."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile,
            gzip.BadGzipFile) as problem:
        raise BadInput(f"{path}: damaged or cut short: {problem}") from None


def decompressed(path):
    """A file as a binary stream, decompressed if its first bytes say gzip, bzip2 or xz."""
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic[:2] == b"\x1f\x8b":
        return gzip.open(path)
    if magic[:3] == b"BZh":
        return bz2.open(path)
    if magic == b"\xfd7zXZ\0":
        return lzma.open(path)
    return open(path, "rb")
