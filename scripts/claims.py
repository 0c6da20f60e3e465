#!/usr/bin/env python3
"""Whether what the README and docs/results.md claim follows from the tables in docs.

    scripts/claims.py        prints each claim and what the tables give; fails if one differs
"""

import math
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README, RESULTS, PERFORMANCE = ((ROOT / name).read_text() for name in ("README.md", "docs/results.md", "docs/performance.md"))


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


def of_seeds(model, optimizer="Muon", size="20 M"):
    """The means of a model's columns, bits first, then IMDB and SST or seconds, over the seeds that have them."""
    rows = [row for row in table(RESULTS, f"| one pass, {size}, {optimizer} | seed") if row[0] == model]
    return [mean([number(row[k]) for row in rows if row[k] != "not run"]) for k in range(2, len(rows[0]))]


def of_100m():
    """Bits, IMDB and SST of hubs and of the dense model of 100 M, each at the beta2 of its least bits."""
    rows = table(RESULTS, "| 100 M, beta2 |")
    return [[number(cell) for cell in min(rows, key=lambda row: number(row[k]))[k:k + 3]] for k in (1, 4)]


def ahead(hubs, dense):
    return 100 * (1 - hubs / dense)


def claims():
    """What is claimed where, by a pattern whose groups are the numbers; and these numbers by the tables."""
    hubs, dense = of_seeds("hubs"), of_seeds("dense")
    adam, adam_dense = of_seeds("hubs", "beta2 .98"), of_seeds("dense", "beta2 .98")
    adam_large, adam_large_dense = of_100m()
    source = ahead(of_seeds("hubs", "source")[0], of_seeds("dense", "source")[0])
    joined = number(table(RESULTS, "| 100 M | n-grams, % | features, % |")[0][4])
    beta2 = {row[0].split()[0]: row for row in table(RESULTS, "| beta2 | rate | decay |")
             if row[1:3] == [".008", ".1"]}
    rows = table(RESULTS, "| 3 minutes, 20 M |")  # two optimizers of hubs, then of the dense model
    minutes = [[min(number(row[k]) for row in side) for k in (2, 3)] for side in (rows[:2], rows[2:])]
    long, long_dense = (min(number(row[k]) for row in table(RESULTS, "| 18 minutes, 100 M | hubs")) for k in (2, 7))
    tries = table(RESULTS, "| 100 M, Muon: muon_lr |")
    tried, tried_dense = (min(number(row[k]) for row in tries if row[k][:1] in "*1") for k in (1, 5))
    middle, middle_dense, large, large_dense = (of_seeds(model, size=size) for size in ("50 M", "100 M") for model in ("hubs", "dense"))
    yield README, r"predict film reviews ([\d.]+) % better[^%]*, source code ([\d.]+) %", [ahead(long, long_dense), source]
    small, small_dense = ([number(word) for word in row[1:] if word != "not run"]
                          for row in table(RESULTS, "| `model.init_input` | 1 | .3 | .1 | .03"))
    yield RESULTS, r"hubs of 20 M are ([.\d]+) % behind now", [-ahead(min(small), min(small_dense))]
    muon_labels = table(RESULTS, "| from Muon's text, 20 M |")
    learned = [mean([number(word) for row in muon_labels if row[0] == model for word in row[2].split(", ")]) for model in ("dense", "hubs")]
    large_labels = table(RESULTS, "| model, IMDB | test, % |")[-2:]  # hubs, dense
    learned += [mean([number(word) for word in row[1].split("; ")]) for row in reversed(large_labels)]
    yield RESULTS, r"four tries each, at 100 M five \| ([\d.]+) to ([\d.]+) % \| \| ([\d.]+) to ([\d.]+) %", learned
    yield RESULTS, r"after \[equal time\]\(#equal-time\) \| ([\d.]+) %, 3 minutes, deviation 1 \| \| ([\d.]+) %, 18 minutes", [
        ahead(minutes[0][0], minutes[1][0]), ahead(long, long_dense)]
    yield RESULTS, r"So after 18 minutes of 100 M hubs are ([\d.]+) % ahead", [ahead(long, long_dense)]
    yield RESULTS, r"whichever optimizer has it, hubs are ([\d.]+) % ahead in bits and ([\d.]+) points on IMDB", [
        ahead(minutes[0][0], minutes[1][0]), minutes[1][1] - minutes[0][1]]
    yield RESULTS, r"Muon takes ([\d.]+) % off hubs and ([\d.]+) % off the dense", [
        ahead(tried, adam_large[0]), ahead(tried_dense, adam_large_dense[0])]
    yield RESULTS, r"There hubs are ([\d.]+) % ahead, ([\d.]+) points on IMDB and ([\d.]+) on SST", [
        ahead(middle[0], middle_dense[0]), middle_dense[1] - middle[1], middle_dense[2] - middle[2]]
    cells, behind, median = re.search(r"of the (\d+) cells that are left it is\s+ahead in (\d+),[^|]*median ratio is (\d\.\d)", PERFORMANCE).groups()
    yield README, r"(\d+) of (\d+) products beat cuSPARSE's, in the median ([\d.]+) times", [
        int(cells) - int(behind), int(cells), float(median)]
    cudnn = [[number(cell) for cell in row[1:]] for row in table(PERFORMANCE, "| 20 M hubs by Adam |")]
    train, read = [dense / ours for ours, dense, _, _ in cudnn], [ours / dense for _, _, ours, dense in cudnn]
    yield README, r"train by Adam ([.\d]+) to\s+([\d.]+) times as fast[^,]*,[^,]*, and read ([\d.]+) to ([\d.]+) times", [
        min(train), max(train), min(read), max(read)]
    wide = [row for row in table(PERFORMANCE, "| by Adam | ms an update") if row[0][:6] == "`imdb-"][-1]
    yield README, r"of 100 M ([.\d]+) and ([.\d]+)", [number(wide[2]), number(wide[4])]
    tasks = table(RESULTS, "| task (`332e046`")
    rivals = [[float(word) for word in row[7].split("; ")] for row in tasks]
    yield README, r"in at most (\d+) % of its time", [math.ceil(100 * max(ours / theirs for ours, theirs in rivals))]
    yield README, r"% of IMDB's, by n-grams ([\d.]+)", [number(row[3]) for row in tasks if row[0][:4] == "IMDB"]
    yield README, r"class reviews better: ([\d.]+) % wrong, not ([\d.]+)", [hubs[1], dense[1]]
    yield README, r"parameters\]\(docs/results.md#labels\) ([\d.]+) % of IMDB's", [joined]
    yield RESULTS, r"deviation 1 \| ([\d.]+) % \| ([\d.]+) % \| ([\d.]+) %", [
        ahead(hubs[0], dense[0]), ahead(middle[0], middle_dense[0]), ahead(large[0], large_dense[0])]
    yield RESULTS, r"linear probe after it \| ([\d.]+) to ([\d.]+) % \| ([\d.]+) to ([\d.]+) % \| ([\d.]+) to ([\d.]+) %", [
        dense[1], hubs[1], middle_dense[1], middle[1], large_dense[1], large[1]]
    yield RESULTS, r"at \.999 costs a dense\s+model ([.\d]+) %, hubs ([.\d]+) % at 20 M", [
        100 * (number(beta2[".999"][k]) / number(min(beta2.values(), key=lambda row: number(row[k]))[k]) - 1)
        for k in (4, 3)]
    yield RESULTS, r"So hubs are ([\d.]+) % ahead in bits, ([\d.]+) points on IMDB and ([\d.]+) on SST", [
        ahead(adam[0], adam_dense[0]), adam_dense[1] - adam[1], adam_dense[2] - adam[2]]
    yield RESULTS, r"With Muon hubs are ([\d.]+) % ahead in bits, ([\d.]+) points on IMDB and ([\d.]+) on SST", [
        ahead(hubs[0], dense[0]), dense[1] - hubs[1], dense[2] - hubs[2]]
    yield RESULTS, r"takes ([.\d]+) % off hubs and ([.\d]+) % off dense", [ahead(hubs[0], adam[0]), ahead(dense[0], adam_dense[0])]
    yield RESULTS, r"Muon takes off another ([.\d]+) and ([.\d]+) %", [ahead(dense[0], adam_dense[0]), ahead(hubs[0], adam[0])]
    yield RESULTS, r"Each at its best, hubs are ([\d.]+) % ahead in bits, and ([\d.]+) points on IMDB", [
        ahead(adam_large[0], adam_large_dense[0]), adam_large_dense[1] - adam_large[1]]
    yield RESULTS, r"at 100 M hubs are ([\d.]+) % ahead in bits after equal text, ([\d.]+) points on IMDB and ([\d.]+) on SST", [
        ahead(large[0], large_dense[0]), large_dense[1] - large[1], large_dense[2] - large[2]]
    yield RESULTS, r"both by Adam \| ([\d.]+) %", [source]
    yield RESULTS, r"So hubs are ([\d.]+) % ahead on source", [source]
    row = r"\| [\d,]+ \| \**([\d.]+)\** \| \**([\d.]+) %\** \| \**([\d.]+) %"
    yield README, r"one pass, 20 M: hubs " + row, hubs
    yield README, r"\| dense " + row, dense
    yield README, r"one pass, 100 M: hubs " + row, large
    yield README, r"one pass, 100 M: hubs .*\n\| dense " + row, large_dense


def main():
    wrong = 0
    for text, pattern, values in claims():
        found = re.search(pattern, text)
        said = found.groups() if found else ()
        # As many digits as the text has.
        computed = [f"{value:.{len(word.partition('.')[2])}f}"[word.startswith("."):] for value, word in zip(values, said)]
        same = found is not None and list(said) == computed
        wrong += not same
        print(f"{'yes' if same else 'NO '}  {pattern[:60]:60}  said {', '.join(said)}; tables "
              f"{', '.join(f'{value:.4f}' for value in values)}")
    if wrong:
        sys.exit(f"{wrong} claims do not follow from the tables")


if __name__ == "__main__":
    main()
