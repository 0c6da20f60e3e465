"""The pages that the program writes, in a browser, and the commands that write them.

    /usr/bin/python3 tests/pages.py BUILD/smallworld [CLASS.TEST...]

SMALLWORLD_SCREENSHOTS=FOLDER keeps pictures of every page at 360 and 1,280 pixels.
"""

import base64
import json
import lzma
import os
import re
import signal
from pathlib import Path

import browser
import cli
import needs

numpy = needs.module("numpy")

NASTY = (b"<script>window.broken = 1</script> </script><!-- & \" ' \\ &lt; "
         + bytes(b for b in range(256) if b not in b"\n\r\t") + "\u00e9\u2028\u202e\U0001f600".encode())
PAGE_BYTES = 2_000_000


def setUpModule():
    global SURF
    SURF = browser.Browser()


def tearDownModule():
    SURF.close()


class Page(cli.Case):
    def open(self, name, **how):
        """Opens a page and asserts what holds for every page."""
        path = self.folder / name
        content = path.read_text(encoding="utf-8")
        self.assertLess(len(content), PAGE_BYTES)
        self.assertNotRegex(content, r"(src|href)=\"?(https?:)?//")
        SURF.open(path, **how)
        self.assertEqual(SURF.problems, [])
        self.assertIsNone(SURF.run("window.broken ?? null"))
        self.assertEqual(SURF.run("document.querySelectorAll('h1').length"), 1)
        return content

    def check_sizes(self, name):
        """Asserts that nothing overflows at 360 and 1,280 pixels, in light and dark; keeps pictures if
        asked."""
        for width in 360, 1280:
            for dark in False, True:
                self.open(name, width=width, dark=dark)
                self.assertLessEqual(SURF.run("document.documentElement.scrollWidth"), width)
                if folder := os.environ.get("SMALLWORLD_SCREENSHOTS"):
                    tone = "dark" if dark else "light"
                    SURF.screenshot(Path(folder) / f"{Path(name).stem}-{width}-{tone}.png")

    def make_probe(self):
        self.train()
        for part in "train", "valid":
            self.run_program("features", "run/last.safetensors", "--data", f"{part}.tsv", "--out",
                             part, *self.cpu)
        self.run_program("probe", "--train", "train", "--test", "valid", "--out", "p", *self.cpu)


