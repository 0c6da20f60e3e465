#!/usr/bin/env python3
"""Source code to a training and a validation text: a large text that travels well compressed.

SOURCE is a source package as its project publishes it: .tar, .tar.gz, .tar.bz2 or .tar.xz. Its
documents are the files that are text, UTF-8 without NUL bytes, each content once. One stands in the
text as a form feed, its path without the archive's first folder, a line feed, and its bytes as they
are. They come in the order of a hash of their paths, so neither the archive's order nor its folders
decide what follows what, and those whose content hashes below --valid are the validation text: the
same ones whatever else is there. Writes DIR/NAME_train.txt.gz and NAME_valid.txt.gz; equal contents
give equal files.
"""

import argparse
import hashlib
import tarfile
import tempfile
from pathlib import Path

from prepared import BadInput, new_files, next_command, reading, run, share

EXAMPLE = """examples:
  scripts/prepare_source.py linux-6.12.tar.xz --name linux --bytes 400e6 --suffixes .c,.h
  scripts/prepare_source.py Python-3.13.0.tar.xz
"""

SCALE = 1 << 64


def fraction(data):
    """A hash of bytes as a number from 0 to 1."""
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big") / SCALE


def is_text(data):
    if not data or b"\0" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def documents(args):
    """Path and content of each file that may become a document, in the archive's order."""
    with reading(args.source), tarfile.open(args.source) as archive:
        for member in archive:
            wanted = not args.suffixes or member.name.endswith(args.suffixes)
            if member.isfile() and wanted and member.size <= args.most:
                data = archive.extractfile(member).read()
                if is_text(data):
                    yield member.name.split("/", 1)[-1], data


def collect(args, spool):
    """Writes each document to `spool`; [(order, place, size, validates)] in their order."""
    places = {}
    for path, data in documents(args):
        content = hashlib.sha256(data).digest()
        name = path.encode(errors="surrogateescape")
        text = b"\f" + name + b"\n" + data
        order = (fraction(name), name)
        if content in places and places[content][0] <= order:
            continue  # of equal contents the path decides, not the archive's order
        places[content] = (order, spool.tell(), len(text), fraction(content) < args.valid)
        spool.write(text)
    found = sorted(places.values())
    if not found:
        raise BadInput(f"{args.source}: holds no text file" + (
            f" that ends in {' or '.join(args.suffixes)}" if args.suffixes else ""))
    return found


def number(text):
    try:
        return int(float(text))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"expected a number of bytes, got '{text}'") from None


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE", type=Path)
    parser.add_argument("--name", default="source", help="default: %(default)s")
    parser.add_argument("--out", metavar="DIR", type=Path, help="default: datasets/NAME")
    parser.add_argument("--suffixes", metavar=".c,.h", default=(),
                        type=lambda text: tuple(text.split(",")), help="default: all files")
    parser.add_argument("--valid", metavar="SHARE", type=share, default=0.01,
                        help="default: %(default)s")
    parser.add_argument("--bytes", metavar="N", type=number,
                        help="at most so many bytes of training text; default: all")
    parser.add_argument("--xz", action="store_true",
                        help="write .txt.xz files: smaller by a third, and ten times slower to write")
    parser.add_argument("--most", metavar="N", type=number, default=1 << 20,
                        help="leave out larger files, which are seldom written by hand; default: 1 MiB")
    args = parser.parse_args()

    out = args.out or Path("datasets") / args.name
    ending = "xz" if args.xz else "gz"
    paths = [out / f"{args.name}_{split}.txt.{ending}" for split in ("train", "valid")]
    counts, sizes, full = [0, 0], [0, 0], False
    with tempfile.TemporaryFile() as spool:
        found = collect(args, spool)
        with new_files(paths) as files:
            for _, place, size, validates in found:
                full = full or not validates and sizes[0] + size > (args.bytes or SCALE)
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
    valid = f" --set data.valid={paths[1]}" if sizes[1] else ""
    next_command(f"build/smallworld train --data {paths[0]}{valid}")


if __name__ == "__main__":
    run(main)
