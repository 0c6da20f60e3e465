#!/usr/bin/env python3
"""Converts the Stanford Sentiment Treebank (Socher et al. 2013) to labelled sentences of two classes.

SOURCE is the published archive of trees, trainDevTestTrees_PTB.zip, or the folder it unpacks to.
Writes sst_train.tsv.gz (6,920 sentences), sst_dev.tsv.gz (872) and sst_test.tsv.gz (1,821), with
one sentence on each line, LABEL<TAB>TEXT. The label is 1 if the sentence is positive or very positive,
and 0 if it is negative or very negative; neutral sentences are left out. The trees hold tokens. By
default they are joined to ordinary text again, as far as possible.
"""

import argparse
import re
import zipfile
from pathlib import Path

from prepared import BadInput, document, is_mac_os, new_files, next_command, reading, run

EXAMPLE = """example:
  scripts/prepare_sst.py trainDevTestTrees_PTB.zip
  build/smallworld features runs/imdb-20m/last.safetensors --data datasets/sst/sst_test.tsv.gz \\
    --out runs/imdb-20m/sst_test
"""

SPLITS = {"train": 6920, "dev": 872, "test": 1821}  # sentences of two classes, as published
LABELS = {"0": 0, "1": 0, "2": None, "3": 1, "4": 1}

TREE = re.compile(r"\(([0-4]) ")
LEAF = re.compile(r"\([0-4] ([^() ]+)\)")

# Replacements that turn Penn Treebank tokens into text, in this order.
TEXT = [
    (re.compile(r"-L[RSC]B-"), "("),
    (re.compile(r"-R[RSC]B-"), ")"),
    (re.compile(r"\\([/*])"), r"\1"),
    (re.compile(r"(?<!\S)`` ?"), '"'),
    (re.compile(r" ''(?!\S)"), '"'),
    (re.compile(r"(?<!\S)` ?"), "'"),
    (re.compile(r" (n't|'(?:s|S|m|re|ve|d|ll)?)(?!\w)"), r"\1"),
    (re.compile(r" (?!\.\.)([,;:?!.)%])(?![^\s\"').,])"), r"\1"),
    (re.compile(r"([($]) "), r"\1"),
]


def plain(tokens):
    """Joins tokens to ordinary text."""
    text = " ".join(tokens)
    for pattern, replacement in TEXT:
        text = pattern.sub(replacement, text)
    return text


def trees(source, split):
    """The lines of a split's file of trees."""
    name = f"{split}.txt"
    if source.is_dir():
        path = next((path for path in (source / name, source / "trees" / name) if path.exists()),
                    None)
        data = path.read_bytes() if path else None
    else:
        with reading(source), zipfile.ZipFile(source) as archive:
            found = [inside for inside in archive.namelist() if not is_mac_os(inside)
                     and (inside == name or inside.endswith("/" + name))]
            data = archive.read(found[0]) if found else None
    if data is None:
        raise BadInput(f"{source}: has no {name}: expected trainDevTestTrees_PTB.zip or its folder")
    return data.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")


def sentences(source, split, keep_tokens):
    """Yields (label, text) of the sentences that are not neutral."""
    for number, line in enumerate(trees(source, split), 1):
        root, leaves = TREE.match(line), LEAF.findall(line)
        if not root or not leaves:
            raise BadInput(f"{source}: {split}.txt:{number}: expected a tree, "
                           "(LABEL (LABEL WORD) ...)")
        label = LABELS[root.group(1)]
        if label is not None:
            yield label, " ".join(leaves) if keep_tokens else plain(leaves)


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE", type=Path)
    parser.add_argument("--out", metavar="DIR", type=Path, default=Path("datasets/sst"),
                        help="folder to write to; default: %(default)s")
    parser.add_argument("--tokens", action="store_true", help="keep the tokens, separated by blanks")
    args = parser.parse_args()

    paths = [args.out / f"sst_{split}.tsv.gz" for split in SPLITS]
    lines = []
    with new_files(paths) as files:
        for path, file, (split, published) in zip(paths, files, SPLITS.items()):
            rows = list(sentences(args.source, split, args.tokens))
            for label, text in rows:
                file.write(document(label, text.encode("utf-8", "surrogateescape")))
            usual = "" if len(rows) == published else f"; {published:,} are published"
            lines.append(f"{path}: {len(rows):,} sentences{usual}")
    print(*lines, sep="\n")
    next_command(f"build/smallworld features RUN --data {paths[0]} --out RUN/sst_train")


if __name__ == "__main__":
    run(main)