class Show(Page):
    def show(self, *arguments, **options):
        return self.results("show", "run/last.safetensors", "--out", "page.html", *arguments,
                            *self.cpu, **options)

    def choose(self, name):
        SURF.run("(() => { const s = document.getElementById('track');"
                 f" s.value = [...s.options].find(o => o.text === '{name}').value;"
                 " s.dispatchEvent(new Event('change')); })()")

    def test_colours_follow_values(self):
        self.make_probe()
        result = self.show("--text", "valid.tsv", "--unit", 3, "--unit", 17, "--npy", "states")
        self.assertEqual(result["units"], [3, 17])
        states = numpy.load(self.folder / "states.npy")
        self.assertEqual(states.shape, (result["bytes"], 2))
        self.open("page.html")
        options = SURF.run("[...document.getElementById('track').options].map(o => o.text)")
        self.assertEqual(options, ["unit 3", "unit 17", "surprise: bits a byte"])
        for unit in 0, 1:
            SURF.run(f"(() => {{ const s = document.getElementById('track'); s.value = '{unit}';"
                     " s.dispatchEvent(new Event('change')); })()")
            colours = SURF.run("[...document.querySelectorAll('.text span')].map(s =>"
                               " getComputedStyle(s).backgroundColor.match(/\\d+/g).map(Number))")
            self.assertEqual(len(colours), len(states))
            values = states[:, unit]
            blue = numpy.array([c[2] - c[0] for c in colours])
            self.assertTrue((blue[values < -0.2 * abs(values).max()] > 0).all())
            self.assertTrue((blue[values > 0.2 * abs(values).max()] < 0).all())
            order = numpy.argsort(values)
            self.assertTrue((numpy.diff(blue[order]) <= 1).all())  # the larger the value, the darker

    def test_states_are_those_of_features(self):
        self.make_probe()
        self.run_program("show", "run/last.safetensors", "--text", "valid.tsv", "--npy", "s",
                         *(f"--unit={u}" for u in range(32)), *self.cpu)
        states, starts = (numpy.load(self.folder / f"s{part}.npy") for part in ("", ".starts"))
        ends = numpy.append(starts[1:], len(states)) - 1
        numpy.testing.assert_array_equal(states[ends],
                                      numpy.load(self.folder / "valid.npy")[:, 32:])  # the means come first
        text = numpy.load(self.folder / "s.bytes.npy").tobytes()
        lines = self.read("valid.tsv").splitlines()
        self.assertEqual(text, b"".join(b"\n " + line.split(b"\t", 1)[1] + b" " for line in lines))

    def test_surprise_is_what_eval_counts(self):
        self.train()
        self.write("one.tsv", self.read("valid.tsv").splitlines()[0] + b"\n")
        shown = self.show("--text", "one.tsv")
        scored = self.results("eval", "run/last.safetensors", "--data", "one.tsv", "--exact",
                              *self.cpu)
        self.assertAlmostEqual(shown["bpc"], scored["bpc"], places=5)

    def test_keyboard_and_probe(self):
        self.make_probe()
        self.show("--text", "valid.tsv", "--probe", "p", "--features", "train")
        self.open("page.html")
        names = SURF.run("[...document.getElementById('track').options].map(o => o.text)")
        self.assertRegex(names[0], r"^unit \d+$")  # the one that separates the labels best
        self.choose("probe: score of 1")
        self.assertIn("label 0, 30 documents", SURF.run(
            "document.querySelector('#histogram .legend').textContent"))
        table = SURF.run("[...document.querySelectorAll('#histogram tbody tr')].map(r =>"
                         " Number(r.cells[1].textContent) + Number(r.cells[2].textContent))")
        self.assertEqual(sum(table), 60)
        SURF.run("document.querySelector('.text').focus()")
        for key, at in ("ArrowRight", 0), ("ArrowRight", 1), ("End", None), ("Home", 0):
            SURF.press(key)
            found = SURF.run("Number(document.querySelector('span.at').dataset.at)")
            last = SURF.run("Number(document.querySelector('.text').dataset.last)")
            self.assertEqual(found, last if at is None else at)
        text = SURF.run("document.getElementById('readout').textContent")
        self.assertRegex(text, r"byte 0, line feed: -?\d+\.\d+, probability 0\.\d+ of 1next: .+ \d+ %")
        self.check_sizes("page.html")

    def test_three_classes(self):
        self.train()
        lines = self.read("valid.tsv").splitlines(keepends=True)
        self.write("three.tsv", b"".join(b"%d" % (i % 3) + line[1:] for i, line in enumerate(lines)))
        self.run_program("features", "run/last.safetensors", "--data", "three.tsv", "--out", "f", *self.cpu)
        self.run_program("probe", "--train", "f", "--test", "f", "--out", "p", *self.cpu)
        self.show("--text", "three.tsv", "--probe", "p", "--features", "f")
        self.open("page.html")
        self.choose("probe: score of 2")  # text and histogram speak of it by one colour, green
        bar = SURF.run("document.querySelector('#scale .bar').style.backgroundImage")
        red, green, blue = map(int, re.findall(r"\d+", bar)[-3:])
        self.assertGreater(green, max(red, blue) + 20)
        self.assertEqual(SURF.run("document.querySelectorAll('#histogram .swatch')[2].style.color"), "var(--c2)")
        self.assertTrue(SURF.run("!!(document.getElementById('histogram').compareDocumentPosition("
                                 "document.getElementById('documents')) & Node.DOCUMENT_POSITION_FOLLOWING)"))

    def test_nasty_text(self):
        self.train()
        self.write("nasty.txt", NASTY + b"\n\n" + b"plain\r\n")
        result = self.show("--text", "nasty.txt")
        self.assertEqual(result["documents"], 3)  # one of them an empty line
        content = self.open("page.html")
        self.assertNotIn("window.broken = 1</script>", content)
        shown = SURF.run("document.querySelector('.text').textContent")
        self.assertIn("<script>window.broken = 1</script>", shown)
        self.assertIn("\u27e8ff\u27e9", shown)
        self.assertIn("\u27e8U+202e\u27e9", shown)
        self.assertIn("\U0001f600", shown)
        # Every byte is in a span; the bytes of one character share a span.
        text = b"\n " + NASTY.replace(b"\r", b" ") + b" "
        ends = len(text.decode("utf-8", "surrogateescape"))
        self.assertEqual(SURF.run("document.querySelectorAll('.text')[0].children.length"), ends)
        self.write("two.txt", "one\n\ntwo")
        with open(self.folder / "two.txt") as two:
            other = self.show("--text", "-", stdin=two)
        self.assertEqual((other["documents"], other["bytes"]), (3, 15))
        whole = self.show("--text", "nasty.txt", "--whole")
        self.assertEqual((whole["documents"], whole["bytes"]), (1, len(NASTY) + 9))
        self.open("page.html")

    def test_long_text_is_cut_to_a_page(self):
        self.train()
        self.write("long.txt", b"the cat sat on a mat. " * 9000)
        result = self.show("--text", "long.txt", "--whole", "--top", 2)
        self.assertEqual(result["left_out"] + result["bytes"], 22 * 9000)
        self.assertGreater(result["bytes"], 30000)
        self.open("page.html")
        self.refused("holds at most", "show", "run/last.safetensors", "--text", "long.txt", "--out",
                     "other.html", "--limit", "99999999", *self.cpu, status=2)

    def test_refusals(self):
        self.make_probe()
        command = ["show", "run/last.safetensors", *self.cpu]
        page = ["--out", "page.html"]
        self.write("byte.txt", "A")
        out, _ = self.run_program(*command, *page, "--text", "byte.txt", "--whole")
        self.assertEqual(out, "1 documents, 1 bytes\npage.html\n")
        self.refused("missing.txt", *command, *page, "--text", "missing.txt")
        self.refused("--unit 32: expected a unit from 0 to 31", *command, *page, "--text",
                     "valid.tsv", "--unit", "32", status=2)
        self.refused("not a probe", *command, *page, "--text", "valid.tsv", "--probe",
                     "run/last.safetensors")
        self.config("config.yaml", run_seed=7)
        self.run_program("train", "config.yaml", "--out", "other")
        self.refused("features of another checkpoint", "show", "other/last.safetensors", *page,
                     "--text", "valid.tsv", "--probe", "p", *self.cpu)
        (self.folder / "folder").mkdir()
        self.refused("not a regular file", *command, "--text", "valid.tsv", "--out", "folder")


