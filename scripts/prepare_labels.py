#!/usr/bin/env python3
"""Converts labelled text in common formats to documents, LABEL<TAB>TEXT.

SOURCE is CSV or TSV whose first line names the columns, or fastText's lines, "__label__NAME TEXT";
plain, .gz, .bz2, .xz, or a .zip that holds one file. Only CSV quotes fields; a tab always ends a
TSV's. Labels stay as they are, so that several files agree: integers from 0 on, or names. Writes
DIR/NAME.tsv.gz with one document on each line. Line breaks inside a text become spaces.
"""

import argparse
import csv
import io
import re
from pathlib import Path

from prepared import BadInput, document, new_files, next_command, open_source, reading, run

EXAMPLE = """examples:
  scripts/prepare_labels.py reviews.csv --text review --label sentiment
  scripts/prepare_labels.py train.fasttext.txt --name news
"""

TEXTS = ("text", "review", "sentence", "content", "document", "comment")
LABELS = ("label", "sentiment", "class", "category", "stars", "rating")
PREFIX = "__label__"
LONGEST = 31  # bytes of a name


def column(path, header, given, usual, what):
    """The index of the column that holds texts, or labels."""
    names = [name.strip().lower() for name in header]
    found = [names.index(name) for name in ([given.lower()] if given else usual) if name in names]
    if not found:
        raise BadInput(f"{path}:1: no column {given or ' or '.join(usual)}: expected --{what} NAME, one "
                       f"of: {', '.join(header)}")
    return found[0]


def fasttext(path, lines):
    """Yields (row, label, text)."""
    for number, line in enumerate(lines, 1):
        line = line.rstrip("\r\n")
        labels = [found for found in re.finditer(r"\S+\s?", line) if found[0].startswith(PREFIX)]
        if len(labels) != 1:
            raise BadInput(f"{path}:{number}: expected one {PREFIX}NAME, found {len(labels)}")
        start, end = labels[0].span()
        yield number, labels[0][0].strip()[len(PREFIX):], line[:start] + line[end:]


def table(path, lines, args):
    """Yields (row, label, text)."""
    first = next(lines)
    delimiter = "\t" if "\t" in first else ";" if first.count(";") > first.count(",") else ","
    csv.field_size_limit(1 << 30)
    rows = csv.reader((line for part in ([first], lines) for line in part), delimiter=delimiter, strict=True,
                      quoting=csv.QUOTE_NONE if delimiter == "\t" else csv.QUOTE_MINIMAL)
    try:
        header = next(rows)
        text = column(path, header, args.text, TEXTS, "text")
        label = column(path, header, args.label, LABELS, "label")
        for row in rows:
            if row and len(row) != len(header):
                raise BadInput(f"{path}:{rows.line_num}: expected {len(header)} columns, found "
                               f"{len(row)}")
            if row:
                yield rows.line_num, row[label].strip(), row[text]
    except csv.Error as problem:
        raise BadInput(f"{path}:{rows.line_num}: no CSV: {problem}") from None


def checked(path, found):
    """The rows with their labels as smallworld reads them: all integers, or all names."""
    whole = [re.fullmatch(r"([+-]?\d{1,9})(\.0+)?", label) for _, label, _ in found]
    for integer, (number, label, text) in zip(whole, found):
        name = re.match(r"[^\W\d]", label) and len(label.encode("utf-8", "surrogateescape")) <= LONGEST
        if bool(integer) != bool(whole[0]) or not (integer or name):
            raise BadInput(f"{path}:{number}: label {label!r}: expected integers throughout, or names of at "
                           f"most {LONGEST} bytes that begin with a letter")
        value = int(integer[1]) if integer else label
        if integer and value < 0:
            raise BadInput(f"{path}:{number}: label {label}: expected 0 or more, as -1 means no label; "
                           "give classes names, such as negative")
        yield value, text


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
    found = list(checked(args.source, found))
    with new_files([path]) as (out,):
        for label, text in found:
            out.write(document(label, text.encode("utf-8", "surrogateescape")))
    print(f"{path}: {len(found):,} documents; labels {', '.join(map(str, sorted({label for label, _ in found})))}")
    next_command(f"build/smallworld train --data {path}")


if __name__ == "__main__":
    run(main)
