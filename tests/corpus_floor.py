#!/usr/bin/env python3
"""Checks the shipped corpus and the claims about its floor: exit status 0 if all hold, else 1.

  - every choice of the grammar sums to 1, and every review ends with probability 1
  - the forward algorithm equals the sum over derivations, listed one by one by other means, on a
    toy where one text can be cut in several ways
  - the floor and the Bayes error agree with fresh reviews
  - data/ is what the script writes, byte for byte, and its Bayes error lies between 0.05 and 1 %
  - bad input is refused in one line that names the file and the line
"""

import gzip
import itertools
import math
import random
import subprocess
import sys
import tempfile
import zlib
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts" / "make_corpus.py"
sys.dont_write_bytecode = True
sys.path.insert(0, str(SCRIPT.parent))
import make_corpus as corpus

passed = failed = 0


def check(what, holds, detail=""):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    print(f"{'ok    ' if holds else 'FAILED'} {what}{': ' if detail else ''}{detail}", flush=True)


def close(a, b, tolerance=1e-9):
    return all(abs(x - y) <= tolerance * max(abs(x), abs(y)) for x, y in zip(a, b))


# ------------------------------------------------------------------------------- normalisation --


def test_normalised():
    grammar = corpus.Grammar()
    sums = {f"after {kind}": sum(following.values()) for kind, following in grammar.order.items()}
    sums.update((kind, sum(p for p, _ in templates))
                for kind, templates in grammar.sentences.items())
    sums.update((f"[{name}] given {label}", sum(ps[label] for ps in slot.values()))
                for name, slot in grammar.slots.items() for label in corpus.LABELS)
    wrong = [name for name, total in sums.items() if not close([total], [1])]
    check("every choice sums to 1", not wrong, ", ".join(wrong) or f"{len(sums)} choices")

    at, ended = {corpus.START: 1.0}, 0.0
    for _ in range(200):
        at, before = defaultdict(float), at
        for kind, mass in before.items():
            for following, p in grammar.order[kind].items():
                at[following] += mass * p
        ended += at.pop(corpus.END, 0.0)
    check("a review ends with probability 1", close([ended], [1]), f"1 - {1 - ended:.1e}")

    strongest = max(strength for strength, _, _ in corpus.CUES.values())
    check("no cue gives its label away", strongest <= 0.95, f"strongest {strongest}")
    turned = [name for name in corpus.CUES
              if not all(close(ps, grammar.slots["-" + name][word][::-1])
                         for word, ps in grammar.slots[name].items())]
    check("a negation turns every cue around", not turned, ", ".join(turned))


# ------------------------------------------- derivations one by one, from the tables themselves --


def spellings(tables, template):
    """Yields (text, probability given 0, given 1) for each way to fill a template."""
    _, _, words, cues = tables
    options = []
    for i, piece in enumerate(template.replace("]", "[").split("[")):
        if i % 2 == 0:
            options.append([(piece, 1.0, 1.0)])
        elif piece in words:
            choices = words[piece].split("|")
            options.append([(word, 1 / len(choices), 1 / len(choices)) for word in choices])
        else:
            strength, liked, disliked = cues[piece.removeprefix("-")]
            liked, disliked = liked.split("|"), disliked.split("|")
            own, other = strength / len(liked), (1 - strength) / len(liked)
            option = [(word, other, own) for word in liked]
            own, other = strength / len(disliked), (1 - strength) / len(disliked)
            option += [(word, own, other) for word in disliked]
            if piece.startswith("-"):
                option = [(word, p1, p0) for word, p0, p1 in option]
            options.append(option)
    for chosen in itertools.product(*options):
        text, p0, p1 = "", 1.0, 1.0
        for word, q0, q1 in chosen:
            text, p0, p1 = text + word, p0 * q0, p1 * q1
        yield text, p0, p1


def sentences(tables, kind):
    """All (text, p given 0, p given 1) of a kind, one entry for each derivation."""
    weights = [weight for weight, _ in tables[1][kind]]
    return [(text, weight / sum(weights) * p0, weight / sum(weights) * p1)
            for weight, template in tables[1][kind]
            for text, p0, p1 in spellings(tables, template)]


def all_reviews(tables, limit):
    """({text: [p given 0, p given 1, derivations]}, probability of more sentences than limit)."""
    order, kinds, _, _ = tables
    written = {kind: sentences(tables, kind) for kind in kinds}
    found, longer = defaultdict(lambda: [0.0, 0.0, 0]), 0.0
    open_ends = [("", following, p, p) for following, p in order[corpus.START].items()]
    for step in range(limit):
        grown = []
        for prefix, kind, q0, q1 in open_ends:
            for text, p0, p1 in written[kind]:
                for following, p in order[kind].items():
                    if following == corpus.END:
                        entry = found[prefix + text]
                        entry[0] += q0 * p0 * p
                        entry[1] += q1 * p1 * p
                        entry[2] += 1
                    elif step < limit - 1:
                        grown.append((prefix + text + " ", following, q0 * p0 * p, q1 * p1 * p))
                    else:
                        longer += q0 * p0 * p
        open_ends = grown
    return found, longer


