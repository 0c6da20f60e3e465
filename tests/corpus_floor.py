#!/usr/bin/env python3
"""Checks the shipped corpus and the claims about its floor: exit status 0 if all hold, else 1."""

import gzip
import math
import random
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "make_corpus.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
import make_corpus as corpus

failed = 0


def check(what, holds, detail=""):
    global failed
    failed += not holds
    print(f"{'ok    ' if holds else 'FAILED'} {what}{': ' if detail else ''}{detail}", flush=True)


def test_grammar():
    """Every choice sums to 1; and a text that can be cut in several ways has the sum of all ways."""
    grammar = corpus.Grammar()
    sums = [sum(following.values()) for following in grammar.order.values()]
    sums += [sum(p for p, _ in templates) for templates in grammar.sentences.values()]
    sums += [sum(ps[label] for ps in slot.values()) for slot in grammar.slots.values() for label in corpus.LABELS]
    check("every choice sums to 1", all(abs(total - 1) < 1e-9 for total in sums), f"{len(sums)} choices")
    toy = corpus.Grammar({corpus.START: {"s": 1.0}, "s": {"s": 0.25, corpus.END: 0.75}}, {"s": [(3, "x[b]"), (1, "x")]},
                         {"b": "z|yz| x"}, {})
    one, more = 0.75, 0.25
    xx = (0.75 / 3 + more * 0.25 * 0.25) * one  # "x x": one sentence with " x", or two of "x"
    check("forward adds up all derivations", abs(toy.likelihood("x x")[0] - xx) < 1e-12, f"{toy.likelihood('x x')[0]}")


def test_shipped_files(data):
    texts = {}
    for path, made in corpus.make(data).items():
        shipped = path.read_bytes()
        check(f"{path.name} has the script's text", gzip.decompress(shipped) == gzip.decompress(made))
        if "ng" not in zlib.ZLIB_RUNTIME_VERSION:  # zlib-ng compresses equal text to other bytes
            check(f"{path.name} is the script's, byte for byte", shipped == made)
        texts[path.name] = [text for _, _, text in corpus.read_reviews(path)]
    train = set(texts["reviews_train.tsv.gz"])
    seen = sum(text in train for text in texts["reviews_test.tsv.gz"])
    check("test reviews are not in the training file", seen <= 8, f"{seen} are, by chance")


def test_floor(path):
    report = corpus.floor(path)
    framed = sum(len(f"\n {text} ") for _, _, text in corpus.read_reviews(path))
    check("N is every framed byte but the first", report["N"] == framed - 1, str(report["N"]))
    grammar, rng, costs, sizes, risks = corpus.Grammar(), random.Random(7), [], [], []
    for _ in range(10000):
        text = grammar.sample(rng, int(rng.random() < 0.5))[0]
        joint = [prior * p for prior, p in zip(corpus.PRIOR, grammar.likelihood(text))]
        costs.append(-math.log2(sum(joint)))
        sizes.append(len(text) + 3)
        risks.append(min(joint) / sum(joint))
    ratio = sum(costs) / sum(sizes)
    spread = math.sqrt(sum((c - ratio * n)**2 for c, n in zip(costs, sizes))) / sum(sizes)
    error = (report["floor_bpc"] - ratio) / math.hypot(spread, report["floor_bpc_se"])
    check("the floor agrees with fresh reviews", abs(error) < 4, f"{report['floor_bpc']:.4f} and {ratio:.4f} bits per byte")
    error = (report["bayes_error"] - corpus.mean(risks)) / math.hypot(corpus.standard_error(risks), report["bayes_error_se"])
    check("so does the Bayes error", abs(error) < 4, f"{report['bayes_error']:.2%} and {corpus.mean(risks):.2%}")
    realised, spread = report["bayes_error_realised"], report["bayes_error_realised_se"]
    check("the posterior errs as often as it expects", abs(realised - report["bayes_error"]) < 4 * spread, f"{realised:.2%}")


def test_bad_input():
    good = "1\tWhat a warm, bold tale. The plot glows and the music leaps. I laughed and beamed.\n"
    cases = {"good input": (good.encode(), None), "no tab": ((good + "1 What a warm\n").encode(), ":2:"),
             "text outside the grammar": ((good * 2 + "0\tWhat a warm pie.\n").encode(), ":3:"),
             "a review cut short": ((good.replace(" I laughed and beamed.", "")).encode(), ":1:"),
             "an empty file": (b"", ": "), "gzip cut short": (gzip.compress(good.encode())[:-9], ": ")}
    with tempfile.TemporaryDirectory() as folder:
        for name, (data, where) in cases.items():
            path = Path(folder) / "input.tsv"
            path.write_bytes(data)
            done = subprocess.run([sys.executable, str(SCRIPT), "floor", str(path)], capture_output=True, text=True)
            refused = done.returncode == 1 and done.stderr.count("\n") == 1 and f"{path}{where}" in done.stderr
            check(name, refused if where else done.returncode == 0 and not done.stderr, done.stderr.strip())


if __name__ == "__main__":
    test_grammar()
    test_shipped_files(ROOT / "data")
    test_floor(ROOT / "data" / "reviews_test.tsv.gz")
    test_bad_input()
    sys.exit(bool(failed))
