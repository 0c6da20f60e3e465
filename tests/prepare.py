#!/usr/bin/env python3
"""scripts/prepare.py on small archives of the published shapes: exit status 0 if all holds."""

import gzip
import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
passed = failed = 0


def check(what, holds, detail=""):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    if not holds:
        print(f"FAILED {what}: {detail}", flush=True)


def prepare(name, *arguments):
    return subprocess.run([sys.executable, "-B", SCRIPTS / "prepare.py", name,
                           *map(str, arguments)], capture_output=True, text=True, check=False)


def accepted(name, *arguments):
    done = prepare(name, *arguments)
    check(f"accepted: {name} {arguments}", done.returncode == 0, done.stderr)
    return done


def refused(why, name, *arguments):
    done = prepare(name, *arguments)
    one_line = done.stderr.startswith("prepare.py: ") and done.stderr.count("\n") == 1
    check(f"refused: {arguments}", done.returncode == 1 and one_line and why in done.stderr
          and not done.stdout, f"{done.returncode} {done.stderr}")


def rows(path):
    return [line.split(b"\t", 1) for line in gzip.decompress(path.read_bytes()).split(b"\n")[:-1]]


# ----------------------------------------------------------------------------------------- IMDB --


def imdb_reviews():
    """{path in the archive: bytes} of 1,000 numbered reviews; the last one has every kind of awkward
    byte."""
    files = {}
    for split, kinds in {"train": ("pos", "neg", "unsup"), "test": ("pos", "neg")}.items():
        for kind in kinds:
            for number in (0, 10, 9, 3):
                text = f"{split} {kind} {number}".encode()
                files[f"aclImdb/{split}/{kind}/{number}_7.txt"] = text
    files["aclImdb/train/pos/9_7.txt"] = b"a\tb\nc\r\nd\x00\xff<br />"
    files["__MACOSX/aclImdb/train/pos/._1_7.txt"] = files["aclImdb/train/pos/._2_7.txt"] = b"junk"
    files["aclImdb/train/urls_pos.txt"] = files["aclImdb/README"] = b"no review"
    return files


def test_imdb(folder):
    archive, source = folder / "aclImdb_v1.tar.gz", folder / "source"
    with tarfile.open(archive, "w:gz") as out:
        for name, text in imdb_reviews().items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            out.addfile(member, io.BytesIO(text))
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            (source / name).write_bytes(text)

    done = accepted("imdb", archive, "--out", folder / "a")
    check("next command", "\nnext: build/smallworld train configs/imdb-20m-hubs.yaml\n" in done.stdout,
          done.stdout)
    check("unusual counts are said", done.stderr.count("are published") == 5, done.stderr)
    train = rows(folder / "a" / "imdb_train.tsv.gz")
    check("train", train == [[b"1", b"train pos 0"], [b"0", b"train neg 0"],
                             [b"1", b"train pos 3"], [b"0", b"train neg 3"],
                             [b"1", b"a\tb c d\x00\xff<br />"], [b"0", b"train neg 9"],
                             [b"1", b"train pos 10"], [b"0", b"train neg 10"]], train)
    unsup = rows(folder / "a" / "imdb_unsup.tsv.gz")
    check("unsup", unsup == [[b"-1", b"train unsup %d" % n] for n in (0, 3, 9, 10)], unsup)

    accepted("imdb", source / "aclImdb", "--out", folder / "b", "--half-test")
    for name in "imdb_train.tsv.gz", "imdb_unsup.tsv.gz":
        check("a folder gives the archive's bytes",
              (folder / "a" / name).read_bytes() == (folder / "b" / name).read_bytes(), name)
    half = rows(folder / "b" / "imdb_test.tsv.gz")
    check("half the test", half == [[label, b"test %s %d" % (kind, n)] for n in (0, 10)
                                    for label, kind in ((b"1", b"pos"), (b"0", b"neg"))], half)

    whole = archive.read_bytes()
    (folder / "cut.tar.gz").write_bytes(whole[:-40])
    (folder / "text.tar.gz").write_bytes(b"no archive at all")
    refused("cut.tar.gz: damaged", "imdb", folder / "cut.tar.gz", "--out", folder / "c")
    refused("text.tar.gz: damaged", "imdb", folder / "text.tar.gz", "--out", folder / "c")
    refused("no reviews in aclImdb/train/pos", "imdb", folder / "a", "--out", folder / "c")
    refused("No such file", "imdb", folder / "none", "--out", folder / "c")
    check("what is refused writes nothing", not (folder / "c").exists())


