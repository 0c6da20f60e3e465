#!/usr/bin/env python3
"""Draws what `smallworld bench matmul --json` prints: the speed-up over the dense product against sparsity.

    build/smallworld bench matmul --columns 32,64,128,512 --json >matmul.json
    python3 scripts/speedup_chart.py matmul.json docs/matmul.png

Of several kinds of products the one with most rows is drawn. The ending of the last argument chooses the
format. Needs matplotlib (Debian: python3-matplotlib).
"""

import argparse
import collections
import json
import sys

KIND = ("precision", "product", "gates", "pattern", "block")
LINES = (("ours_us", "smallworld", "o-"), ("blocked_ell_us", "cuSPARSE", "--"), ("floor_us", "the floor", ":"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("results", help="JSON of bench matmul")
    parser.add_argument("chart", help="file to write")
    options = parser.parse_args()
    with open(options.results) as file:
        results = json.load(file)
    kinds = collections.Counter(tuple(row[key] for key in KIND) for row in results["rows"])
    if not kinds:
        sys.exit(f"speedup_chart: {options.results}: no row to draw")
    kind = kinds.most_common(1)[0][0]
    rows = [row for row in results["rows"] if tuple(row[key] for key in KIND) == kind]

    from matplotlib import pyplot, ticker
    figure, axes = pyplot.subplots(figsize=(9, 5.4))
    for number, columns in enumerate(dict.fromkeys(row["columns"] for row in rows)):
        of_columns = [row for row in rows if row["columns"] == columns and row["dense_us"]]
        for key, name, style in LINES:
            points = [(1 / row["density"], row["dense_us"] / row[key]) for row in of_columns if row.get(key)]
            if points:
                axes.plot(*zip(*points), style, color=f"C{number}", markersize=4,
                          label=f"N = {columns}, {name}")
    ticks = sorted({1 / row["density"] for row in rows})
    axes.set(xscale="log", yscale="log", xlabel="sparsity (share of blocks that are zero)",
             ylabel="speed-up over the dense product")
    axes.set_xticks(ticks, [f"{100 - 100 / tick:.3g} %" for tick in ticks])
    axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    described = dict(zip(KIND, kind))
    axes.set_title(f"Block-sparse {described['product']} against dense on {results['device']}\n"
                   f"{results['units']} units, block {described['block']}, {described['precision']}, "
                   f"{described['pattern']} pattern", fontsize="medium")
    figure.savefig(options.chart, bbox_inches="tight")


if __name__ == "__main__":
    main()
