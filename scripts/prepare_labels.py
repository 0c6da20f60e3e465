#!/usr/bin/env python3
"""Converts labelled text in common formats to documents, LABEL<TAB>TEXT.

SOURCE is CSV or TSV whose first line names the columns, or fastText's lines, "__label__NAME TEXT";
plain, .gz, .bz2, .xz, or a .zip that holds one file. Labels that are not integers are
numbered in the order of their names, and the numbers are printed. Writes DIR/NAME.tsv.gz with one
document on each line. Line breaks inside a text become spaces.
"""

import argparse
import csv
import io
from pathlib import Path

from prepared import BadInput, document, new_files, next_command, open_source, reading, run

EXAMPLE = """examples:
  scripts/prepare_labels.py reviews.csv --text review --label sentiment
  scripts/prepare_labels.py train.fasttext.txt --name news
"""

TEXTS = ("text", "review", "sentence", "content", "document", "comment")
LABELS = ("label", "sentiment", "class", "category", "stars", "rating")
PREFIX = "__label__"


def column(path, header, given, usual, what):
    """The index of the column that holds texts, or labels."""
    names = [name.strip().lower() for name in header]
    found = [names.index(name) for name in ([given.lower()] if given else usual) if name in names]
    if not found:
        raise BadInput(f"{path}:1: no column {given or ' or '.join(usual)}: expected --{what} NAME, one "
                       f"of: {', '.join(header)}")
    return found[0]


def fasttext(path, lines):
    """Yields (label, text)."""
    for number, line in enumerate(lines, 1):
        words = line.rstrip("\r\n").split(" ")
        labels = [word for word in words if word.startswith(PREFIX)]
        if len(labels) != 1:
            raise BadInput(f"{path}:{number}: expected one {PREFIX}NAME, found {len(labels)}")
        yield labels[0][len(PREFIX):], " ".join(word for word in words if word != labels[0])


def table(path, lines, args):
    """Yields (label, text)."""
    first = next(lines)
    delimiter = "\t" if "\t" in first else ";" if first.count(";") > first.count(",") else ","
    csv.field_size_limit(1 << 30)
    rows = csv.reader((line for part in ([first], lines) for line in part), delimiter=delimiter,
                      strict=True)
    try:
        header = next(rows)
        text = column(path, header, args.text, TEXTS, "text")
        label = column(path, header, args.label, LABELS, "label")
        for row in rows:
            if row and len(row) <= max(text, label):
                raise BadInput(f"{path}:{rows.line_num}: expected {len(header)} columns, found "
                               f"{len(row)}")
            if row:
                yield row[label].strip(), row[text]
    except csv.Error as problem:
        raise BadInput(f"{path}:{rows.line_num}: no CSV: {problem}") from None


def numbers(labels):
    """{label: number}: integers stay as they are."""
    try:
        return {label: int(label) for label in labels}
    except ValueError:
        return {label: number for number, label in enumerate(sorted(labels))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, epilog=EXAMPLE,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", metavar="SOURCE", type=Path)
    parser.add_argument("--text", metavar="COLUMN", help=f"default: {', '.join(TEXTS)}")
    parser.add_argument("--label", metavar="COLUMN", help=f"default: {', '.join(LABELS)}")
    parser.add_argument("--name", help="name of the file; default: SOURCE's without its endings")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder to write to; default: datasets/NAME")
    args = parser.parse_args()

    with reading(args.source), open_source(args.source) as file:
        lines = io.TextIOWrapper(file, "utf-8-sig", "surrogateescape", newline="")
        first = next(lines, None)
        if first is None:
            raise BadInput(f"{args.source}: is empty")
        again = (line for part in ([first], lines) for line in part)
        found = list(fasttext(args.source, again) if first.startswith(PREFIX)
                     else table(args.source, again, args))
    if not found:
        raise BadInput(f"{args.source}: holds no documents")

    name = args.name or args.source.name.split(".")[0]
    path = (args.out or Path("datasets") / name) / f"{name}.tsv.gz"
    numbered = numbers({label for label, _ in found})
    with new_files([path]) as (out,):
        for label, text in found:
            out.write(document(numbered[label], text.encode("utf-8", "surrogateescape")))
    print(f"{path}: {len(found):,} documents; labels "
          + ", ".join(f"{number} ({label})" for label, number in
                      sorted(numbered.items(), key=lambda item: item[1])))
    next_command(f"build/smallworld train --data {path}")


if __name__ == "__main__":
    run(main)