# ------------------------------------------------------------------------------------------ SST --

TREES = {
    "train": "(3 (2 It) (4 (2 's) (3 (2 ``) (3 (2 caf\u00e9\u00a0noir) (2 '')))))\n"
             "(2 (2 neutral) (2 .))\n"
             "(0 (1 (2 Ca) (2 n't)) (2 -LRB-) (2 and\\/or) (2 -RRB-) (2 .))\n",
    "dev":   "(4 (2 $) (2 5) (2 ,) (2 well) (2 spent) (2 ...))\n",
    "test":  "(1 (2 the) (2 actors) (2 ') (2 worst) (2 !))",
}


def test_sst(folder):
    archive = folder / "trees.zip"
    with zipfile.ZipFile(archive, "w") as out:
        for split, text in TREES.items():
            out.writestr(f"trees/{split}.txt", text)
    with zipfile.ZipFile(archive) as source:
        source.extractall(folder / "source")

    accepted("sst", archive, "--out", folder / "a")
    train = rows(folder / "a" / "sst_train.tsv.gz")
    check("train", train == [[b"1", 'It\'s "caf\u00e9\u00a0noir"'.encode()],
                             [b"0", b"Can't (and/or)."]], train)
    dev = rows(folder / "a" / "sst_dev.tsv.gz")
    check("dev", dev == [[b"1", b"$5, well spent ..."]], dev)
    test = rows(folder / "a" / "sst_test.tsv.gz")
    check("test", test == [[b"0", b"the actors' worst!"]], test)

    accepted("sst", folder / "source", "--out", folder / "b")
    check("a folder gives the archive's bytes", (folder / "a" / "sst_test.tsv.gz").read_bytes() ==
          (folder / "b" / "sst_test.tsv.gz").read_bytes())

    (folder / "source" / "trees" / "dev.txt").write_text("5 stars\n")
    refused("dev.txt:1: expected a tree", "sst", folder / "source", "--out", folder / "c")
    (folder / "cut.zip").write_bytes(archive.read_bytes()[:-30])
    refused("cut.zip: damaged", "sst", folder / "cut.zip", "--out", folder / "c")
    refused("has no train.txt", "sst", folder / "a", "--out", folder / "c")
    check("what is refused leaves nothing", not any((folder / "c").glob("*")))


# ----------------------------------------------------------------------------------------- text --


