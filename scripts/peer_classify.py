#!/usr/bin/env python3
"""`smallworld classify --minutes 0` beside scikit-learn's LinearSVC on words and characters.

    scripts/peer_classify.py [TASK...] [--program build/smallworld] [--imdb DIR] [--sst DIR]

The tasks are made of what a Debian system has: descriptions of packages by section and by maintainer
(after `apt-get -o Acquire::Languages=en update`), Python functions by package, manual pages by
language; and of the reviews and sentences that prepare.py makes. A fifth of each is for testing, by a
hash of the text. Both sides choose C on a fifth of the rest and fit again on all of it: scikit-learn
among four values, on TfidfVectorizer's words (one and two) and characters (two to five), sublinear,
each half of length sqrt(1/2). Prints a table: errors in per cent, the difference with its standard
error (of the pairs that only one side has wrong), processor seconds and memory of all of it.
"""

import argparse
import ast
import gzip
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from pathlib import Path

COSTS = .1, .3, 1, 3
PYTHON = Path("/usr/lib/python3/dist-packages")
LANGUAGES = "de fr es it nl pl pt_BR ja ru cs da sv".split()


def spread(text):
    """A number from 0 to 1 that depends on the text alone."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big") / 2 ** 48


def stanzas(text):
    for part in text.split("\n\n"):
        fields, last = {}, None
        for line in part.splitlines():
            if line[:1] == " " and last:
                fields[last] += "\n" + line
            elif ": " in line:
                last, _, value = line.partition(": ")
                fields[last] = value
        yield fields


def packages():
    """(section, maintainer, description) of Debian's packages."""
    lists = Path("/var/lib/apt/lists")
    read = lambda path: subprocess.run(["/usr/lib/apt/apt-helper", "cat-file", path], capture_output=True,
                                       check=True).stdout.decode("utf-8", "replace")
    long = {}
    for path in sorted(lists.glob("*Translation-en*")):
        long.update((one["Package"], one["Description-en"]) for one in stanzas(read(path)) if "Description-en" in one)
    seen = set()
    for path in sorted(lists.glob("*Packages*")):
        for one in stanzas(read(path)):
            text = " ".join(long.get(one.get("Package"), "").split())[:300]
            if text and text not in seen:
                seen.add(text)
                yield one.get("Section", ""), one.get("Maintainer", "").partition(" <")[0], text


def often(pairs, classes, least, most):
    """The pairs of the commonest classes, at most so many of each, in the order of a hash."""
    pairs = sorted(pairs, key=lambda pair: spread(pair[1]))
    common = [name for name, count in Counter(label for label, _ in pairs).most_common(classes) if count >= least]
    taken = Counter()
    for label, text in pairs:
        if label in common and taken[label] < most:
            taken[label] += 1
            yield label, text


def functions():
    """(package, source) of Python functions without decorators' lines."""
    for path in sorted(PYTHON.rglob("*.py")):
        try:
            source = path.read_text()
            found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
        except (SyntaxError, ValueError, RecursionError):
            continue
        lines = source.splitlines(keepends=True)
        for node in found:
            text = "".join(lines[node.lineno - 1:node.end_lineno])
            if 200 < len(text) < 4000:
                yield path.relative_to(PYTHON).parts[0], " ".join(text.split(" "))


def manuals():
    for language in LANGUAGES:
        for path in sorted(Path("/usr/share/man").glob(f"{language}/*/*.gz")):
            yield language, gzip.open(path).read()[:2000].decode("utf-8", "replace")


def table(path):
    lines = gzip.open(path, "rt", encoding="utf-8", errors="surrogateescape").read().split("\n")
    return [tuple(line.split("\t", 1)) for line in lines if "\t" in line and not line.startswith("-1\t")]


def tasks(args):
    """{name: a function that makes (label, text) pairs, or (train, test) of them}"""
    known = list(packages())
    by_section = [(section, text) for section, _, text in known]
    made = {
        "sections": lambda: often(by_section, 40, 200, 10 ** 9),
        "sections-6": lambda: often(by_section, 6, 200, 667),
        "documents-200": lambda: often(by_section, 2, 100, 125),
        "maintainers-200": lambda: often(((who, text) for _, who, text in known), 200, 20, 60),
        "functions": lambda: often(functions(), 12, 200, 1200),
        "manuals": lambda: often(manuals(), 12, 20, 10 ** 9),
    }
    for name, folder in ("sst", args.sst), ("imdb", args.imdb):
        files = [Path(folder) / f"{name}_{part}.tsv.gz" for part in ("train", "test")]
        if all(file.exists() for file in files):
            made[name] = lambda files=files: tuple(map(table, files))
    return made


