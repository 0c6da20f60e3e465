"""`smallworld classify`: from labelled text to a classifier, beside n-grams, and `predict DIR`.

    /usr/bin/python3 tests/classify.py BUILD/smallworld [CLASS.TEST...]
"""

import csv
import io
import json
import random
import re
import shutil
import subprocess

import cli

GOOD = "great lovely superb fine happy moving bright".split()
BAD = "dull awful boring weak sad flat dreary".split()
WAYS = {"n-grams": "ngram_error", "features": "features_error", "tuned": "tuned_error",
        "n-grams and model": "both_error"}
COMMON = "the film was a story with actors and some music in it that we saw".split()


def reviews(count, seed, noise=0.1):
    """Rows (text, label) whose label one word in twenty tells."""
    draw, rows = random.Random(seed), []
    for _ in range(count):
        good = draw.random() < 0.5
        words = draw.choices(COMMON, k=18)
        for _ in range(2):
            told = good if draw.random() >= noise else not good
            words.insert(draw.randrange(len(words)), draw.choice(GOOD if told else BAD))
        rows.append((" ".join(words), "good" if good else "bad"))
    return rows


def as_csv(rows):
    out = io.StringIO()
    csv.writer(out).writerows([("review", "sentiment"), *rows])
    return out.getvalue()


