#!/usr/bin/env python3
"""Makes a small corpus of labelled film reviews from a probabilistic grammar, and computes its floor.

    scripts/make_corpus.py make --out data
    scripts/make_corpus.py floor data/reviews_test.tsv.gz

A review has a label, 1 (liked it) or 0 (did not), drawn with probability 1/2. The label changes the
probabilities of some words, none of which reveals it alone. A sentence may negate its words: a
reviewer who liked the film writes "warm", or "not flat", or "nobody will call this film dull". So
counting words tells less than reading them. Since the grammar is known, the probability of any text
given either label is known too, and with it
  - the floor: bits per byte that no language model beats in expectation, and
  - the Bayes error: the share of wrong labels that no classifier beats in expectation.
"""

import argparse
import gzip
import io
import json
import math
import random
import sys
import zlib
from collections import defaultdict
from pathlib import Path

# ---------------------------------------------------------------------------------- the grammar --
# A review is a walk over kinds of sentence, from START to END, with one blank between sentences.
# A sentence that can close a review need not: another may follow. So the label still matters after the
# last blank, and a language model has a reason to remember it.

START, END = "start", "end"

ORDER = {
    START:     {"opening": 1.0},
    "opening": {"story": 0.5, "cast": 0.5},
    "story":   {"cast": 0.3, "feeling": 0.7},
    "cast":    {"feeling": 1.0},
    "feeling": {"advice": 0.7, END: 0.3},
    "advice":  {"feeling": 0.3, END: 0.7},
}

# A sentence is one of its kind's templates, chosen by weight; a [slot] takes a word of that name. A
# [-slot] follows a negation in its sentence: it takes the words of the other label.

SENTENCES = {
    "opening": [
        (8, "What a [adjective], [adjective] [film]."),
        (8, "This [film] is [adjective] and [adjective]."),
        (2, "This [film] is not [-adjective], nor [-adjective]."),
        (1, "Nobody will call this [film] [-adjective]."),
    ],
    "story": [
        (8, "The [part] [moves] and the [craft] [moves]."),
        (8, "The [part] is [adjective], the [craft] [adjective]."),
        (2, "The [part] never [-moves], it [moves]."),
        (1, "Neither the [part] nor the [craft] [-moves]."),
    ],
    "cast": [
        (8, "The [hero] [moves] like a [likeness]."),
        (8, "The [hero] is [adjective] and [adjective]."),
        (2, "The [hero] never [-moves] like a [-likeness]."),
        (1, "Nobody found the [hero] [-adjective]."),
    ],
    "feeling": [
        (8, "I [felt] and [felt]."),
        (8, "I [felt] and [company] [felt]."),
        (2, "I never [-felt], nor [-felt]."),
        (1, "Neither I nor [company] [-felt]."),
    ],
    "advice": [
        (5, "Please [advice]."),
        (1, "You need not [-advice]."),
    ],
}

# Plain slots: all words are equally likely, whatever the label.

WORDS = {
    "film":    "film|movie|western|comedy|musical|thriller|romance|tale",
    "part":    "plot|script|story|ending",
    "craft":   "music|camera|sound|light",
    "hero":    "hero|villain|captain|ghost|robot|widow|sheriff|baker",
    "company": "my aunt|my boss|the usher|the critic",
}

# Cues: with the probability given one of the label's own words, else one of the other's. First
# letters keep to one side throughout: a small model soon learns what a side is.

CUES = {  #  own word,  label 1,  label 0
    "adjective": (0.92, "warm|bold|clever|lively", "flat|stale|dull|hollow"),
    "moves":     (0.92, "glows|charms|bounces|leaps", "drags|sags|fades|hobbles"),
    "likeness":  (0.92, "kite|comet|lantern|wild pony",
                        "damp sock|folding chair|tax form|stuck drawer"),
    "felt":      (0.92, "laughed|cheered|grinned|beamed", "sighed|dozed|frowned|huffed"),
    "advice":    (0.92, "bring a friend|go twice|call your mother|watch it again",
                        "find a pillow|save your money|do the dishes|turn back"),
}

FILES = {  #   documents,  random stream
    "reviews_train": (24000, 1),
    "reviews_valid": (1500, 2),
    "reviews_test":  (4000, 3),
}
SEED = 1847

LABELS = (0, 1)
PRIOR = (0.5, 0.5)


# --------------------------------------------------------------------- the grammar as a machine --