def compare_all(what, tables, limit, mark, ambiguous=False):
    """The mark stands in every sentence, so all derivations of a text with at most `limit` marks are
    listed."""
    grammar = corpus.Grammar(*tables)
    found, longer = all_reviews(tables, limit)
    total = sum(entry[0] for entry in found.values()) + longer
    check(f"all reviews of {what} sum to 1", close([total], [1]),
          f"{1 - longer:.4f} listed + {longer:.4f} longer")
    whole = {text: entry for text, entry in found.items() if text.count(mark) <= limit}
    wrong = [text for text, entry in whole.items()
             if not close(grammar.likelihood(text), entry[:2])]
    several = sum(entry[2] > 1 for entry in whole.values())
    check("  and forward equals enumeration", (several or not ambiguous) and not wrong,
          f"{len(whole):,} texts, {several:,} of them with several derivations" +
          (f"; wrong: {wrong[0]!r}" if wrong else ""))


def test_toy():
    """Texts that can be cut in several ways: inside a template, between templates, between sentences."""
    order = {corpus.START: {"s": 0.9, "t": 0.1}, "s": {"s": 0.25, "t": 0.25, corpus.END: 0.5},
             "t": {"s": 0.3, corpus.END: 0.7}}
    kinds = {"s": [(2, "[a][b]"), (1, "x[b]"), (1, "[-a] [b]")], "t": [(1, "[b]"), (3, "x[a]z")]}
    slots = {"b": "z|yz|z yz"}, {"a": (0.8, "x|xy", "xy|x x")}
    compare_all("a toy of many cuts", (order, kinds, *slots), 3, "z", ambiguous=True)


# --------------------------------------------------------------------------------- shipped files --


def test_shipped_files(data):
    texts = {}
    for path, made in corpus.make(data).items():
        if not path.exists():
            check(f"{path.name} is there", False)
            continue
        shipped = path.read_bytes()
        same = gzip.decompress(shipped) == gzip.decompress(made)
        check(f"{path.name} has the script's text", same)
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
    check("the floor agrees with fresh reviews", abs(error) < 4,
          f"{report['floor_bpc']:.4f} and {ratio:.4f} bits per byte, {error:+.1f} standard errors")
    error = ((report["bayes_error"] - corpus.mean(risks)) /
             math.hypot(corpus.standard_error(risks), report["bayes_error_se"]))
    check("so does the Bayes error", abs(error) < 4,
          f"{report['bayes_error']:.2%} and {corpus.mean(risks):.2%}, {error:+.1f} standard errors")
    expected, margin = report["bayes_error"], 3 * report["bayes_error_se"]
    check("it lies between 0.05 and 1 %, by three standard errors",
          0.0005 + margin < expected < 0.01 - margin, f"{expected:.2%} +- {margin / 3:.2%}")
    realised, spread = report["bayes_error_realised"], report["bayes_error_realised_se"]
    check("the posterior errs as often as it expects", abs(realised - expected) < 4 * spread,
          f"{realised:.2%} +- {spread:.2%} realised")


def test_ties():
    """A review that speaks for both labels counts as half an error, however its two sums were rounded."""
    grammar, near, exact = corpus.Grammar(), [], 0
    for _, label, text in corpus.read_reviews(ROOT / "data/reviews_train.tsv.gz"):
        a, b = grammar.likelihood(text)
        if abs(a - b) < 1e-6 * a:
            near.append(f"{label}\t{text}\n")
            exact += a == b
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ties.tsv"
        path.write_text("".join(near), "latin-1")
        found = corpus.floor(path)["bayes_error_realised"]
    check("ties are halves", exact < len(near) and found == 0.5, f"{found} of {len(near)}, {exact} of them exact")


def test_bad_input():
    good = "1\tWhat a warm, bold tale. The plot glows and the music leaps. I laughed and beamed.\n"
    cases = {
        "no tab": ((good + "1 What a warm\n").encode(), ":2:"),
        "another label": (("2" + good[1:]).encode(), ":1:"),
        "text outside the grammar": ((good * 2 + "0\tWhat a warm pie.\n").encode(), ":3:"),
        "a review cut short": ((good.replace(" I laughed and beamed.", "")).encode(), ":1:"),
        "bytes that are no ASCII": (good.encode() + b"1\t\xff\xfe\n", ":2:"),
        "an empty line": ((good + "\n").encode(), ":2:"),
        "an empty file": (b"", ": "),
        "gzip cut short": (gzip.compress(good.encode())[:-9], ": "),
        "gzip corrupted": (gzip.compress(good.encode())[:30] + b"\0" * 30, ": "),
        "no file": (None, ": "),
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, (data, where) in {"good input": (good.encode(), None), **cases}.items():
            path = Path(folder) / (name.replace(" ", "_") + ".tsv")
            if data is not None:
                path.write_bytes(data)
            done = subprocess.run([sys.executable, str(SCRIPT), "floor", str(path)],
                                  capture_output=True, text=True, check=False)
            if where is None:
                check("good input is accepted", done.returncode == 0 and not done.stderr)
            else:
                check(f"refused: {name}", done.returncode == 1 and done.stderr.count("\n") == 1
                      and f"{path}{where}" in done.stderr, done.stderr.strip().replace(folder, ""))


def main():
    data = ROOT / "data"
    test_normalised()
    test_toy()
    test_shipped_files(data)
    test_floor(data / "reviews_test.tsv.gz")
    test_ties()
    test_bad_input()
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