class Plot(Page):
    def metrics(self, folder, count):
        lines = []
        for i in range(1, count + 1):
            lines.append(json.dumps({
                "step": i, "bytes": 32 * i, "epoch": i / 7, "seconds": i / 3, "bpc": 1 + 7 / i,
                "lr": 1e-3 / i, "grad_norm": 2.5e-5 * i, "bytes_per_second": 96.0,
                "valid_bpc": 1.5 + 1 / i if i % 10 == 0 else None}))
        self.write(f"{folder}/metrics.jsonl", "\n".join(lines) + "\n")

    def test_two_runs(self):
        self.train()
        self.results("train", "config.yaml", "--out", "deep/run", "--set", "train.lr=0.02")
        out, err = self.run_program("plot", "run", "deep/run", "--out", "both.html", "--csv",
                                    "both.csv")
        self.assertEqual((out, err), ("both.csv\nboth.html\n", ""))
        self.open("both.html")
        rows = SURF.run("[...document.querySelectorAll('#differences tbody tr')].map(r =>"
                        " [...r.cells].map(c => c.textContent))")
        self.assertEqual(rows, [["train.lr", "0.01", "0.02"]])
        names = SURF.run("[...document.querySelectorAll('.legend li')].map(i => i.textContent)")
        self.assertTrue(names[0].endswith("/run") and names[1] == "deep/run", names)
        lines = [json.loads(line) for line in self.read("run/metrics.jsonl").splitlines()]
        rows = self.read("both.csv").decode().splitlines()
        columns = rows[0].split(",")[1:]
        self.assertEqual(columns[:len(lines[0])], list(lines[0]))
        self.assertEqual(len(rows), 1 + 2 * len(lines))
        for row, line in zip(rows[1:], lines):
            numbers = [json.loads(n) if n else None for n in row.split(",")[1:]]
            self.assertEqual(numbers[:len(line)], list(line.values()))
            self.assertEqual(set(numbers[len(line):]), {None})
        # The keyboard moves along a chart, which shows the values of the file.
        SURF.run("document.getElementById('bpc-bytes').focus()")
        SURF.press("Home")
        told = SURF.run("document.getElementById('bpc-bytes').nextElementSibling.textContent")
        value = float(re.search(r"run training ([\d.]+)", told).group(1))
        self.assertAlmostEqual(value, lines[0]["bpc"], places=3)
        # The legend hides a run, the axis becomes linear, and values end where a run does.
        lines_of = "document.querySelectorAll('#bpc-bytes .lines polyline').length"
        self.assertEqual(SURF.run(lines_of), 4)
        self.assertIn("(logarithmic)", SURF.run("document.querySelector('#bpc-bytes .y-label').textContent"))
        SURF.run("document.querySelector('#runs button').click()")
        SURF.run("document.querySelector('.controls input').click()")
        self.assertEqual(SURF.run(lines_of), 2)
        self.assertEqual(SURF.run("document.querySelector('#bpc-bytes .y-label').textContent"), "bits per character")
        ticks = [float(t) for t in SURF.run("[...document.querySelectorAll('#bpc-bytes .y-axis text')].map(t =>"
                                            " t.textContent)")]
        numpy.testing.assert_allclose(numpy.diff(ticks), ticks[1] - ticks[0], rtol=1e-6)
        self.metrics("short", 5)
        self.metrics("long", 50)
        self.run_program("plot", "short", "long", "--out", "ends.html")
        self.open("ends.html")
        SURF.run("document.getElementById('bpc-bytes').focus()")
        SURF.press("End")
        told = SURF.run("document.getElementById('bpc-bytes').nextElementSibling.textContent")
        self.assertIn("long training", told)
        self.assertNotIn("short", told)
        self.check_sizes("both.html")
        self.run_program("plot", "run", "deep/run", "--out", "both.svg")
        SURF.open(self.folder / "both.svg")
        self.assertEqual(SURF.problems, [])
        self.assertEqual(SURF.run("document.documentElement.tagName"), "svg")

    def test_points_are_where_values_are(self):
        self.metrics("run", 50)
        self.run_program("plot", "run", "--out", "page.html")
        self.open("page.html")
        points = SURF.run("[...document.querySelectorAll('#bpc-bytes polyline')].map(p =>"
                          " [...p.points].map(q => [q.x, q.y]))")
        x, y = numpy.array(points[0]).T
        step = numpy.arange(1, 51)
        self.assertGreater(numpy.corrcoef(x, step)[0, 1], 0.99999)
        self.assertLess(numpy.corrcoef(y, numpy.log(1 + 7 / step))[0, 1], -0.99999)
        self.assertEqual(len(points[1]), 5)  # validations

    def test_last_and_best(self):
        self.write("run/metrics.jsonl", "".join(f'{{"step": {i}, "bpc": {4 - i / 8}, "valid_bpc": {v}}}\n'
                                                for i, v in enumerate((2.0, 1.5, 1.75), 1)))
        self.run_program("plot", "run", "--out", "page.html")
        self.open("page.html")
        cells = SURF.run("[...document.querySelectorAll('table tbody tr td')].map(c => c.textContent)")
        self.assertEqual(cells[-3:], ["3.6250", "1.7500", "1.5000"])

    def test_million_lines(self):
        self.metrics("part", 20000)
        with open(self.folder / "part" / "metrics.jsonl") as part:
            text = part.read()
        self.write("run/metrics.jsonl", text * 50)
        self.run_program("plot", "run", "--out", "page.html")
        self.assertLess((self.folder / "page.html").stat().st_size, 1 << 18)
        self.open("page.html")

    def test_while_a_run_goes_on(self):
        self.config("long.yaml", train_steps=None, train_epochs=100000, train_log_every=5)
        process = self.start("train", "long.yaml", "--out", "run")
        try:
            self.wait_for("run/config.yaml", process)  # long before its first line of metrics
            follower = self.start("plot", "run", "--out", "page.html", "--follow")
            self.wait_for("page.html", follower)
            self.assertIn("http-equiv=\"refresh\"", (self.folder / "page.html").read_text())
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=600)
        self.assertEqual(follower.wait(600), 0)
        follower.communicate()
        self.assertNotIn("refresh", self.open("page.html"))

    def test_odd_and_bad_input(self):
        nasty = "<img src=x onerror=broken()>"
        self.metrics(nasty, 3)
        self.run_program("plot", nasty, "--out", "page.html")
        self.open("page.html")
        self.assertIn(nasty, SURF.run("document.querySelector('h1').textContent"))
        self.write("cut/metrics.jsonl", self.read(f"{nasty}/metrics.jsonl")[:-20])
        self.run_program("plot", "cut", "--out", "page.html")  # as if this line were still being written
        self.open("page.html")
        self.write("null/metrics.jsonl", '{"step": 1, "bpc": null, "other": "a, \\"b"}\n')
        self.run_program("plot", "null", "--out", "page.html")
        self.open("page.html")
        for line in "[1]", "{}x", '{"step" 1}', '{"step": }', "{", '{"a": 1, ':
            self.write("bad/metrics.jsonl", '{"step": 1}\n' + line + "\n")
            self.refused("bad/metrics.jsonl:2: expected one JSON object", "plot", "bad", "--out",
                         "page.html")
        self.write("cut/config.yaml", "model: {hiden: 8}\n")
        self.refused("cut/config.yaml:1: ", "plot", "cut", "--out", "page.html")
        (self.folder / "cut" / "config.yaml").unlink()
        self.refused("missing/metrics.jsonl", "plot", "missing", "--csv", "a.csv")
        self.write("empty/metrics.jsonl", "")
        self.refused("no metrics yet", "plot", "empty", "--out", "a.svg")
        self.refused("ends in .html or .svg", "plot", "cut", "--out", "a.pdf", status=2)
        self.refused("expected a run", "plot", "--out", "a.svg", status=2)


