#!/usr/bin/env python3
"""Whether what the README and docs/results.md claim follows from the tables in docs/results.md.

    scripts/claims.py        prints each claim and what the tables give; fails if one differs
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README, RESULTS = ((ROOT / name).read_text() for name in ("README.md", "docs/results.md"))


def table(text, heading):
    """The rows of the table that begins with this heading, as lists of cells without marks."""
    lines = text[text.index(heading):].splitlines()[2:]
    rows = []
    for line in lines:
        if not line.startswith("|"):
            return rows
        rows.append([cell.replace("*", "").strip() for cell in line.strip("|").split("|")])
    return rows


def number(cell):
    return float(re.match(r"[\d.]+", cell)[0])


def mean(values):
    return sum(values) / len(values)


def of_seeds(model):
    """The means of bits, IMDB and SST over the seeds of a model."""
    rows = [row for row in table(RESULTS, "| one pass, 20 M | seed") if row[0] == model]
    return [mean([number(row[k]) for row in rows]) for k in (2, 3, 4)]


def of_size(parameters):
    """Bits, IMDB and SST of the model of as many million parameters."""
    row, = (row for row in table(RESULTS, "| parameters | model | lr | BPC |")
            if row[0] == f"{parameters} M")
    return [number(cell) for cell in row[3:6]]


def claims():
    """What is claimed where, by a pattern whose groups are the numbers; and these numbers by the tables."""
    hubs, dense = of_seeds("hubs"), of_seeds("dense")
    ahead = 100 * (1 - hubs[0] / dense[0])
    joined = number(table(RESULTS, "| n-grams | features | tuned | n-grams and tuned |")[0][3])
    ngrams = number(table(RESULTS, "| n-grams alone |")[0][2])
    source = {row[0].partition(":")[0].partition(",")[0]: mean([number(row[1]), number(row[2])])
              for row in table(RESULTS, "| source, 20 M | seed 1 |")}
    by_source = 100 * (1 - source["hubs"] / source["dense"])
    yield README, r"predict film reviews ([\d.]+) % and C source ([\d.]+) % better", [ahead, by_source]
    yield RESULTS, r"hubs are ([\d.]+) % ahead on source", [by_source]
    yield README, r"errs on ([\d.]+) % of IMDB's, where n-grams\s+err on ([\d.]+) %", [joined, ngrams]
    yield RESULTS, r"hubs are ([\d.]+) % ahead in bits, ([\d.]+) points on IMDB and ([\d.]+) on SST", [
        ahead, dense[1] - hubs[1], dense[2] - hubs[2]]
    row = r"\| [\d,]+ \| \**([\d.]+)\** \| \**([\d.]+) %\** \| \**([\d.]+) %"
    yield README, r"one pass, 20 M: hubs " + row, hubs
    yield README, r"\| dense " + row, dense
    yield README, r"one pass, 100 M: hubs " + row, of_size("93.4")
    yield README, r"one pass, 100 M: hubs .*\n\| dense " + row, of_size("99.7")
    yield RESULTS, r"at 50 and 100 M hubs are ([\d.]+) and ([\d.]+) % ahead", [
        100 * (1 - of_size(hubs)[0] / of_size(dense)[0])
        for hubs, dense in (("46.7", "50.5"), ("93.4", "99.7"))]
    yield RESULTS, r"Chosen by the error on held-out reviews alone, that is ([\d.]+) %", [
        min((number(row[4]), number(row[3])) for row in table(RESULTS, "| model | rate | other | test")
            if row[0] == "hubs")[1]]


def main():
    wrong = 0
    for text, pattern, values in claims():
        found = re.search(pattern, text)
        said = found.groups() if found else ()
        # As many digits as the text has.
        computed = [f"{value:.{len(word.partition('.')[2])}f}" for value, word in zip(values, said)]
        same = found is not None and list(said) == computed
        wrong += not same
        print(f"{'yes' if same else 'NO '}  {pattern[:60]:60}  said {', '.join(said)}; tables "
              f"{', '.join(f'{value:.4f}' for value in values)}")
    if wrong:
        sys.exit(f"{wrong} claims do not follow from the tables")


if __name__ == "__main__":
    main()