class Grammar:
    """Writes reviews and computes the probability of a text.

    order      kind -> {next kind: probability}
    slots      name -> {word: (probability given label 0, given label 1)}
    sentences  kind -> [(probability, [(literal, None) or (None, slot name), ...]), ...]
    """

    def __init__(self, order=ORDER, sentences=SENTENCES, words=WORDS, cues=CUES):
        self.order = order
        self.slots = {name: plain_slot(text) for name, text in words.items()}
        for name, cue in cues.items():
            self.slots[name] = cue_slot(*cue)
            self.slots["-" + name] = {word: ps[::-1] for word, ps in self.slots[name].items()}
        self.sentences = {
            kind: [(weight / sum(w for w, _ in templates), self._pieces(kind, template))
                   for weight, template in templates]
            for kind, templates in sentences.items()
        }

    def _pieces(self, kind, template):
        """'The [hero].' -> [("The ", None), (None, "hero"), (".", None)]"""
        pieces = []
        for i, piece in enumerate(template.replace("]", "[").split("[")):
            if i % 2 and piece not in self.slots:
                raise ValueError(f"the grammar's {kind!r} has the unknown slot [{piece}]")
            if piece:
                pieces.append((None, piece) if i % 2 else (piece, None))
        return pieces

    def sample(self, rng, label):
        """A text, and the probability, given the label, of the derivation that made it."""
        text, probability = [], 1.0
        kind, p = draw(rng, self.order[START].items())
        while kind != END:
            probability *= p
            pieces, p = draw(rng, ((t, weight) for weight, t in self.sentences[kind]))
            probability *= p
            for literal, slot in pieces:
                if slot:
                    literal, p = draw(rng, ((w, ps[label]) for w, ps in self.slots[slot].items()))
                    probability *= p
                text.append(literal)
            kind, p = draw(rng, self.order[kind].items())
            if kind != END:
                text.append(" ")
        return "".join(text), probability * p

    def likelihood(self, text):
        """(p(text | 0), p(text | 1)): all derivations, and the end of the review, included.

        The forward algorithm over bytes: mass[position][kind] is the probability, given each label,
        of having written text[:position] and being about to write a sentence of that kind. No word
        boundary is assumed: every way to cut the text that the grammar allows is counted.
        """
        total = [0.0, 0.0]
        mass = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
        for kind, p in self.order[START].items():
            add(mass[0][kind], (p, p), (1.0, 1.0))
        for position in range(len(text)):
            for kind, reached in mass.pop(position, {}).items():
                for end, written in self._sentence(text, position, kind, reached).items():
                    for following, p in self.order[kind].items():
                        if following == END:
                            if end == len(text):
                                add(total, (p, p), written)
                        elif text.startswith(" ", end):
                            add(mass[end + 1][following], (p, p), written)
        return tuple(total)

    def _sentence(self, text, start, kind, reached):
        """{end: mass} for the sentences of the kind that text has at start."""
        ends = defaultdict(lambda: [0.0, 0.0])
        for weight, pieces in self.sentences[kind]:
            front = {start: [weight * m for m in reached]}
            for literal, slot in pieces:
                after = defaultdict(lambda: [0.0, 0.0])
                for position, m in front.items():
                    for word, p in self.slots[slot].items() if slot else [(literal, (1.0, 1.0))]:
                        if text.startswith(word, position):
                            add(after[position + len(word)], p, m)
                front = after
            for end, m in front.items():
                add(ends[end], (1.0, 1.0), m)
        return ends


def plain_slot(words):
    words = words.split("|")
    return {word: (1 / len(words),) * 2 for word in words}


def cue_slot(strength, liked, disliked):
    slot = defaultdict(lambda: [0.0, 0.0])
    for side, words in (1, liked.split("|")), (0, disliked.split("|")):
        for word in words:
            for label in LABELS:
                slot[word][label] += (strength if label == side else 1 - strength) / len(words)
    return {word: tuple(ps) for word, ps in slot.items()}


def draw(rng, choices):
    """Draws one of the (what, probability) pairs by rng.random(), whose stream is fixed in Python."""
    choices, point = list(choices), rng.random()
    for what, probability in choices:
        point -= probability
        if point < 0:
            break
    return what, probability


def add(cell, factors, mass):
    for label in LABELS:
        cell[label] += factors[label] * mass[label]


# --------------------------------------------------------------------------------- making files --


