#!/usr/bin/env python3
"""Converts public datasets that you have downloaded to the files that configs/ name.

    scripts/prepare.py imdb aclImdb_v1.tar.gz [--half-test]       the Large Movie Review Dataset (Maas et al. 2011)
    scripts/prepare.py sst trainDevTestTrees_PTB.zip              the Stanford Sentiment Treebank (Socher et al. 2013)
    scripts/prepare.py text enwik8.zip                            any text, cut into training, validation and test
    scripts/prepare.py source linux-6.12.tar.xz --suffixes .c,.h  the text files of a source package

`prepare.py WHAT --help` tells what is written. Files are complete or absent, and equal sources give equal files.
"""

import argparse
import bz2
import contextlib
import gzip
import hashlib
import lzma
import re
import sys
import tarfile
import tempfile
import zipfile
import zlib
from pathlib import Path

# ---------------------------------------------------------------------------------------- files --


class BadInput(Exception):
    """Ends the program with one line."""


def document(label, text):
    """A line LABEL<TAB>TEXT of bytes; line breaks inside the text become spaces."""
    return b"%d\t%s\n" % (label, text.replace(b"\r\n", b" ").replace(b"\n", b" "))


@contextlib.contextmanager
def new_files(paths):
    """Opens files for writing, .gz ones compressed, without a name or a time. They get their names only when all
    are complete."""
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
                files.append(file)
            yield files
        for part, path in zip(parts, paths):
            part.replace(path)
    finally:
        for part in parts:
            part.unlink(missing_ok=True)


@contextlib.contextmanager
def reading(path):
    """Turns the exceptions of a damaged archive into a BadInput that names it."""
    try:
        yield
    except (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile) as problem:
        raise BadInput(f"{path}: damaged or cut short: {problem}") from None


def opened(path):
    """A file as a binary stream, decompressed if its first bytes say gzip, bzip2, xz, or zip of one file."""
    with open(path, "rb") as file:
        magic = file.read(6)
    if magic[:4] == b"PK\3\4":
        archive = zipfile.ZipFile(path)
        files = [name for name in archive.namelist() if not name.endswith("/") and not is_mac_os(name)]
        if len(files) != 1:
            raise BadInput(f"{path}: holds {len(files)} files; expected one")
        return archive.open(files[0])
    for start, module in (b"\x1f\x8b", gzip), (b"BZh", bz2), (b"\xfd7zXZ", lzma):
        if magic.startswith(start):
            return module.open(path)
    return open(path, "rb")


def is_mac_os(name):
    """Whether macOS added this file to an archive."""
    parts = name.split("/")
    return "__MACOSX" in parts or parts[-1] == ".DS_Store" or parts[-1].startswith("._")