class Classify(cli.Case):
    def classify(self, *arguments, status=0):
        out, err = self.run_program("classify", *arguments, *self.cpu, "--json", status=status)
        return json.loads(out) if out else {}, err

    def predict(self, folder, text, *arguments):
        out, err = self.run_program("predict", folder, "--text", text, *arguments, *self.cpu)
        return [json.loads(line) for line in out.splitlines()], err

    def test_from_table_to_page(self):
        """Trains a model, holds a fifth out, and saves what predict needs."""
        self.write("reviews.csv", as_csv(reviews(150, 1)))
        made, err = self.classify("--train", "reviews.csv", "--out", "out", "--steps", "10")
        self.assertIn("2 of 4: a model of the text", err)
        self.assertEqual(made["class_names"], ["bad", "good"])
        self.assertEqual(made["train_documents"] + made["test_documents"], 150)
        self.assertGreater(made["test_documents"], 20)
        self.assertLess(made["test_documents"], 45)
        self.assertLess(made["ngram_error"], 30)
        self.assertGreater(made["commonest_error"], 35)
        for way, error in made["standard_error"].items():
            share = made[way] / 100
            self.assertAlmostEqual(error, 100 * (share * (1 - share) / made["test_documents"]) ** 0.5, msg=way)
        chosen = WAYS[made["chosen"]]
        self.assertEqual(made["valid_error"][chosen],
                         min(error for error in made["valid_error"].values() if error is not None))
        self.assertEqual(json.loads(self.read("out/results.json")), made)
        page = self.read("out/index.html").decode()
        self.assertIn(f"<strong>{made[chosen]:.2f}&nbsp;%</strong>", page)
        # The folder alone says of the documents what was measured on them.
        (self.folder / "out").rename(self.folder / "moved")
        (self.folder / "reviews.csv").rename(self.folder / "again.csv")
        lines, err = self.predict("moved", "again.csv")
        self.assertEqual(len(lines), 150)
        for line in lines:
            self.assertAlmostEqual(sum(line["probability"].values()), 1, places=9)
            self.assertEqual(line["class"], max(line["probability"], key=line["probability"].get))
        wrong = sum(line["class"] != line["label"] for line in lines)
        self.assertIn(f"error {100 * wrong / 150:.2f} % of 150 labelled documents", err)
        # What is done already is not done again.
        (self.folder / "moved").rename(self.folder / "out")
        (self.folder / "again.csv").rename(self.folder / "reviews.csv")
        _, err = self.classify("--train", "reviews.csv", "--out", "out", "--steps", "10", status=1)
        self.assertIn("out: already holds a classifier; --overwrite replaces it", err)
        again, err = self.classify("--train", "reviews.csv", "--out", "out", "--steps", "10", "--overwrite")
        self.assertIn("already finished at step", err)
        tried = lambda results: {key: value for key, value in results.items() if key != "seconds"}
        self.assertEqual(tried(again), tried(made))
        # What no clock decides repeats.
        (self.folder / "out").rename(self.folder / "first")
        again, _ = self.classify("--train", "reviews.csv", "--out", "out", "--steps", "10")
        self.assertEqual(tried(again), tried(made))
        self.assertEqual((made["text_steps"], made["C"] > 0, made["passes"] > 0), (10, True, True))
        # A table that has grown since is another text; this is said before anything is computed.
        self.write("reviews.csv", as_csv(reviews(60, 1)))
        (self.folder / "out/classifier.safetensors").rename(self.folder / "kept")
        _, err = self.classify("--train", "reviews.csv", "--out", "out", "--steps", "5", status=1)
        self.assertIn("out/run: a model of other text; --overwrite trains anew", err)
        self.assertNotIn("n-grams", err)
        (self.folder / "kept").rename(self.folder / "out/classifier.safetensors")
        self.assertEqual(len(self.predict("out", "reviews.csv")[0]), 60)
        self.classify("--train", "reviews.csv", "--out", "out", "--steps", "5", "--overwrite")
        self.assertLessEqual(len(list((self.folder / "out").glob("model-*"))), 1)
        self.assertLessEqual(len(list((self.folder / "out").glob("probe-*"))), 1)

    def test_given_model_and_test_documents(self):
        """Each way's test error is that of predict on the test documents; Adam tunes what Muon has trained."""
        self.train("--set", "train.optimizer=muon", "--set", "model.graph=dense")
        self.write("a.csv", as_csv(reviews(300, 1, noise=0)))
        self.write("b.tsv", "".join(f"{label}\t{text}\n" for text, label in reviews(200, 2, noise=0.2)) +
                   "-1\tnobody says\n")
        made, _ = self.classify("--train", "a.csv", "--test", "b.tsv", "--model", "run", "--out", "out")
        self.assertEqual(made["test_documents"], 200)
        self.assertIn('<div id="documents">', self.read("out/index.html").decode())  # mistakes, coloured
        tuned, = (self.folder / "out").glob("tuned-*/config.yaml")
        self.assertIn("optimizer: adam", tuned.read_text())
        kept, = (self.folder / "out").glob("model-*.safetensors")
        if made["joined"] == "features":
            self.assertEqual(kept.read_bytes(), self.read("run/last.safetensors"))
        (self.folder / "run/last.safetensors").unlink()
        # The way that is saved, and the table of what was said of which class.
        header, _ = cli.split_safetensors(self.read("out/classifier.safetensors"))
        saved = {"n-grams": 0, "features": 1, "tuned": 1}.get(made["chosen"], made["share_of_model"])
        self.assertEqual(float(header["__metadata__"]["share"]), saved)
        lines, _ = self.predict("out", "b.tsv")
        number = r'<td class="number">(?:<b>)?([\d.]+)(?:</b>)?</td>'
        rows = re.findall(r'<th scope="row">(bad|good)</th>' + 6 * number, self.read("out/index.html").decode())
        self.assertEqual([row[0] for row in rows], ["bad", "good"])
        for (label, count, precision, recall, f1, *said), scores in zip(rows, made["classes"]):
            told = [line["class"] for line in lines if line.get("label") == label]
            said_so = [line["label"] for line in lines if line["class"] == label and "label" in line]
            self.assertEqual([int(n) for n in said], [told.count("bad"), told.count("good")])
            self.assertEqual(int(count), len(told))
            mine = {"class": label, "documents": len(told), "precision": said_so.count(label) / len(said_so),
                    "recall": told.count(label) / len(told)}
            mine["f1"] = 2 / (1 / mine["precision"] + 1 / mine["recall"])
            for key, value in mine.items():
                self.assertEqual(scores[key], value) if key == "class" else self.assertAlmostEqual(scores[key], value)
            for shown, key in (precision, "precision"), (recall, "recall"), (f1, "f1"):
                self.assertAlmostEqual(float(shown), 100 * mine[key], delta=0.0501)
        self.assertAlmostEqual(made["macro_f1"], sum(scores["f1"] for scores in made["classes"]) / 2)
        self.assertEqual({(pair["class"], pair["said"]): pair["documents"] for pair in made["mixed_up"]},
                         {("bad", "good"): int(rows[0][6]), ("good", "bad"): int(rows[1][5])})
        self.assertNotEqual(rows[0][6], rows[1][5])
        errors = {0: made["ngram_error"], 1: made[WAYS[made["joined"]]], made["share_of_model"]: made["both_error"]}
        for share, expected in errors.items():
            self.set_share("out/classifier.safetensors", share)
            lines, err = self.predict("out", "b.tsv")
            self.assertEqual(len(lines), 201)
            self.assertIn(f"error {expected:.2f} % of 200 labelled documents", err)
        # n-grams alone need no model.
        self.set_share("out/classifier.safetensors", 0)
        kept.unlink()
        lines, _ = self.predict("out", "b.tsv")
        self.assertEqual(len(lines), 201)

    def set_share(self, name, share):
        header, data = cli.split_safetensors(self.read(name))
        header["__metadata__"]["share"] = repr(share)
        header["__metadata__"].pop("checksum", None)
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (self.folder / name).write_bytes(len(text).to_bytes(8, "little") + text + data)

    def test_tuned(self):
        """A word's place decides, which n-grams do not see; text without labels teaches the model, not the class."""
        draw = random.Random(7)
        def row(label):
            words = draw.choices(COMMON, k=6)
            first, second = ("lovely", "dull") if label == "good" else ("dull", "lovely")
            words[draw.randrange(3):0] = [first] + draw.choices(COMMON, k=3)
            return " ".join([*words, second, *draw.choices(COMMON, k=2)])
        def rows(count):
            labels = [draw.choice(["good", "bad"]) for _ in range(count)]
            return [(row(label), label) for label in labels]
        self.write("train.csv", as_csv(rows(900)))
        self.write("test.csv", as_csv(rows(200)))
        self.write("more.csv", as_csv([(text, "odd") for text, _ in rows(300)]))
        made, err = self.classify("--train", "train.csv", "--text", "more.csv", "--test", "test.csv", "--out", "out",
                                  "--steps", "240", "--class-weight", "balanced")
        self.assertEqual(made["class_names"], ["bad", "good"])
        self.assertRegex(err, "data: 1200 documents, ")
        self.assertRegex(err, r"labels: 2 classes in 7\d\d documents to train on, 1\d\d to validate on")
        self.assertGreater(made["ngram_error"], 15)
        self.assertLess(made["tuned_error"], 10)
        self.assertNotEqual(made["chosen"], "n-grams")
        tuned, = (self.folder / "out").glob("tuned-*/best.safetensors")
        self.assertIn("class_weight: balanced", (tuned.parent / "config.yaml").read_text())
        _, err = self.predict(tuned, "test.csv")
        self.assertIn(f"error {made['tuned_error']:.2f} % of 200 labelled documents", err)
        _, err = self.predict("out", "test.csv")
        self.assertIn(f"error {made[WAYS[made['chosen']]]:.2f} % of 200 labelled documents", err)
        probes = list((self.folder / "out").glob("probe-*"))
        self.assertEqual(len(probes), 1 if "features" in made["joined"] else 0)
        self.assertIn("not tried", self.classify("--train", "train.csv", "--out", "short", "--minutes", "0.01")[1])

    def test_labels_of_predicted_texts(self):
        """A file's folder is no label, and labels that are none of the classes are named."""
        self.train()
        self.write("a.csv", as_csv(reviews(200, 1)))
        self.classify("--train", "a.csv", "--model", "run", "--out", "out")
        self.write("q/a.txt", "a great and lovely film")
        for arguments in ("q/a.txt",), ("q/a.txt", "--whole"):
            lines, err = self.predict("out", *arguments)
            self.assertNotIn("label", lines[0])
            self.assertNotIn("error", err)
        self.write("b.csv", as_csv([("a dull film", "bad"), ("a lovely film", "fine"), ("a film", "fair")]))
        _, err = self.predict("out", "b.csv")
        self.assertIn("warning: 2 documents have labels that are none of the classes, such as 'fine'", err)

        # A text that comes by itself is answered at once.
        process = self.start("predict", "out", "--text", "-", *self.cpu, stdin=subprocess.PIPE)
        for text in "a great and lovely film", "a dull and awful film":
            process.stdin.write(text + "\n")
            process.stdin.flush()
            line = json.loads(process.stdout.readline())
            self.assertEqual(line["class"], "good" if "great" in text else "bad")
        process.communicate(timeout=600)

    def test_three_classes_beside_sklearn(self):
        """The n-grams err about as often as scikit-learn's on the same kind of features."""
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
            from sklearn.linear_model import LogisticRegression
            from sklearn.pipeline import make_union
        except ImportError:
            self.skipTest("no scikit-learn")
        draw = random.Random(3)
        words = {"sea": "wave ship sail fish", "wood": "tree leaf deer moss", "town": "road wall bus shop"}
        def rows(count):
            for _ in range(count):
                label = draw.choice(list(words))
                told = label if draw.random() < 0.9 else draw.choice(list(words))
                yield label, " ".join(draw.choices(COMMON, k=9) + [draw.choice(words[told].split())])
        train, test = list(rows(600)), list(rows(600))
        self.train()
        for name, part in ("train.tsv", train), ("test.tsv", test):
            self.write(name, "".join(f"{label}\t{text}\n" for label, text in part))
        made, _ = self.classify("--train", "train.tsv", "--test", "test.tsv", "--model", "run", "--out", "out")
        self.assertEqual(made["class_names"], ["sea", "town", "wood"])
        # The page is as sure of what is wrong as predict is.
        wrong = sorted((max(line["probability"].values()) for line in self.predict("out", "test.tsv")[0]
                        if line["class"] != line["label"]), reverse=True)
        page = self.read("out/index.html").decode()
        sure = re.findall(r'<td class="number">(\d+)</td><td>', page[page.index('id="mistakes"'):])
        self.assertEqual(len(sure), 20)
        for found, expected in zip(sure, wrong):
            self.assertAlmostEqual(int(found), 100 * expected, delta=0.51)
        theirs = make_union(TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=2),
                            TfidfVectorizer(analyzer="char", ngram_range=(2, 5), sublinear_tf=True, min_df=2))
        x = theirs.fit_transform([text for _, text in train])
        fit = LogisticRegression(C=8, solver="liblinear").fit(x, [label for label, _ in train])
        said = fit.predict(theirs.transform([text for _, text in test]))
        error = 100 * sum(a != b for a, (b, _) in zip(said, test)) / len(test)
        self.assertLess(abs(error - made["ngram_error"]), 1.5)

    def test_class_folders(self):
        """A folder with a folder for each class, of which the model reads what is not held out."""
        for i, (text, label) in enumerate(reviews(40, 1)):
            self.write(f"all/{label}/{i}.txt", text + "\n")
        made, err = self.classify("--train", "all", "--out", "out", "--steps", "5")
        self.assertEqual(made["class_names"], ["bad", "good"])
        self.assertRegex(err, rf"data: {made['train_documents']} documents, ")
        lines, _ = self.predict("out", "all")
        self.assertEqual([line["label"] for line in lines], sorted(line["label"] for line in lines))
        self.assertEqual(len(lines), 40)

    def test_repeats(self):
        """Equal texts are on one side of each split, so that labels that say nothing are not learnt by heart."""
        draw = random.Random(5)
        word = lambda: "".join(draw.choices("abcdefghijklmnop", k=5))
        texts = [" ".join(word() for _ in range(12)) for _ in range(150)]
        rows = [(text, draw.choice("xy")) for text in texts for _ in range(4)]
        labels = {text: label for text, label in rows}  # of repeats the last one's
        rows = [(text, labels[text]) for text, _ in rows]
        self.train()
        self.write("rows.csv", as_csv(rows))
        made, _ = self.classify("--train", "rows.csv", "--model", "run", "--out", "out")
        self.assertEqual(made["train_documents"] % 4, 0)
        for way in "ngram_error", "features_error", "tuned_error", "both_error":
            self.assertGreater(made["valid_error"][way], 25, way)  # chance
        # The probe alone splits by equal features.
        self.run_program("features", "run", "--data", "rows.csv", "--out", "f", *self.cpu)
        probed = self.results("probe", "--train", "f", "--test", "f", *self.cpu)
        self.assertGreater(probed["valid_error"], 25)
        # Documents that stand in --test too are not trained on.
        self.write("test.csv", as_csv(rows[:120]))
        made, err = self.classify("--train", "rows.csv", "--test", "test.csv", "--model", "run", "--out", "out2")
        self.assertIn("rows.csv: 120 documents that stand in test.csv too are left out", err)
        self.assertEqual((made["train_documents"], made["test_documents"]), (480, 120))
        self.assertGreater(made["ngram_error"], 20)

    def test_rare_classes(self):
        self.train()
        rows = [(f"{text} {i}", label) for i, (text, label) in enumerate(reviews(100, 3))]
        self.write("rows.csv", as_csv(rows + [(f"an odd one {i}", "odd") for i in range(3)] + [("no label", "")]))
        test = [row for row in reviews(120, 4) if row[1] == "good"][:30] + [row for row in reviews(60, 5) if row[1] == "bad"][:10]
        rows += [(f"{text} more {i}", "bad") for i, (text, label) in enumerate(reviews(90, 6)) if label == "bad"]
        self.write("rows.csv", as_csv(rows + [(f"an odd one {i}", "odd") for i in range(3)] + [("no label", "")]))
        self.write("test.csv", as_csv(test))
        made, err = self.classify("--train", "rows.csv", "--test", "test.csv", "--model", "run", "--out", "out")
        self.assertEqual(made["commonest_error"], 75)  # the commonest class of what is learnt from
        self.assertEqual(made["class_names"], ["bad", "good", "odd"])
        self.assertIn("warning: class 'odd' is not among the test documents", err)
        self.assertIn("1 documents have no label", err)
        self.assertIn("1 more documents have no label", self.read("out/index.html").decode())
        self.write("test.csv", as_csv(test + [("an odd one more", "odd"), ("never seen", "other")]))
        made, err = self.classify("--train", "rows.csv", "--test", "test.csv", "--out", "kept", "--minutes", "0", "--drop-rare", "4")
        self.assertIn("rows.csv: 3 documents of classes with fewer than 4 lose their label", err)
        self.assertEqual((made["class_names"], made["test_documents"]), (["bad", "good"], 40))

    def test_class_weight(self):
        """Balanced, all classes count alike: more of a rare class is found."""
        draw, rows = random.Random(2), reviews(2000, 8, noise=0.35)
        self.write("odd.csv", as_csv([row for row in rows if row[1] == "good" or draw.random() < 0.15]))
        recall = {}
        for weight in "none", "balanced":
            made, err = self.classify("--train", "odd.csv", "--out", weight, "--minutes", "0",
                                      "--class-weight", weight)
            self.assertEqual(made["class_weight"], weight)
            self.assertIn(b"No way with a model was tried", self.read(f"{weight}/index.html"))
            recall[weight] = made["classes"][0]["recall"]
            tried = [float(found) for found in re.findall(r"n-grams, C = \S+ validation error ([\d.]+) %", err)]
            self.assertAlmostEqual(min(tried), made["valid_error"]["ngram_error"], delta=0.01)  # one measure
            self.assertEqual(made["classes"][0]["class"], "bad")
        self.assertGreater(recall["balanced"], recall["none"] + 0.1, recall)
        self.assertIn("--class-weight: expected one of: none balanced", self.run_program(
            "classify", "--train", "odd.csv", "--out", "none", "--class-weight", "some", status=2)[1])

    def test_two_at_once(self):
        """The second one is refused."""
        self.train()
        self.write("a.csv", as_csv(reviews(80, 1)))
        process = self.start("classify", "--train", "a.csv", "--out", "two", "--minutes", "9", *self.cpu)
        try:
            self.wait_for("two/run/config.yaml", process)
            _, err = self.classify("--train", "a.csv", "--model", "run", "--out", "two", status=1)
            self.assertIn("two: another run is using it", err)
        finally:
            process.terminate()
            process.communicate(timeout=600)

    def test_reads_as_its_model(self):
        """Of a model that reads entities, the classifier reads them too: nothing else tells these classes."""
        self.train("--set", "data.html_entities=true")
        draw = random.Random(4)
        text = lambda label: " ".join(draw.choices(COMMON, k=12) + ["&lt;3" if label == "good" else "<3"])
        self.write("a.csv", as_csv([(text(label), label) for label in ["good", "bad"] * 100]))
        made, _ = self.classify("--train", "a.csv", "--model", "run", "--out", "out")
        self.assertGreater(made["ngram_error"], 25)
        header, _ = cli.split_safetensors(self.read("out/classifier.safetensors"))
        self.assertEqual(header["__metadata__"]["html_entities"], "true")

    def test_no_time_for_a_model(self):
        self.write("a.csv", as_csv(reviews(300, 1)))
        made, err = self.classify("--train", "a.csv", "--out", "out", "--minutes", "0.0001")
        self.assertRegex(err, "2 of 4: a model of the text: not tried, as it takes about .* and 0:00 are left")
        self.assertEqual([made["chosen"], made["features_error"], made["tuned_error"]], ["n-grams", None, None])
        self.assertFalse((self.folder / "out/run").exists())
        # On a CPU none is begun unless minutes are given; and none that nothing could use.
        made, err = self.classify("--train", "a.csv", "--out", "usual")
        self.assertIn("n-grams alone, since this is a CPU; --minutes N also tries a model of the text", err)
        self.assertEqual(made["chosen"], "n-grams")
        _, err = self.classify("--train", "a.csv", "--out", "plan", "--minutes", "0.1")
        self.assertRegex(err, "plan: a model of the text .*, tuning .*, a probe|a model of the text: not tried")
        self.assertFalse((self.folder / "plan/trial").exists())

    def test_killed_early(self):
        """What a run left that was killed before its first checkpoint is no run to go on with."""
        self.write("a.csv", as_csv(reviews(60, 1)))
        self.write("out/.classify", "")
        self.train()
        head = self.read("run/config.yaml").splitlines(keepends=True)[0]
        self.write("out/run/config.yaml", head)
        self.write("out/run/metrics.jsonl", "")
        self.classify("--train", "a.csv", "--out", "out", "--steps", "5")
        self.predict("out", "a.csv")

    def test_what_a_folder_holds(self):
        """Nothing goes but what the classifier before named; a part of another classifier is no part of this one."""
        self.train()
        self.train("--set", "run.seed=7", "--out", "other")
        self.write("a.csv", as_csv(reviews(80, 1)))
        self.write("b.csv", as_csv([(text, {"good": "better", "bad": "worse"}[label]) for text, label in reviews(80, 1)]))
        self.write("out/model-0123abcd.safetensors", "mine")
        self.write("out/probe-0123abcd.probe.safetensors", "mine")
        self.classify("--train", "a.csv", "--out", "out", "--minutes", "0")
        for name in "model-0123abcd.safetensors", "probe-0123abcd.probe.safetensors":
            self.assertEqual(self.read(f"out/{name}"), b"mine")
        self.refused("run/last.state: not made by classify", "classify", "--train", "a.csv",
                     "--out", "run", "--minutes", "0")
        # A model of this folder stays where it is an input; a damaged one of its name is written anew.
        self.classify("--train", "a.csv", "--model", "run", "--out", "m")
        kept, = (self.folder / "m").glob("model-*")
        whole = kept.read_bytes()
        given = self.folder / "given.safetensors"
        shutil.copy(kept, given)
        for tuned in (self.folder / "m").glob("tuned-*"):
            shutil.rmtree(tuned)
        self.classify("--train", "a.csv", "--model", f"m/{kept.name}", "--out", "m", "--overwrite")
        self.assertTrue(kept.exists())
        kept.write_bytes(whole[:-64])
        for tuned in (self.folder / "m").glob("tuned-*"):
            shutil.rmtree(tuned)
        self.classify("--train", "a.csv", "--model", "given.safetensors", "--out", "m", "--overwrite")
        self.predict("m", "a.csv")
        # Two classifiers under each other's names.
        for name, train, model in ("x", "a.csv", "run"), ("y", "a.csv", "other"), ("z", "b.csv", "run"):
            self.classify("--train", train, "--model", model, "--out", name)
        parts = {name: sorted(path.name for path in (self.folder / name).glob("*-*.safetensors")) for name in "xyz"}
        for ours, theirs in zip(parts["x"], parts["y"]):
            before = self.read(f"x/{ours}")
            self.write(f"x/{ours}", self.read(f"y/{theirs}"))
            _, err = self.run_program("predict", "x", "--text", "a.csv", *self.cpu, status=1)
            self.assertIn(f"x/{ours}: expected the file of this name's checksum", err)
            self.write(f"x/{ours}", before)
        named, = (self.folder / "z").glob("probe-*") if list((self.folder / "z").glob("probe-*")) else [None]
        if named:
            mine, = (self.folder / "x").glob("probe-*")
            self.write(f"x/{named.name}", named.read_bytes())
            header, data = cli.split_safetensors(self.read("x/classifier.safetensors"))
            header["__metadata__"]["probe"] = named.name
            header["__metadata__"].pop("checksum", None)
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            (self.folder / "x/classifier.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
            _, err = self.run_program("predict", "x", "--text", "a.csv", *self.cpu, status=1)
            self.assertIn("other classes than classifier.safetensors beside it has", err)

    def test_columns(self):
        """predict knows the columns that its classifier was made of."""
        rows = reviews(80, 1)
        table = lambda text, label: f"{text},{label}\n" + "".join(f"{one},{two}\n" for one, two in rows)
        self.write("odd.csv", table("was", "wie"))
        self.classify("--train", "odd.csv", "--out", "c", "--minutes", "0", "--text-column", "was", "--label-column", "wie")
        lines, err = self.predict("c", "odd.csv")
        self.assertEqual(len(lines), 80)
        self.assertIn("of 80 labelled documents", err)
        self.write("usual.csv", table("text", "label"))
        self.assertEqual(len(self.predict("c", "usual.csv")[0]), 80)

    def test_refusals(self):
        self.train()
        self.write("one.csv", "text,label\na,x\nb,x\n")
        self.write("two.csv", as_csv(reviews(60, 1)))
        self.write("other.tsv", "odd\ta film\n")
        self.write("own/index.html", "mine")
        self.write("thin.csv", "text,label\n" + "".join(f"film {i},x\n" for i in range(20)) + "b film,y\n" * 9)
        self.write("more.csv", "text,label\nanother film,x\n")
        for message, *arguments in [
                ("expected --train FILE", "--out", "out"),
                ("expected --out DIR", "--train", "two.csv"),
                ("one.csv: expected documents of two classes or more, found one", "--train", "one.csv", "--out", "o"),
                ("other.tsv: label 'odd' is not among those of two.csv", "--train", "two.csv", "--test", "other.tsv",
                 "--model", "run", "--out", "o"),
                ("thin.csv: expected at least two different documents of each class beside those for testing; class 'y' has",
                 "--train", "thin.csv", "--test", "more.csv", "--model", "run", "--out", "o"),
                ("two.csv: expected labelled documents, of which some can be for training", "--train", "two.csv", "--test",
                 "two.csv", "--model", "run", "--out", "o"),
                ("own/index.html: not made by classify; expected another --out", "--train", "two.csv", "--model", "run",
                 "--out", "own"),
                ("cannot open no: No such file or directory", "--train", "two.csv", "--model", "no", "--out", "o")]:
            with self.subTest(message):
                status = 2 if message.startswith("expected") else 1
                _, err = self.classify(*arguments, status=status)
                self.assertIn(message, err)
        _, err = self.run_program("predict", "run", "--text", "two.csv", status=1)
        self.assertIn("run/last.safetensors: not a probe, but a model without classes", err)
        self.classify("--train", "two.csv", "--model", "run", "--out", "out")
        whole = self.read("out/classifier.safetensors")
        for cut in len(whole) // 2, len(whole) - 1:
            self.write("out/classifier.safetensors", whole[:cut])
            _, err = self.run_program("predict", "out", "--text", "two.csv", status=1)
            self.assertIn("out/classifier.safetensors: ", err)


if __name__ == "__main__":
    cli.main(__doc__)