def reviews(grammar, count, seed, stream):
    """Yields (label, text), `count` times."""
    rng = random.Random(1000 * seed + stream)
    for _ in range(count):
        label = int(rng.random() < PRIOR[1])
        yield label, grammar.sample(rng, label)[0]


def packed(lines):
    """Compresses by gzip without a name or a time, so that equal text gives equal files."""
    buffer = io.BytesIO()
    with gzip.GzipFile("", "wb", 9, buffer, mtime=0) as out:
        out.write("".join(lines).encode("ascii"))
    return buffer.getvalue()


def make(out, seed=SEED):
    """{path: bytes} of the three files."""
    grammar = Grammar()
    return {Path(out) / f"{name}.tsv.gz":
            packed(f"{label}\t{text}\n" for label, text in reviews(grammar, count, seed, stream))
            for name, (count, stream) in FILES.items()}


# ------------------------------------------------------------------------------------ the floor --


class BadInput(Exception):
    pass


def read_reviews(path):
    """Yields (line number, label, text)."""
    try:
        with open(path, "rb") as file:
            data = file.read()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except (OSError, EOFError, zlib.error) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise BadInput(f"{path}: cannot be read: {reason}") from None
    if not data:
        raise BadInput(f"{path}: is empty; expected lines LABEL<TAB>TEXT")
    for number, line in enumerate(data.decode("latin-1").removesuffix("\n").split("\n"), 1):
        label, tab, text = line.partition("\t")
        if not tab or label not in ("0", "1"):
            raise BadInput(f"{path}:{number}: expected LABEL<TAB>TEXT with label 0 or 1")
        yield number, int(label), text


def floor(path, grammar=None):
    """Computes the results of the best possible model and classifier on a file of reviews.

    Documents are framed as "\\n " + text + " " and joined; every byte but the very first is
    predicted, N in all. The frame itself is certain, so a document costs -log2 of its probability.
    Its end is the line break that follows the last blank, where another sentence might have begun.
    The floor's standard error is that of a ratio, total bits to total bytes, over the documents.
    """
    grammar = grammar or Grammar()
    bits, lengths, risks, misses = [], [], [], []
    for number, label, text in read_reviews(path):
        joint = [prior * p for prior, p in zip(PRIOR, grammar.likelihood(text))]
        if not sum(joint):
            raise BadInput(f"{path}:{number}: the grammar cannot write this text: {text[:60]!a}")
        bits.append(-math.log2(sum(joint)))
        lengths.append(len(text) + 3)
        risks.append(min(joint) / sum(joint))
        tie = abs(joint[0] - joint[1]) <= 1e-9 * sum(joint)  # but for rounding
        misses.append(0.5 if tie else joint[label] < max(joint))
    predicted = sum(lengths) - 1
    ratio = sum(bits) / predicted
    spread = math.sqrt(sum((b - ratio * n)**2 for b, n in zip(bits, lengths)))
    return {
        "documents": len(bits),
        "N": predicted,
        "floor_bpc": ratio,
        "floor_bpc_se": spread / predicted,
        "bayes_error": mean(risks),
        "bayes_error_se": standard_error(risks),
        "bayes_error_realised": mean(misses),
        "bayes_error_realised_se": standard_error(misses),
    }


def mean(values):
    return sum(values) / len(values)


def standard_error(values):
    centre = mean(values)
    return math.sqrt(sum((v - centre)**2 for v in values) / max(1, len(values) - 1) / len(values))


# --------------------------------------------------------------------------------- command line --

def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    command = commands.add_parser("make", help="write the three files of the corpus")
    command.add_argument("--out", required=True, metavar="DIR", help="folder of the files")
    command.add_argument("--seed", type=int, default=SEED,
                         help="default %(default)s, that of the shipped files")
    command = commands.add_parser("floor", help="compute the exact floor and Bayes error of a file, as JSON")
    command.add_argument("file", metavar="FILE.tsv[.gz]")
    args = parser.parse_args()
    try:
        if args.command == "floor":
            print(json.dumps(floor(args.file)))
            return
        files = make(args.out, args.seed)
        Path(args.out).mkdir(parents=True, exist_ok=True)
        for path, data in files.items():
            path.write_bytes(data)
            print(f"{path}: {len(data):,} bytes")
    except (BadInput, OSError) as problem:
        sys.exit(f"make_corpus.py: {problem}")


if __name__ == "__main__":
    main()