def share(text, expected="a share from 0, below 1"):
    """The value of an option that is a share. `expected` says in the error what the option takes."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < 1:
            return float(text)
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


# ----------------------------------------------------------------------------------------- IMDB --

# In the archive: aclImdb/SPLIT/KIND/NUMBER_RATING.txt
REVIEW = re.compile(r"(?:^|/)(train|test)/(pos|neg|unsup)/(\d+)_(\d+)\.txt$")

REVIEWS = {  # name: [(split, kind, label, reviews as published)]
    "imdb_train": [("train", "pos", 1, 12500), ("train", "neg", 0, 12500)],
    "imdb_test": [("test", "pos", 1, 12500), ("test", "neg", 0, 12500)],
    "imdb_unsup": [("train", "unsup", -1, 50000)],
}


def reviews_of(source):
    """Yields (name, bytes) of the archive's or the folder's files."""
    if source.is_dir():
        for path in source.glob("**/*.txt"):
            yield path.as_posix(), path.read_bytes()
        return
    with reading(source), opened(source) as file:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                if member.isfile() and REVIEW.search(member.name):
                    yield member.name, archive.extractfile(member).read()
        while file.read(1 << 20):  # to its end, where gzip's checksum is
            pass


def imdb(args):
    """Writes imdb_train, imdb_test (25,000 reviews each, labels 1 and 0) and imdb_unsup (50,000 without a label, -1) as
    .tsv.gz, a review on each line, LABEL<TAB>TEXT, in the order of their numbers, the positive one of a number first. SOURCE
    is aclImdb_v1.tar.gz or the folder it unpacks to."""
    reviews = {}  # (split, kind): [(number, text)]
    for name, text in reviews_of(args.source):
        found = REVIEW.search(name)
        if found and not is_mac_os(name):
            reviews.setdefault(found.groups()[:2], []).append((int(found.group(3)), text))
    for split, kind, _, published in sum(REVIEWS.values(), []):
        count = len(reviews.get((split, kind), []))
        if not count:
            raise BadInput(f"{args.source}: no reviews in aclImdb/{split}/{kind}: expected "
                           "aclImdb_v1.tar.gz or the folder it unpacks to")
        if count != published:
            print(f"{args.source}: {count:,} reviews in {split}/{kind}; {published:,} are published", file=sys.stderr)
    paths = [args.out / f"{name}.tsv.gz" for name in REVIEWS]
    with new_files(paths) as files:
        for file, sources in zip(files, REVIEWS.values()):
            rows = [(number, -label, text) for split, kind, label, _ in sources for number, text in reviews[split, kind]
                    if not (args.half_test and split == "test" and number % 2)]
            for number, minus_label, text in sorted(rows):
                file.write(document(-minus_label, text))
    print(*paths, sep="\n")
    next_command("build/smallworld train configs/imdb-20m-hubs.yaml")


# ------------------------------------------------------------------------------------------ SST --

SENTENCES = {"train": 6920, "dev": 872, "test": 1821}  # of two classes, as published
LABELS = {"0": 0, "1": 0, "2": None, "3": 1, "4": 1}
TREE, LEAF = re.compile(r"\(([0-4]) "), re.compile(r"\([0-4] ([^() ]+)\)")

# Replacements that turn Penn Treebank tokens into text, in this order.
TEXT = [(re.compile(pattern), replacement) for pattern, replacement in (
    (r"-L[RSC]B-", "("), (r"-R[RSC]B-", ")"), (r"\\([/*])", r"\1"), (r"(?<!\S)`` ?", '"'), (r" ''(?!\S)", '"'),
    (r"(?<!\S)` ?", "'"), (r" (n't|'(?:s|S|m|re|ve|d|ll)?)(?!\w)", r"\1"),
    (r" (?!\.\.)([,;:?!.)%])(?![^\s\"').,])", r"\1"), (r"([($]) ", r"\1"))]


def trees(source, split):
    """The lines of a split's file of trees."""
    name = f"{split}.txt"
    if source.is_dir():
        paths = [path for path in (source / name, source / "trees" / name) if path.exists()]
        data = paths[0].read_bytes() if paths else None
    else:
        with reading(source), zipfile.ZipFile(source) as archive:
            found = [inside for inside in archive.namelist() if not is_mac_os(inside) and f"/{inside}".endswith(f"/{name}")]
            data = archive.read(found[0]) if found else None
    if data is None:
        raise BadInput(f"{source}: has no {name}: expected trainDevTestTrees_PTB.zip or its folder")
    return data.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")


