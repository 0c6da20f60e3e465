#!/usr/bin/env python3
"""Labelled texts from Python: a classifier, a model's features, and a picture of what a model reads.

    examples/reviews.py TABLE [FOLDER]     a .csv, .jsonl or .tsv of texts and labels; default: the made-up
                                           reviews in data/, of which it takes a minute on a CPU
"""

import subprocess
import sys
from pathlib import Path

if any(given.startswith("-") for given in sys.argv[1:]):
    sys.exit(__doc__)
ROOT = Path(__file__).resolve().parent.parent
try:
    import smallworld
except ImportError:  # not installed: from this checkout
    sys.path.insert(0, str(ROOT / "python"))
    import smallworld

table = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "data" / "reviews_test.tsv.gz")
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "reviews")

# %% A classifier, beside n-grams and the commonest class. It trains a model on the text first.
errors = smallworld.classify(table, folder, steps=200)
for way in "commonest", "ngram", "features", "both":
    error = errors[f"{way}_error"]
    print(f"{way:10}", "not tried" if error is None else f"{error:6.2f} %")

# %% Its model: bits for each byte, and features, for scikit-learn or anything else.
model = smallworld.Model.load(folder / "run" / "last.safetensors")
texts = ["A warm, bold film. I cheered.", "A dull, flat film. I yawned.", "Xq zv jjw pfft kkq."]
for text in texts:
    print(f"{model.bits_per_character(text):6.3f} bits a byte: {text}")
print("features:", model.features(texts).shape)

# %% A probe of one's own.
films = ["film", "story", "play", "tale", "musical"]
probe = smallworld.Probe.fit(model, [f"A {word} {film}." for film in films for word in ("warm", "dull")],
                             ["good", "bad"] * len(films))
print("probe:", model.predict("A bold, warm tale.", probe))
probe.save(folder / "own.probe.safetensors")

# %% A picture: words coloured by how much that probe thinks of them.
picture = folder / "picture.svg"
(folder / "texts.txt").write_text("\n".join(texts[:2]) + "\n")
subprocess.run([smallworld.program(), "show", folder / "run", "--text", folder / "texts.txt", "--probe", folder / "own",
                "--out", picture], check=True)
print(picture)
