#!/usr/bin/env python3
"""Cuts any text into a training, a validation and a test file, in this order. Keeps all bytes.

SOURCE is a file, plain, .gz, .bz2, .xz, or a .zip that holds one file. By default the last 5 % are
the test file and the 5 % before them validation. On enwik8 and text8, of 100,000,000 bytes each,
that is the usual split of 90, 5 and 5 MB. Writes DIR/NAME_train.txt, NAME_valid.txt, NAME_test.txt.
"""

import argparse
from pathlib import Path

from prepared import BadInput, check_sum, new_files, next_command, open_source, reading, run, share

EXAMPLE = """examples:
  scripts/prepare_text.py enwik8.zip
  scripts/prepare_text.py text8.zip
  scripts/prepare_text.py my_book.txt --name book --valid 100000 --test 0
"""

PUBLISHED = {"enwik8": 100_000_000, "text8": 100_000_000}
SUMS = {"enwik8": "a1fa5ffddb56f4953e226637dabbb36a", "text8": "3bea1919949baf155f99411df5fada7e"}
BLOCK = 1 << 20


def blocks(path):
    """The text piece by piece."""
    with reading(path), open_source(path) as file:
        while block := file.read(BLOCK):
            yield block


def size_of(text):
    """A number of bytes, or a share below 1."""
    return int(text) if text.isdigit() else share(text, "bytes, or a share below 1")


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE", type=Path)
    parser.add_argument("--name", help="beginning of the files' names; default: SOURCE's without its endings")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder to write to; default: datasets/NAME")
    parser.add_argument("--valid", metavar="SIZE", type=size_of, default=0.05,
                        help="size in bytes, or a share below 1; default: %(default)s")
    parser.add_argument("--test", metavar="SIZE", type=size_of, default=0.05,
                        help="size in bytes, or a share below 1; default: %(default)s")
    args = parser.parse_args()

    name = args.name or args.source.name.split(".")[0]
    total = sum(map(len, blocks(args.source)))
    if not total:
        raise BadInput(f"{args.source}: is empty")
    if total != PUBLISHED.get(name, total):
        raise BadInput(f"{args.source}: has {total:,} bytes, {name} has {PUBLISHED[name]:,}: is it "
                       "whole? Any other text needs another --name")
    valid, test = (round(size * total) if isinstance(size, float) else size
                   for size in (args.valid, args.test))
    if valid + test >= total:
        raise BadInput(f"{args.source}: has {total:,} bytes: {valid:,} to validate on and {test:,} "
                       "to test on leave none to train on")

    out = args.out or Path("datasets") / name
    splits = {"train": total - valid - test, "valid": valid, "test": test}
    splits = {split: size for split, size in splits.items() if size}
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
    if name in SUMS:
        check_sum(args.source, SUMS[name], blocks(args.source))
    valid = f" --set data.valid={paths[1]}" if "valid" in splits else ""
    next_command("build/smallworld train configs/enwik8.yaml" if paths[0].as_posix() ==
                 "datasets/enwik8/enwik8_train.txt"
                 else f"build/smallworld train --data {paths[0]}{valid}")


if __name__ == "__main__":
    run(main)