def sst(args):
    """Writes sst_train, sst_dev and sst_test.tsv.gz, a sentence on each line, LABEL<TAB>TEXT: 1 if it is positive or very
    positive, 0 if negative or very negative; neutral ones are left out. Tokens are joined to ordinary text again, as far as
    possible. SOURCE is the archive of trees, or the folder it unpacks to."""
    paths = [args.out / f"sst_{split}.tsv.gz" for split in SENTENCES]
    lines = []
    with new_files(paths) as files:
        for path, file, (split, published) in zip(paths, files, SENTENCES.items()):
            count = 0
            for number, line in enumerate(trees(args.source, split), 1):
                root, leaves = TREE.match(line), LEAF.findall(line)
                if not root or not leaves:
                    raise BadInput(f"{args.source}: {split}.txt:{number}: expected a tree, (LABEL (LABEL WORD) ...)")
                text, label = " ".join(leaves), LABELS[root.group(1)]
                for pattern, replacement in TEXT:
                    text = pattern.sub(replacement, text)
                if label is not None:
                    file.write(document(label, text.encode("utf-8", "surrogateescape")))
                    count += 1
            usual = "" if count == published else f"; {published:,} are published"
            lines.append(f"{path}: {count:,} sentences{usual}")
    print(*lines, sep="\n")
    next_command(f"build/smallworld features RUN --data {paths[0]} --out RUN/sst_train")


# ----------------------------------------------------------------------------------------- text --

PUBLISHED = {"enwik8": 100_000_000, "text8": 100_000_000}


def size_of(text):
    """A number of bytes, or a share below 1."""
    return int(text) if text.isdigit() else share(text, "bytes, or a share below 1")


def blocks(path):
    """The text piece by piece."""
    with reading(path), opened(path) as file:
        while block := file.read(1 << 20):
            yield block


def text(args):
    """Cuts a text into NAME_train.txt, NAME_valid.txt and NAME_test.txt, in this order; all bytes are kept. By default the last
    5 % are the test file and the 5 % before them validation: on enwik8 and text8 the usual split of 90, 5 and 5 MB. SOURCE is
    a file, plain, .gz, .bz2, .xz, or a .zip that holds one file."""
    name = args.name or args.source.name.split(".")[0]
    total = sum(map(len, blocks(args.source)))
    if not total:
        raise BadInput(f"{args.source}: is empty")
    if total != PUBLISHED.get(name, total):
        raise BadInput(f"{args.source}: has {total:,} bytes, {name} has {PUBLISHED[name]:,}: is it "
                       "whole? Any other text needs another --name")
    valid, test = (round(size * total) if isinstance(size, float) else size for size in (args.valid, args.test))
    if valid + test >= total:
        raise BadInput(f"{args.source}: has {total:,} bytes: {valid:,} to validate on and {test:,} "
                       "to test on leave none to train on")
    out = args.out or Path("datasets") / name
    splits = {split: size for split, size in
              {"train": total - valid - test, "valid": valid, "test": test}.items() if size}
    paths = [out / f"{name}_{split}.txt" for split in splits]
    with new_files(paths) as files:
        source, rest = blocks(args.source), b""
        for file, size in zip(files, splits.values()):
            while size:
                rest = rest or next(source)
                file.write(rest[:size])
                size, rest = size - len(rest[:size]), rest[size:]
    for path, size in zip(paths, splits.values()):
        print(f"{path}: {size:,} bytes")
    held = f" --set data.valid={paths[1]}" if "valid" in splits else ""
    next_command("build/smallworld train configs/enwik8.yaml"
                 if paths[0].as_posix() == "datasets/enwik8/enwik8_train.txt"
                 else f"build/smallworld train --data {paths[0]}{held}")


# --------------------------------------------------------------------------------------- source --

LARGEST = 1 << 20  # larger files are seldom written by hand


