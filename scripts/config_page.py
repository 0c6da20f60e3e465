#!/usr/bin/env python3
"""Writes docs/config.md, a table of every key of a config, from `train --help-config`.

    scripts/config_page.py [--program build/smallworld] [--check]

With --check it writes nothing, and exits with 1 if the page is out of date.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).resolve().parent.parent / "docs" / "config.md"

HEAD = """# Keys of a config

Written by `scripts/config_page.py` out of `smallworld train --help-config`; a test compares the two.

A config is a YAML file of the sections below. Every key but `data.train` has a default. A key that is unset by default can
be set to `null` again. `--set train.lr=0.001` overrides one key, and may be repeated. An unknown key, a key given twice, or
a value out of its range is refused with its file and line. The run folder's `config.yaml` holds every key as the run used
it. [training.md](training.md) gives the formulas behind the keys, and [data.md](data.md) the files.
"""

# "  hidden (integer, 1024): number of ... [at least 8, at most 1048576]", as one line
KEY = re.compile(r"  (?P<key>\w+) \((?P<type>.+), (?P<default>\S+)\): (?P<text>.*?)"
                 r"(?: \[(?P<values>[^\]]*)\])?$")


def sections(text):
    """[(section, [(key, type, default, text, values or None)])] of what --help-config prints."""
    lines = []
    for line in text.splitlines():
        if line.startswith("      "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
    found = []
    for line in lines:
        if re.fullmatch(r"\w+:", line):
            found.append((line[:-1], []))
            continue
        key = KEY.fullmatch(line)
        if not key or not found:
            sys.exit(f"config_page.py: expected '  KEY (TYPE, DEFAULT): SENTENCE', got '{line}'")
        found[-1][1].append(key.groups())
    return found


def values_text(kind, values):
    """Choices as code, a range as it is."""
    if values and kind == "choice":
        return ", ".join(f"`{choice}`" for choice in values.split())
    return ", ".join(filter(None, [kind, values]))


def page(text):
    """The page's Markdown."""
    out = [HEAD]
    for section, keys in sections(text):
        out += [f"## {section}", "", "| key | values | default | meaning |", "| --- | --- | --- | --- |"]
        for key, kind, default, meaning, values in keys:
            cells = [f"`{section}.{key}`", values_text(kind, values),
                     default if default == "unset" else f"`{default}`", meaning]
            out.append("| " + " | ".join(cell.replace("<", "&lt;") for cell in cells) + " |")
        out.append("")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", default="build/smallworld")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    printed = subprocess.run([options.program, "train", "--help-config"], check=True,
                             stdout=subprocess.PIPE, text=True).stdout
    wanted = page(printed)
    if not options.check:
        PAGE.write_text(wanted)
    elif not PAGE.exists() or PAGE.read_text() != wanted:
        sys.exit("docs/config.md is not what scripts/config_page.py writes: run it and commit the page")


if __name__ == "__main__":
    main()
