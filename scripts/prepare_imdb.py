#!/usr/bin/env python3
"""Converts the Large Movie Review Dataset (Maas et al. 2011) to the files of configs/imdb-*.yaml.

SOURCE is the published archive, aclImdb_v1.tar.gz, or the folder it unpacks to. Writes
  imdb_train.tsv.gz   25,000 reviews, labels 1 (positive) and 0 (negative)
  imdb_test.tsv.gz    25,000 likewise
  imdb_unsup.tsv.gz   50,000 without a label: -1
with one review on each line, LABEL<TAB>TEXT. Line breaks become spaces; other bytes are kept. Reviews
are in the order of their numbers, with the positive one of a number before the negative one.
"""

import argparse
import re
import sys
import tarfile
from pathlib import Path

from prepared import (BadInput, check_sum, decompressed, document, is_mac_os, new_files, next_command,
                      reading, run)

EXAMPLE = """example:
  scripts/prepare_imdb.py aclImdb_v1.tar.gz
  build/smallworld train configs/imdb-20m-hubs.yaml
"""

ARCHIVE, MD5 = "aclImdb_v1.tar.gz", "7c2ac02c03563afcf9b574c7e56c153a"

# In the archive: aclImdb/SPLIT/KIND/NUMBER_RATING.txt
NAME = re.compile(r"(?:^|/)(train|test)/(pos|neg|unsup)/(\d+)_(\d+)\.txt$")

FILES = {  # name: [(split, kind, label, reviews as published)]
    "imdb_train": [("train", "pos", 1, 12500), ("train", "neg", 0, 12500)],
    "imdb_test":  [("test", "pos", 1, 12500), ("test", "neg", 0, 12500)],
    "imdb_unsup": [("train", "unsup", -1, 50000)],
}


def archived(path):
    """Yields (name, bytes) of the archive's files."""
    with reading(path), decompressed(path) as file:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                if member.isfile() and not is_mac_os(member.name) and NAME.search(member.name):
                    yield member.name, archive.extractfile(member).read()
        while file.read(1 << 20):  # to its end, where gzip's checksum is
            pass


def unpacked(folder):
    """Likewise of a folder's."""
    for path in folder.glob("**/*.txt"):
        if NAME.search(path.as_posix()) and not is_mac_os(path.as_posix()):
            yield path.as_posix(), path.read_bytes()


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE", type=Path)
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("datasets/imdb"),
                        help="folder to write to; default: %(default)s")
    parser.add_argument("--half-test", action="store_true",
                        help="write only the test reviews of even number: 12,500, half of each label")
    args = parser.parse_args()

    reviews = {}  # (split, kind): [(number, text)]
    for name, text in (unpacked if args.source.is_dir() else archived)(args.source):
        split, kind, number, _ = NAME.search(name).groups()
        reviews.setdefault((split, kind), []).append((int(number), text))
    for split, kind, _, published in sum(FILES.values(), []):
        found = len(reviews.get((split, kind), []))
        if not found:
            raise BadInput(f"{args.source}: no reviews in aclImdb/{split}/{kind}: expected "
                           "aclImdb_v1.tar.gz or the folder it unpacks to")
        if found != published:
            print(f"{args.source}: {found:,} reviews in {split}/{kind}; {published:,} are published",
                  file=sys.stderr)

    paths = [args.out / f"{name}.tsv.gz" for name in FILES]
    lines = []
    with new_files(paths) as files:
        for path, file, sources in zip(paths, files, FILES.values()):
            rows = [(number, -label, text) for split, kind, label, _ in sources
                    for number, text in reviews[split, kind]
                    if not (args.half_test and split == "test" and number % 2)]
            for number, minus_label, text in sorted(rows):
                file.write(document(-minus_label, text))
            lines.append(f"{path}: {len(rows):,} reviews")
    print(*lines, sep="\n")
    if args.source.is_file() and args.source.name == ARCHIVE:
        with open(args.source, "rb") as file:
            check_sum(args.source, MD5, iter(lambda: file.read(1 << 20), b""))
    next_command("build/smallworld train configs/imdb-20m-hubs.yaml")


if __name__ == "__main__":
    run(main)