class Graph(Page):
    def test_weights_shade_edges(self):
        self.config("config.yaml", model_hidden=128, model_degree=4, model_graph="random")
        self.train()
        self.run_program("graph", "run/last.safetensors", "--html", "page.html", "--svg", "one.svg")
        self.open("page.html")
        nodes = SURF.run("document.querySelectorAll('figure svg')[0].querySelectorAll('circle').length")
        self.assertEqual(nodes, 16)
        chords = SURF.run("[...document.querySelectorAll('.edges')].map(p =>"
                          " [Number(p.getAttribute('stroke-opacity')), p.getAttribute('d')])")
        opacities = [opacity for opacity, _ in chords]
        self.assertEqual(opacities, sorted(opacities))
        self.assertEqual(sum(d.count("M") for _, d in chords), 16 * 4 // 2)
        # The darkest chords are those of the largest weights.
        header, data = cli.split_safetensors(self.read("run/last.safetensors"))
        of = lambda name, kind: numpy.frombuffer(
            data[slice(*header[name]["data_offsets"])], kind).reshape(header[name]["shape"])
        norms = {tuple(pair): (block ** 2).sum() for pair, block in
                 zip(of("pattern.gates", "<i4").tolist(), of("cell.gates.weight", "<f4"))}
        pairs = sorted(((i, j) for i, j in norms if i < j), key=lambda p: norms[p] + norms[p[::-1]])
        place = lambda i: (f"{240 + 212 * numpy.sin(2 * numpy.pi * i / 16):.0f} "
                           f"{240 - 212 * numpy.cos(2 * numpy.pi * i / 16):.0f}")
        i, j = pairs[-1]
        self.assertTrue(chords[-1][1].startswith(f"M{place(i)}L{place(j)}"))
        i, j = pairs[0]
        self.assertIn(f"M{place(i)}L{place(j)}", chords[0][1])
        # The bars show the counts that the command prints.
        told = self.results("graph", "run/last.safetensors")["patterns"][0]
        titles = SURF.run("[...document.querySelectorAll('rect title')].map(t => t.textContent)")
        bars = [re.match(r"(\d+): ([\d.e+]+) ", title).groups() for title in titles]
        degrees, paths = bars[:-told["path_max"]], bars[-told["path_max"]:]
        self.assertEqual(sum(float(n) for _, n in degrees), 16)
        self.assertAlmostEqual(sum(int(d) * float(n) for d, n in degrees) / 16, told["degree_mean"])
        self.assertAlmostEqual(sum(int(k) * float(n) for k, n in paths) / 100, told["path_mean"],
                               places=2)
        self.check_sizes("page.html")
        SURF.open(self.folder / "one.svg")
        self.assertEqual(SURF.problems, [])
        self.assertEqual(SURF.run("document.querySelectorAll('image').length"), 1)

    def test_matrix_is_the_pattern(self):
        self.config("config.yaml", model_hidden=96, model_graph="core_periphery", model_degree=None,
                    model_density=0.4, model_core=0.25)
        self.run_program("graph", "config.yaml", "--html", "page.html", "--edges", "e")
        self.open("page.html")
        pixels = SURF.run("""(async () => {
            const image = new Image(), canvas = document.createElement("canvas");
            image.src = document.querySelector("image").getAttribute("href");
            await image.decode();
            canvas.width = canvas.height = image.width;
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            return [...context.getImageData(0, 0, image.width, image.width).data];
        })()""")
        dark = numpy.array(pixels).reshape(12, 12, 4)[:, :, 0] < 128
        edges = numpy.loadtxt(self.folder / "e.0.txt", dtype=int)
        self.assertEqual(set(map(tuple, edges)), set(zip(*numpy.nonzero(dark))))
        # A node's neighbours are told.
        SURF.run("document.getElementById('ring0').focus()")
        SURF.press("End")
        told = re.match(r"Node 11 reads (.*) \(green lines\); it is read by (.*) \(dashed",
                        SURF.run("document.getElementById('ring0').nextElementSibling.textContent"))
        for column, nodes in enumerate(told.groups()):
            expected = [pair[1 - column] for pair in edges if pair[column] == 11 and pair[1 - column] != 11]
            self.assertEqual([int(n) for n in nodes.split(", ")], sorted(expected))
        # The core's three nodes are in the middle.
        middle = SURF.run("[...document.querySelectorAll('circle')].map(c =>"
                          " Math.hypot(c.cx.baseVal.value - 240, c.cy.baseVal.value - 240) < 100)")
        self.assertEqual(middle, [True] * 3 + [False] * 9)

    def test_kinds_and_stages(self):
        for kind, size in ("dense", {}), ("barabasi_albert", {"model_degree": 4}):
            self.config("kind.yaml", model_hidden=256, model_cell="deep", model_graph=kind,
                        **{"model_degree": None, **size})
            self.run_program("graph", "kind.yaml", "--html", "page.html", "--svg", "kind.svg")
            self.open("page.html")
            self.assertEqual(SURF.run("document.querySelectorAll('h3').length"), 3)
            for stage in "step0", "step1", "gates":
                SURF.open(self.folder / f"kind.{stage}.svg")
                self.assertEqual(SURF.problems, [])
        self.config("large.yaml", model_hidden=16384, model_degree=20,
                    model_graph="watts_strogatz")
        self.run_program("graph", "large.yaml", "--html", "page.html")
        self.open("page.html")
        self.assertIn("12,000 of 20,480 are drawn", SURF.run("document.body.textContent"))
        self.refused("not a regular file", "graph", "large.yaml", "--html", ".")


class Report(Page):
    def test_report_and_card(self):
        self.make_probe()
        for name in "p.probe.safetensors", "valid.npy", "valid.labels.npy", "valid.json":
            target = name.replace("p.probe", "probe.probe").replace("valid.", "test.", 1)
            self.write(f"run/{target}", self.read(name))
        self.write("run/README.md", "<!-- Written by smallworld report, which overwrites it. -->\n")  # an old one
        out, _ = self.run_program("report", "run", "--data", "valid.tsv", *self.cpu)
        self.assertEqual(out, "run/README.md\nrun/report.html\n")
        self.open("run/report.html")
        facts = dict(SURF.run("[...document.querySelectorAll('#facts tr')].map(r =>"
                              " [...r.cells].map(c => c.textContent))"))
        scored = self.results("eval", "run/last.safetensors", "--data", "valid.tsv", *self.cpu)
        self.assertEqual(facts["bits per character, test"],
                         f"{scored['bpc']:.4f} over {scored['bytes']} bytes of valid.tsv")
        train = self.train("--resume")
        self.assertEqual(facts["parameters"], f"{train['parameters']:,}")
        self.assertEqual(facts["trained on"], "train.tsv")
        self.assertIn("of 9 test documents", facts["probe"])
        lead = SURF.run("[...document.querySelectorAll('main > p')].slice(0, 3).map(p => p.textContent)")
        self.assertRegex(lead[0], r"needs \d\.\d{4} bits for a byte of validation text")
        lines = self.read("valid.tsv").rstrip(b"\n").split(b"\n")
        framed = b"".join(b"\n " + line.split(b"\t", 1)[1] + b" " for line in lines)
        bpc, xz = re.fullmatch(r"(.*) bits for a byte of valid.tsv; xz -6, of that text alone, (.*)\.", lead[1]).groups()
        self.assertEqual(bpc, f"{scored['bpc']:.4f}")
        # Written in one call, the block's head also says its sizes.
        self.assertAlmostEqual(float(xz) * len(framed) / 8, len(lzma.compress(framed, preset=6)), delta=16)
        labels = [line.split(b"\t")[0] for line in lines if not line.startswith(b"-1")]
        common = 100 - 100 * max(map(labels.count, labels)) / len(labels)
        self.assertIn(f"of 9 test documents, always saying the commonest class on {common:.2f}\u00a0%", lead[2])
        self.assertIn("probe: score of 1",
                      SURF.run("[...document.getElementById('track').options].map(o => o.text)"))
        card = self.read("run/README.md").decode()
        command = "smallworld generate run --bytes 300 --temperature 0.7"
        written = self.results(*command.split()[1:], *self.cpu)["base64"]
        written = base64.b64decode(written)
        expected = re.sub("[\x00-\x09\x0b-\x1f\x7f\udc80-\udcff]", "\ufffd",
                          written[2:].decode(errors="surrogateescape"))
        sample = SURF.run("document.getElementById('sample').textContent")
        self.assertEqual(sample, expected)
        self.assertIn(command, SURF.run("document.querySelector('main').textContent"))
        self.assertIn(f"    {command}\n", card)
        self.assertIn("    " + sample.split("\n")[0] + "\n", card)
        self.assertIn(f"| parameters | {train['parameters']:,} |", card)
        front = card.split("---\n")[1]
        self.assertTrue(card.startswith("---\n# <!-- Written by smallworld report"), card[:80])
        self.assertIn("library_name: smallworld\npipeline_tag: text-generation\ntags:\n- smallworld\n- bytes\n- lstm\n"
                      'model-index:\n- name: "run"\n  results:\n', front)
        self.assertEqual(re.findall(r"name: (.*)\n    metrics:\n    - type: (.*)\n.*\n      value: (.*)\n", front)[1],
                         ('"valid.tsv"', "bits_per_byte", f"{scored['bpc']:.6g}"))
        self.assertEqual(front.count("- task:"), 3)
        for line in self.read("run/config.yaml").decode().splitlines():
            self.assertIn(f"\n    {line}\n", card)
        self.assertIn("smallworld train run/config.yaml", card)
        self.run_program(*"train run/config.yaml --out again".split())  # what the card says
        self.assertEqual(self.read("run/last.safetensors"), self.read("again/last.safetensors"))
        self.check_sizes("run/report.html")
        # With another model in the folder, files made from the first one are left out.
        self.train("--overwrite", "--set", "run.seed=9")
        out, err = self.run_program("report", "run", *self.cpu)
        self.assertEqual(err.count("left out: "), 2)
        self.open("run/report.html")
        self.refused("of another checkpoint", "report", "run", "--probe", "p", *self.cpu)
        (self.folder / "run" / "probe.probe.safetensors").unlink()
        self.refused("of another checkpoint", "report", "run", "--features", "valid", *self.cpu)

    def test_odd_and_bad_input(self):
        nasty = "a`|<b>&_*[x](y)"
        self.write(f"{nasty}.txt", b"the cat sat. \xff\x00<script>window.broken = 1</script>" * 40)
        self.config("config.yaml", data_train=f"{nasty}.txt", data_valid=f"{nasty}.txt")
        self.results("train", "config.yaml", "--out", nasty)
        self.run_program("report", nasty, *self.cpu)
        self.open(f"{nasty}/report.html")
        card = self.read(f"{nasty}/README.md").decode()
        self.assertIn("# a\\`\\|&lt;b>&amp;\\_\\*\\[x\\](y)", card)
        config = self.read(f"{nasty}/config.yaml")
        self.write(f"{nasty}/config.yaml", config + b"# kept\r\n# as\r#<img src=x>\r")
        self.run_program("report", nasty, *self.cpu)
        self.assertIn(b"    # kept\n    # as\n    #<img src=x>\n", self.read(f"{nasty}/README.md"))
        self.write(f"{nasty}/config.yaml", config)
        self.write(f"{nasty}/README.md", "mine")
        self.refused("not written by smallworld report", "report", nasty, *self.cpu)
        self.run_program("report", nasty, "--card", "card.md", "--out", "page.html", *self.cpu)
        self.run_program("report", nasty, "--card", "card.md", "--out", "page.html", *self.cpu)
        self.write("page.html", "<!doctype html><title>mine</title>")
        self.refused("page.html: not written by smallworld report", "report", nasty, "--card",
                     "card.md", "--out", "page.html", *self.cpu)
        self.write("two.tsv", "0\tbad\n1\tgood\n")
        self.run_program("features", nasty, "--data", "two.tsv", "--out", "p", *self.cpu)
        self.refused("as p.labels.npy holds another prefix's labels", "features", nasty, "--data",
                     "two.tsv", "--out", "p.labels", *self.cpu, status=2)
        self.refused("p.npy: p.json describes features of documents in it", "show", nasty, "--npy",
                     "p", "--text", f"{nasty}.txt", *self.cpu)
        self.run_program("show", nasty, "--npy", "s", "--text", f"{nasty}.txt", *self.cpu)
        self.refused("s.npy: s.units.npy describes states", "features", nasty, "--data", "two.tsv",
                     "--out", "s", *self.cpu)
        self.refused("missing/metrics.jsonl", "report", "missing", *self.cpu)
        self.refused("missing.tsv", "report", nasty, "--data", "missing.tsv", "--card", "card.md",
                     *self.cpu)


if __name__ == "__main__":
    browser.find()
    cli.main(__doc__)
