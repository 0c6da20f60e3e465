"""Probes of several classes, labels that are names, and `smallworld predict`.

    /usr/bin/python3 tests/predict.py BUILD/smallworld [CLASS.TEST...]
"""

import base64
import json
import random
import subprocess

import cli
import needs

numpy = needs.module("numpy")
needs.module("sklearn")
from sklearn.linear_model import LogisticRegression  # noqa: E402

NAMES = ["\u00fcbel", "good", "Bad one"]


def named(count, seed, names=NAMES):
    """Documents whose last word tells their label."""
    draw, lines = random.Random(seed), []
    for i in range(count):
        label = draw.randrange(len(names))
        words = draw.choices(["the", "cat", "dog", "sat"], k=draw.randint(2, 5))
        lines.append(f"{names[label]}\t{' '.join(words)} {'xyz'[label] * 3}\n")
    return "".join(lines).encode()


class Predict(cli.Case):
    def features(self, *parts):
        for part in parts:
            self.run_program("features", "run/last.safetensors", "--data", f"{part}.tsv", "--out",
                             part, *self.cpu)

    def predict(self, *arguments, status=0, **options):
        out, err = self.run_program("predict", "run/last.safetensors", *arguments, *self.cpu,
                                    status=status, **options)
        return [json.loads(line) for line in out.splitlines()], err

    def page_data(self):
        page = self.read("page.html").decode()
        return json.loads(page.split('id="reading">')[1].split("</script>")[0])

    def test_three_names(self):
        self.write("train.tsv", named(160, 1))
        self.write("valid.tsv", named(50, 2))
        self.write("test.tsv", named(60, 3) + b"-1\tnobody says\n")
        self.train()
        self.features("train", "valid", "test")
        names = json.loads(self.read("train.json"))["names"]
        self.assertEqual(names, sorted(NAMES, key=str.encode))
        labels = numpy.load(self.folder / "train.labels.npy")
        lines = self.read("train.tsv").decode().splitlines()
        self.assertEqual([names[label] for label in labels],
                         [line.split("\t")[0] for line in lines])
        probe = self.results("probe", "--train", "train", "--test", "test", "--out", "p", *self.cpu)
        self.assertEqual((probe["classes"], probe["dropped"], probe["test_documents"]), (3, 1, 60))
        weights = numpy.load(self.folder / "p.weights.npy")
        self.assertEqual(weights.shape, (3, 65))  # mean, last, intercept

        # The objective is scikit-learn's, of all functions together.
        taken = weights.any(axis=0)[:-1]  # the pooling that was chosen, or both
        x = numpy.load(self.folder / "train.npy").astype("float64")[:, taken]
        x = numpy.hstack([x, numpy.ones((len(x), 1))])  # the intercept is penalised
        objective = lambda w: (w * w).sum() / 2 + probe["C"] * (
            numpy.logaddexp.reduce(x @ w.T, axis=1) - (x * w[labels]).sum(1)).sum()
        theirs = LogisticRegression(C=probe["C"], fit_intercept=False, tol=1e-8, max_iter=20000)
        theirs = objective(theirs.fit(x, labels).coef_)
        self.assertLess(objective(weights[:, numpy.append(taken, True)]), theirs * (1 + 1e-4))

        # predict gives the probabilities that follow from features and weights, and errs as often as the
        # probe did.
        lines, err = self.predict("--probe", "p", "--text", "test.tsv")
        margins = numpy.load(self.folder / "test.npy") @ weights[:, :-1].T + weights[:, -1]
        self.assertEqual(len(lines), 61)
        likely = numpy.exp(probe["scale"] * margins)
        likely /= likely.sum(1, keepdims=True)
        wrong = 0
        for i, line in enumerate(lines):
            self.assertEqual(line["document"], i)
            self.assertEqual(list(line["probability"]), names)
            numpy.testing.assert_allclose(list(line["probability"].values()), likely[i], atol=1e-5)
            self.assertEqual(line["class"], names[margins[i].argmax()])
            wrong += "label" in line and line["label"] != line["class"]
        self.assertNotIn("label", lines[60])
        self.assertAlmostEqual(100 * wrong / 60, probe["error"])
        self.assertIn(f"error {probe['error']:.2f} % of 60 labelled documents", err)
        self.assertLess(probe["error"], 40)  # chance is 67
        predictions = numpy.load(self.folder / "p.predictions.npy")
        self.assertEqual([names[k] for k in predictions], [line["class"] for line in lines])
        for k in 1, 2, 9:
            for line, top in zip(lines, self.predict("--probe", "p", "--text", "test.tsv", "--top-k", k)[0]):
                pairs = sorted(line["probability"].items(), key=lambda pair: -pair[1])
                self.assertEqual(list(top["probability"].items()), pairs[:k])

        # With --valid there is no second fit. The test set may lack a class.
        self.write("two.tsv", b"".join(line for line in self.read("test.tsv").splitlines(True)
                                       if not line.startswith(b"good")))
        self.features("two")
        probed = self.results("probe", "--train", "train", "--valid", "valid", "--test", "two", "--out", "q",
                              *self.cpu)
        for part, name in ("train", "train"), ("valid", "valid"), ("test", "two"):
            labels = numpy.load(self.folder / f"{name}.labels.npy")
            self.assertEqual(probed[f"{part}_documents"], (labels >= 0).sum())
        self.assertNotEqual(probed["train_documents"], probed["valid_documents"])
        lines, _ = self.predict("--probe", "q.probe.safetensors", "--text", "two.tsv", "--out",
                                "lines.jsonl")
        self.assertEqual(lines, [])
        lines = [json.loads(line) for line in self.read("lines.jsonl").splitlines()]
        predictions = numpy.load(self.folder / "q.predictions.npy")
        self.assertEqual([names[k] for k in predictions], [line["class"] for line in lines])
        # Each class has a score of its own on a page, and a histogram of all classes' documents.
        self.run_program("show", "run/last.safetensors", "--probe", "p", "--text", "test.tsv", "--features",
                         "test", "--out", "page.html", *self.cpu)
        data = self.page_data()
        self.assertEqual([t["name"] for t in data["tracks"][:3]], [f"probe: score of {n}" for n in names])
        ends = [d["start"] + d["length"] - 1 for d in data["documents"]]
        for k, track in enumerate(data["tracks"][:3]):
            values = numpy.frombuffer(base64.b64decode(track["values"]), "<i2") / 32767 * track["scale"]
            numpy.testing.assert_allclose(values[ends], margins[:, k], atol=track["scale"] / 32767 + 1e-4)
            self.assertEqual([sum(counts) for counts in track["histogram"]["counts"]],
                             [(numpy.load(self.folder / "test.labels.npy") == n).sum() for n in range(3)])

    def test_two_integers(self):
        self.train()
        for pool in "mean", "max,last", "last":
            self.run_program("features", "run/last.safetensors", "--data", "train.tsv", "--out", "t",
                             "--pool", pool, "--state", "hidden", *self.cpu)
            self.run_program("features", "run/last.safetensors", "--data", "valid.tsv", "--out", "v",
                             "--pool", pool, "--state", "hidden", *self.cpu)
            scale = self.results("probe", "--train", "t", "--test", "v", "--out",
                                 "p", *self.cpu)["scale"]
            lines, _ = self.predict("--probe", "p", "--text", "valid.tsv")
            weights = numpy.load(self.folder / "p.weights.npy")
            margins = numpy.load(self.folder / "v.npy") @ weights[:-1] + weights[-1]
            numpy.testing.assert_allclose([line["probability"]["1"] for line in lines],
                                          1 / (1 + numpy.exp(-scale * margins)), atol=1e-5)
            # At a document's last byte, show's score is the probe's margin on the document.
            self.run_program("show", "run/last.safetensors", "--text", "valid.tsv", "--probe", "p",
                             "--features", "v", "--out", "page.html", *self.cpu)
            data = self.page_data()
            track = next(t for t in data["tracks"] if t["kind"] == "probe")
            values = numpy.frombuffer(base64.b64decode(track["values"]), "<i2") / 32767
            ends = [d["start"] + d["length"] - 1 for d in data["documents"]]
            numpy.testing.assert_allclose(values[ends] * track["scale"], margins,
                                          atol=track["scale"] / 32767 + 1e-4)
            self.assertRegex(track["histogram"]["subject"], "^probe: score of 1, of each")
            # The first track is the unit that separates the labels best; a score holds for whole words.
            best = data["tracks"][0]
            word = {"mean": "mean of unit", "max,last": "(largest value of )?unit", "last": "unit"}[pool]
            self.assertRegex(best["histogram"]["subject"], word)
            features, labels = (numpy.load(self.folder / f"v{part}.npy") for part in ("", ".labels"))
            unit = int(best["name"].split()[1])
            errors = []
            for column in features.T:
                right = [((column > t) == (labels == 1)).mean() for t in [-numpy.inf, *column]]
                errors.append(100 * min(1 - max(right), min(right)))
            self.assertAlmostEqual(best["histogram"]["error"], min(errors), places=4)
            self.assertAlmostEqual(min(errors[unit::32]), min(errors))
            text = base64.b64decode(data["bytes"])
            for d in data["documents"]:
                for i in range(d["start"], d["start"] + d["length"] - 1):
                    if text[i] != 0x20:
                        self.assertEqual(values[i], values[i + 1])
        self.run_program("features", "run/last.safetensors", "--data", "valid.tsv", "--out", "other",
                         "--pool", "max", "--state", "hidden", *self.cpu)
        show = ["show", "run/last.safetensors", "--text", "valid.tsv", "--out", "page.html"]
        self.refused("features of --pool max, but the probe was fitted on last", *show, "--probe", "p",
                     "--features", "other", *self.cpu)
        self.refused("features of the hidden state, but the page shows the cell state", *show,
                     "--features", "other", *self.cpu)
        self.refused("--pool: has no meaning without --probe", *show, "--pool", "mean", *self.cpu,
                     status=2)
        self.refused("--pool: the probe was fitted on --pool last", *show, "--probe", "p", "--pool",
                     "mean", *self.cpu, status=2)
        # Lines of plain text are framed like documents, so the same text has the same probability.
        plain = b"\r\n".join(line.split(b"\t")[1]
                              for line in self.read("valid.tsv").splitlines())
        self.write("plain.txt", plain)
        with open(self.folder / "plain.txt") as text:
            again, err = self.predict("--probe", "p", "--text", "-", stdin=text)
        self.assertEqual([line["probability"] for line in again],
                         [line["probability"] for line in lines])
        self.assertNotIn("error", err)
        self.write("plain.txt", b"\na\n \n\nb")  # a result for each line, also an empty one
        again, _ = self.predict("--probe", "p", "--text", "plain.txt")
        self.assertEqual([line["document"] for line in again], [0, 1, 2, 3, 4])
        self.assertEqual(again[0]["probability"], again[3]["probability"])
        # Features of another program do not say how they were made.
        for name in "t.json", "v.json":
            (self.folder / name).unlink()
        self.run_program("probe", "--train", "t", "--test", "v", "--out", "o",
                         *self.cpu)
        again, _ = self.predict("--probe", "o", "--text", "valid.tsv", "--state", "hidden")
        self.assertEqual(again, lines)
        self.refused("fitted on the hidden state", "predict", "run/last.safetensors", "--probe", "p",
                     "--text", "valid.tsv", "--state", "cell", *self.cpu, status=2)

    def test_lines_as_they_come(self):
        """A line is answered before the next one is there."""
        self.write("train.tsv", named(60, 1))
        self.write("valid.tsv", named(20, 2))
        self.train()
        self.features("train")
        self.run_program("probe", "--train", "train", "--test", "train", "--out", "p", *self.cpu)
        command = [cli.PROGRAM, "predict", "run/last.safetensors", "--probe", "p", "--text", "-", *self.cpu]
        with subprocess.Popen(command, cwd=self.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
            said = []
            for text in b"the cat xxx\n", b"\n", b"the dog yyy\n":
                running.stdin.write(text)
                running.stdin.flush()
                said.append(json.loads(running.stdout.readline()))
            running.stdin.write(b"one\ntwo\nthree")
            running.stdin.close()
            said += [json.loads(line) for line in running.stdout]
            self.assertEqual(running.wait(), 0)
        self.assertEqual([line["document"] for line in said], list(range(6)))
        self.write("lines.txt", b"the cat xxx\n\nthe dog yyy\none\ntwo\nthree")
        self.assertEqual(self.predict("--probe", "p", "--text", "lines.txt")[0], said)

    def test_bad_input(self):
        self.train()
        self.features("train", "valid")
        self.run_program("probe", "--train", "train", "--test", "valid", "--out", "p", *self.cpu)
        command = ["predict", "run/last.safetensors", "--text", "valid.tsv", *self.cpu]
        self.refused("missing.probe.safetensors", *command, "--probe", "missing")
        self.refused("not a probe", *command, "--probe", "run/last.safetensors")
        content = self.read("p.probe.safetensors")
        self.write("cut.safetensors", content[:-8])
        self.refused("cut.safetensors", *command, "--probe", "cut.safetensors")
        header, _ = cli.split_safetensors(content)
        for key, wrong in [("classes", "3"), *((key, "x") for key in ("classes", "C", "error", "documents"))]:
            value = wrong * len(header["__metadata__"][key])
            self.write("number.safetensors", cli.change_metadata(content, key, value))
            self.refused("number.safetensors: corrupt", *command, "--probe", "number.safetensors")
        self.run_program("train", "config.yaml", "--out", "other", "--set", "run.seed=7")
        self.refused("features of another checkpoint", "predict", "other/last.safetensors",
                     "--probe", "p", "--text", "valid.tsv", *self.cpu)
        self.write("many.tsv", "".join(f"n{i}\ta text\n" for i in range(257)))
        lines, err = self.predict("--probe", "p", "--text", "many.tsv")
        self.assertEqual(len(lines), 257)  # labels that nothing needs may be as many
        self.assertIn("257 documents have labels that are none of the classes, such as 'n0'", err)
        self.write("named.tsv", named(9, 1))
        self.features("named")
        self.refused("labels are names", "probe", "--train", "train", "--test", "named", *self.cpu)
        self.write("valid.tsv", named(20, 1, ["one", "two"]))
        self.features("valid")
        self.refused("label 'one' is not among", "probe", "--train", "named", "--test", "valid",
                     *self.cpu)
        self.write("named.json", '{"kind": "features", "names": ["a"]}')
        self.refused("is none of the 1 names", "probe", "--train", "valid", "--test", "named",
                     *self.cpu)
        self.write("named.json", '{"kind": "features", "names": [1]}')
        self.refused("named.json: expected what", "probe", "--train", "valid", "--test", "named",
                     *self.cpu)

    def test_names_in_training_and_pages(self):
        self.write("train.tsv", named(60, 1, ["<b>no</b>", "yes"]).replace(b"<b>", b"_<b>"))
        self.write("valid.tsv", named(20, 2, ["<b>no</b>", "yes"]).replace(b"<b>", b"_<b>"))
        self.train()  # training ignores labels
        self.features("train", "valid")
        self.run_program("probe", "--train", "train", "--test", "valid", "--out", "p", *self.cpu)
        self.run_program("show", "run/last.safetensors", "--text", "valid.tsv", "--probe", "p",
                         "--features", "train", "--out", "page.html", *self.cpu)
        data = self.page_data()
        self.assertEqual(data["classes"], ["_<b>no</b>", "yes"])
        self.assertEqual({d["label"] for d in data["documents"]}, {"_<b>no</b>", "yes"})
        self.assertNotIn("<b>no", self.read("page.html").decode())


if __name__ == "__main__":
    cli.main(__doc__)
