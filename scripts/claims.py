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


def of_seeds(model, size):
    """The means of a model's columns over its seeds: bits, IMDB, SST and seconds."""
    rows = [row for row in table(RESULTS, f"| one pass, {size}, today | seed") if row[0] == model]
    return [mean([number(row[k]) for row in rows]) for k in range(2, len(rows[0]))]


def ahead(hubs, dense):
    return 100 * (1 - hubs / dense)


def claims():
    """What is claimed where, by a pattern whose groups are the numbers; and these numbers by the tables."""
    hubs, dense, large, large_dense = (of_seeds(model, size) for size in ("20 M", "100 M") for model in ("hubs", "dense"))
    rates = [[[float(word) for word in cell.split(", ")] for cell in row[1:-1] if cell != "not run"]
             for row in table(RESULTS, "| one pass, 20 M, source, seeds 1, 2, 3 |")]  # hubs, dense
    source = ahead(*(min(mean(seeds) for seeds in side if len(seeds) == 3) for side in rates))
    joined = number(table(RESULTS, "| 100 M | n-grams, % | features, % |")[0][4])
    rows = table(RESULTS, "| 3 minutes, 20 M |")  # two optimizers of hubs, then of the dense model
    short, short_dense = ([min(number(row[k]) for row in side if row[k] != "not run") for k in (2, 4)] for side in (rows[:2], rows[2:]))
    rows = table(RESULTS, "| 18 minutes, 100 M | hubs")  # of hubs, then of the dense model: bits on the test, on validation
    long, long_valid, long_dense, long_dense_valid = (min(number(row[k]) for row in rows) for k in (2, 3, 7, 8))
    equal_time = [ahead(short[0], short_dense[0]), ahead(long, long_dense)]
    yield README, r"in ([.\d]+) of its time \(20 M\) and ([.\d]+) \(100 M\)", [hubs[3] / dense[3], large[3] / large_dense[3]]
    yield README, r"they predict ([\d.]+) and ([\d.]+) % better[^%]*one pass over \[source code\]\S+ ([\d.]+) %", [*equal_time, source]
    yield RESULTS, r"in ([.\d]+) of\s+the time at 20 M\s+and in ([.\d]+) at 100 M", [hubs[3] / dense[3], large[3] / large_dense[3]]
    yield RESULTS, r"both by Muon \| ([\d.]+) and ([\d.]+) \| ([\d.]+) and ([\d.]+) \|", [hubs[0], dense[0], large[0], large_dense[0]]
    yield RESULTS, r"H200 for it \| ([\d.]+) and ([\d.]+) \| ([\d.]+) and ([\d.]+) \|", [hubs[3], dense[3], large[3], large_dense[3]]
    yield RESULTS, r"linear probe after it \| ([\d.]+) and ([\d.]+) % \| ([\d.]+) and ([\d.]+) %", [hubs[1], dense[1], large[1], large_dense[1]]
    yield RESULTS, r"hubs are\s+([\d.]+) % ahead in bits, ([\d.]+) points on IMDB and ([\d.]+) on SST", [
        ahead(hubs[0], dense[0]), dense[1] - hubs[1], dense[2] - hubs[2]]
    muon_labels = table(RESULTS, "| from Muon's text |")
    learned = [mean([number(word) for row in muon_labels if row[0] == model for cell in row[2:] for word in cell.split(", ")])
               for model in ("hubs, 20 M", "dense, 20 M")]
    large_labels = table(RESULTS, "| model, IMDB | test, % |")[-2:]  # hubs, dense
    learned += [mean([number(word) for word in row[1].split("; ")]) for row in large_labels]
    yield RESULTS, r"six tries each, at 100 M five \| ([\d.]+) and ([\d.]+) % \| ([\d.]+) and ([\d.]+) %", learned
    yield RESULTS, r"after \[equal time\]\(#equal-time\) \| ([\d.]+) %, 3 minutes \| ([\d.]+) %, 18 minutes", equal_time
    yield RESULTS, r"So after 18 minutes of 100 M hubs are ([\d.]+) % ahead", equal_time[1:]
    yield RESULTS, r"best figure hubs are ([\d.]+) % ahead in bits, and behind by ([\d.]+) points on IMDB", [
        equal_time[0], short[1] - short_dense[1]]
    cells, behind, median = re.search(r"of the (\d+) cells that are left it is\s+ahead in (\d+),[^|]*median ratio is (\d\.\d)", PERFORMANCE).groups()
    yield README, r"(\d+) of (\d+) products beat cuSPARSE's, in the median ([\d.]+) times", [
        int(cells) - int(behind), int(cells), float(median)]
    for pattern, size in ((r"train by Adam ([.\d]+) to\s+([\d.]+) times as fast[^,]*, and read ([.\d]+) to ([\d.]+) times", "20 M:"),
                          (r"of 100 M ([.\d]+) to ([.\d]+) and ([.\d]+) to ([.\d]+) \(", "100 M:")):
        rows = [row for row in table(PERFORMANCE, "| by Adam | ms an update") if row[0].startswith(size)]
        yield README, pattern, [of(number(row[k]) for row in rows) for k in (2, 4) for of in (min, max)]
    tasks = table(RESULTS, "| task (`332e046`")
    rivals = [[float(word) for word in row[7].split("; ")] for row in tasks]
    yield README, r"in at most (\d+) % of its time", [math.ceil(100 * max(ours / theirs for ours, theirs in rivals))]
    yield README, r"% of IMDB's, by n-grams ([\d.]+)", [number(row[3]) for row in tasks if row[0][:4] == "IMDB"]
    yield README, r"parameters\]\(docs/results.md#labels\) ([\d.]+) % of IMDB's", [joined]
    yield RESULTS, r"both by Adam \| ([\d.]+) %", [source]
    yield RESULTS, r"So hubs are ([\d.]+) % ahead on source", [source]
    for size, (ours, theirs) in {"one pass, 20 M": (hubs, dense), "one pass, 100 M": (large, large_dense)}.items():
        row = r" \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) % \| ([\d.]+) %"
        yield README, size + ": hubs" + row, [ours[k] for k in (3, 0, 1, 2)]
        yield README, size + ": hubs.*\n\\| dense" + row, [theirs[k] for k in (3, 0, 1, 2)]
    for time, ours, theirs in [("3 minutes, 20 M", short[0], short_dense[0]), ("18 minutes, 100 M", long_valid, long_dense_valid)]:
        yield README, time + r": hubs \| [\d,]+ \| ([\d.]+).*\n\| dense \| [\d,]+ \| ([\d.]+)", [ours, theirs]


def main():
    wrong = 0
    for text, pattern, values in claims():
        found = re.search(pattern, text.replace("*", ""))
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