def fraction(data):
    """A hash of bytes as a number from 0 to 1."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") / 2 ** 64


def is_text(data):
    with contextlib.suppress(UnicodeDecodeError):
        return bool(data) and b"\0" not in data and bool(data.decode())
    return False


def collect(args, spool):
    """Writes each document to `spool`; [(order, place, size, validates)] in their order."""
    places = {}
    with reading(args.source), tarfile.open(args.source) as archive:
        for member in archive:
            wanted = not args.suffixes or member.name.endswith(args.suffixes)
            if not member.isfile() or not wanted or member.size > LARGEST:
                continue
            data = archive.extractfile(member).read()
            name, content = member.name.split("/", 1)[-1].encode(errors="surrogateescape"), hashlib.sha256(data).digest()
            order = (fraction(name), name)
            if not is_text(data) or content in places and places[content][0] <= order:
                continue  # of equal contents the path decides, not the archive's order
            whole = b"\f" + name + b"\n" + data
            places[content] = (order, spool.tell(), len(whole), fraction(content) < args.valid)
            spool.write(whole)
    if not places:
        raise BadInput(f"{args.source}: holds no text file" + (
            f" that ends in {' or '.join(args.suffixes)}" if args.suffixes else ""))
    return sorted(places.values())


def source(args):
    """Makes NAME_train.txt.gz and NAME_valid.txt.gz of a source package's files that are text (UTF-8 without NUL bytes, up to 1
    MiB), each content once: a form feed, its path, a line feed and its bytes. They come in the order of a hash of their paths,
    and those whose content hashes below --valid validate, so that the archive's order does not matter. SOURCE is .tar,
    .tar.gz, .tar.bz2 or .tar.xz."""
    out = args.out or Path("datasets") / args.name
    paths = [out / f"{args.name}_{split}.txt.gz" for split in ("train", "valid")]
    counts, sizes, full = [0, 0], [0, 0], False
    with tempfile.TemporaryFile() as spool:
        found = collect(args, spool)
        with new_files(paths) as files:
            for _, place, size, validates in found:
                full = full or not validates and args.bytes and sizes[0] + size > args.bytes
                if full and not validates:
                    continue
                spool.seek(place)
                files[validates].write(spool.read(size))
                counts[validates] += 1
                sizes[validates] += size
            if not sizes[0]:
                raise BadInput(f"{args.source}: no document is left to train on")
    for path, count, size in zip(paths, counts, sizes):
        print(f"{path}: {count:,} files, {size:,} bytes")
    if not sizes[1]:
        paths[1].unlink()
    held = f" --set data.valid={paths[1]}" if sizes[1] else ""
    next_command(f"build/smallworld train --data {paths[0]}{held}")


# ------------------------------------------------------------------------------------- commands --


def number(given):
    with contextlib.suppress(ValueError, OverflowError):
        return int(float(given))
    raise argparse.ArgumentTypeError(f"expected a number of bytes, got '{given}'")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(metavar="WHAT", required=True)
    for function in imdb, sst, text, source:
        what = function.__name__
        command = commands.add_parser(what, help=function.__doc__.split(".")[0], description=function.__doc__)
        command.set_defaults(function=function)
        command.add_argument("source", metavar="SOURCE", type=Path)
        if function in (imdb, sst):
            command.add_argument("--out", metavar="DIR", type=Path, default=Path("datasets") / what,
                                 help="folder to write to; default: %(default)s")
        else:
            command.add_argument("--name", default="source" if function is source else None,
                                 help="beginning of the files' names; default: source, or SOURCE's without its endings")
            command.add_argument("--out", metavar="DIR", type=Path, help="folder to write to; default: datasets/NAME")
        if function is imdb:
            command.add_argument("--half-test", action="store_true",
                                 help="only the test reviews of even number: 12,500, half of each label")
        if function is text:
            for split in "--valid", "--test":
                command.add_argument(split, metavar="SIZE", type=size_of, default=0.05,
                                     help="size in bytes, or a share below 1; default: %(default)s")
        if function is source:
            command.add_argument("--suffixes", metavar=".c,.h", default=(), type=lambda given: tuple(given.split(",")),
                                 help="default: all files")
            command.add_argument("--valid", metavar="SHARE", type=share, default=0.01, help="default: %(default)s")
            command.add_argument("--bytes", metavar="N", type=number,
                                 help="at most so many bytes of training text; default: all")
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    run(main)