def test_text(folder):
    text = bytes(range(256)) * 10000
    (folder / "my.book.txt").write_bytes(text)
    (folder / "packed.gz").write_bytes(gzip.compress(text))
    with zipfile.ZipFile(folder / "text.zip", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("text", text)
    expected = {"train": text[:-256000], "valid": text[-256000:-128000], "test": text[-128000:]}
    for source, name in ("my.book.txt", "my"), ("packed.gz", "packed"), ("text.zip", "text"):
        accepted("text", folder / source, "--out", folder / name)
        for split, part in expected.items():
            check(f"{source}: {split}",
                  (folder / name / f"{name}_{split}.txt").read_bytes() == part)

    accepted("text", folder / "my.book.txt", "--name", "b", "--out", folder / "b",
             "--valid", "1000", "--test", "0")
    names = sorted(path.name for path in (folder / "b").iterdir())
    check("no test file", names == ["b_train.txt", "b_valid.txt"], names)
    check("sizes in bytes", (folder / "b" / "b_valid.txt").read_bytes() == text[-1000:])

    with zipfile.ZipFile(folder / "two.zip", "w") as out:
        out.writestr("one", b"1")
        out.writestr("two", b"2")
    (folder / "empty").write_bytes(b"")
    (folder / "enwik8").write_bytes(text)
    (folder / "cut.gz").write_bytes(gzip.compress(text)[:-20])
    (folder / "cut.zip").write_bytes((folder / "text.zip").read_bytes()[:-30])
    out = "--out", folder / "c"
    refused("holds 2 files", "text", folder / "two.zip", *out)
    refused("is empty", "text", folder / "empty", *out)
    refused("is it whole?", "text", folder / "enwik8", *out)
    refused("damaged", "text", folder / "cut.gz", *out)
    refused("damaged", "text", folder / "cut.zip", *out)
    refused("leave none to train on", "text", folder / "my.book.txt", "--test", "2560000", *out)
    refused("No such file", "text", folder / "none", *out)
    check("what is refused writes nothing", not (folder / "c").exists())
    check("a bad size is a usage error",
          prepare("text", folder / "empty", "--valid", "1.5").returncode == 2)


# --------------------------------------------------------------------------------------- source --


def write_tar(path, files, mode):
    with tarfile.open(path, mode) as out:
        for name, text in files:
            member = tarfile.TarInfo(name)
            member.size = len(text)
            out.addfile(member, io.BytesIO(text))
        link = tarfile.TarInfo("p-1/link.c")
        link.type, link.linkname = tarfile.SYMTYPE, "a.c"
        out.addfile(link)


def test_source(folder):
    files = [(f"p-1/d{i % 7}/f{i}.c", f"int x{i};\n".encode() * (i + 1)) for i in range(300)]
    odd = [("p-1/image.c", b"\x89PNG\0"), ("p-1/latin.c", b"caf\xe9"), ("p-1/empty.c", b""),
           ("p-1/again.c", files[5][1]), ("p-1/large.c", b"y" * ((1 << 20) + 1)), ("p-1/README", b"read\n")]
    write_tar(folder / "a.tar.xz", files + odd, "w:xz")
    write_tar(folder / "b.tar", list(reversed(files + odd)), "w")
    flags = "--valid", "0.1"
    done = accepted("source", folder / "a.tar.xz", "--out", folder / "a", *flags)
    accepted("source", folder / "b.tar", "--out", folder / "b", *flags)
    parts = [gzip.decompress((folder / "a" / f"source_{split}.txt.gz").read_bytes())
             for split in ("train", "valid")]
    found = [dict(document.split(b"\n", 1) for document in part.split(b"\f")[1:]) for part in parts]
    expected = {name[4:].encode(): text for name, text in files + odd[-1:]}
    together = found[0] | found[1]
    twice = {b"again.c", b"d5/f5.c"} & set(together)
    check("of equal files one", len(twice) == 1, twice)
    together[b"d5/f5.c"] = together.pop(twice.pop())
    check("every text once", together == expected and len(found[0]) + len(found[1]) == 301)
    check("a tenth validates", 10 < len(found[1]) < 60, len(found[1]))
    check("in no folder's order", list(found[0])[:3] != sorted(found[0])[:3])
    check("counts", f"{len(found[1])} files, {len(parts[1]):,} bytes" in done.stdout, done.stdout)
    for name in "source_train.txt.gz", "source_valid.txt.gz":
        check("whatever the archive's order", (folder / "a" / name).read_bytes() ==
              (folder / "b" / name).read_bytes())
    accepted("source", folder / "b.tar", "--out", folder / "c", *flags, "--name", "c",
             "--suffixes", ".c,.h", "--bytes", "50e3")
    some = gzip.decompress((folder / "c" / "c_train.txt.gz").read_bytes())
    check("as many bytes", 44000 < len(some) <= 50000 and b"README" not in some, len(some))
    held = gzip.decompress((folder / "c" / "c_valid.txt.gz").read_bytes())
    check("validation stays", held.replace(b"\fREADME\nread\n", b"") ==
          parts[1].replace(b"\fREADME\nread\n", b""))

    out = "--out", folder / "gone"
    (folder / "cut.tar.xz").write_bytes((folder / "a.tar.xz").read_bytes()[:-100])
    refused("damaged", "source", folder / "cut.tar.xz", *out)
    refused("holds no text file that ends in .py", "source", folder / "b.tar", "--suffixes", ".py",
            *out)
    refused("No such file", "source", folder / "none", *out)
    check("what is refused writes nothing", not (folder / "gone").exists())


def main():
    for test in test_imdb, test_sst, test_text, test_source:
        with tempfile.TemporaryDirectory() as folder:
            test(Path(folder))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