def peer(train, test):
    """What scikit-learn says of the test texts, and the C that it chose."""
    from scipy.sparse import hstack
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.svm import LinearSVC
    kinds = [TfidfVectorizer(analyzer="word", ngram_range=(1, 2), sublinear_tf=True, min_df=2),
             TfidfVectorizer(analyzer="char", ngram_range=(2, 5), sublinear_tf=True, min_df=2)]
    labels, texts = zip(*train)
    x = hstack([kind.fit_transform(texts) * .5 ** .5 for kind in kinds]).tocsr()
    held = [spread("held" + text) < .2 for text in texts]
    fitted, chosen = [i for i, is_held in enumerate(held) if not is_held], [i for i, is_held in enumerate(held) if is_held]
    y = lambda rows: [labels[i] for i in rows]
    right = lambda cost: LinearSVC(C=cost, dual=True).fit(x[fitted], y(fitted)).score(x[chosen], y(chosen))
    cost = max(COSTS, key=right)
    model = LinearSVC(C=cost, dual=True).fit(x, labels)
    return list(model.predict(hstack([kind.transform([text for _, text in test]) * .5 ** .5 for kind in kinds]))), cost


def ours(program, train, test, here):
    for name, rows in ("train", train), ("test", test):
        with open(here / f"{name}.csv", "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write("label,text\n")
            file.writelines(f'"{label}","{text.replace(chr(34), chr(34) * 2)}"\n' for label, text in rows)
    subprocess.run([program, "classify", "--train", here / "train.csv", "--test", here / "test.csv", "--out", here / "c",
                    "--minutes", "0", "--json"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    out = subprocess.run([program, "predict", here / "c", "--text", here / "test.csv"], check=True,
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
    said = [json.loads(line)["class"] for line in out.splitlines()]
    return said, json.loads((here / "c/results.json").read_text()).get("C"), after


def measured(job):
    """Runs a job in a process of its own: its result, processor seconds and memory in MB."""
    with tempfile.TemporaryDirectory() as here:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                result, use = job(Path(here))
                use = use or resource.getrusage(resource.RUSAGE_SELF)
                (Path(here) / "result.json").write_text(json.dumps(
                    [result, use.ru_utime + use.ru_stime, use.ru_maxrss / 1000]))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        if os.waitpid(child, 0)[1]:
            sys.exit("a job failed")
        return json.loads((Path(here) / "result.json").read_text())


def compare(name, made, program):
    rows = made()
    if isinstance(rows, tuple):
        train, test = rows
    else:
        rows = list(dict((text, (label, text)) for label, text in rows).values())
        train = [row for row in rows if spread("test" + row[1]) >= .2]
        test = [row for row in rows if spread("test" + row[1]) < .2]
    def own(here):
        said, cost, use = ours(program, train, test, here)
        return (said, cost), use
    (said, cost), seconds, memory = measured(own)
    (other, c), peer_seconds, peer_memory = measured(lambda here: (peer(train, test), None))
    wrong = [one != label for one, (label, _) in zip(said, test)]
    peer_wrong = [one != label for one, (label, _) in zip(other, test)]
    n = len(test)
    only = sum(a and not b for a, b in zip(wrong, peer_wrong)), sum(b and not a for a, b in zip(wrong, peer_wrong))
    classes = len({label for label, _ in train})
    print(f"| {name} | {len(train)} | {classes} | {100 * sum(wrong) / n:.2f} | {100 * sum(peer_wrong) / n:.2f} | "
          f"{100 * (only[0] - only[1]) / n:+.2f} ({100 * sum(only) ** .5 / n:.2f}) | {cost}; {c} | {seconds:.1f}; "
          f"{peer_seconds:.1f} | {memory:.0f}; {peer_memory:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="*")
    parser.add_argument("--program", default="build/smallworld")
    parser.add_argument("--imdb", default="datasets/imdb")
    parser.add_argument("--sst", default="datasets/sst")
    args = parser.parse_args()
    known = tasks(args)
    print("| task | texts | classes | error, % | LinearSVC | difference | C | processor, s | memory, MB |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for name in args.task or known:
        if name not in known:
            sys.exit(f"{name}: expected one of {', '.join(known)}")
        compare(name, known[name], os.path.abspath(args.program))


if __name__ == "__main__":
    main()
