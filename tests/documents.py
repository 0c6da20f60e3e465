"""The documents against the program and the tree: docs/config.md is what the program says, links lead
somewhere, files that are named exist, and the README lists every command on at most 150 lines.

    /usr/bin/python3 tests/documents.py BUILD/smallworld
"""

import re
import subprocess
import sys
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED = re.compile(r"\b(?:scripts|configs|tests)/[\w-]+\.(?:py|sh|yaml|c)\b")


def anchors(path):
    """The names that GitHub gives a document's headings."""
    headings = re.findall(r"(?m)^#+ (.*)$", path.read_text())
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


class Documents(unittest.TestCase):
    def test_config_page(self):
        done = subprocess.run([sys.executable, "-B", str(ROOT / "scripts" / "config_page.py"),
                               "--program", PROGRAM, "--check"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_links(self):
        for document in DOCUMENTS:
            for link in LINK.findall(document.read_text()):
                if "://" in link:
                    continue
                with self.subTest(document=document.name, link=link):
                    name, _, anchor = link.partition("#")
                    target = (document.parent / name).resolve() if name else document
                    self.assertTrue(target.exists(), "leads nowhere")
                    if anchor:
                        self.assertIn(anchor, anchors(target))

    def test_named_files(self):
        for document in DOCUMENTS:
            for name in set(NAMED.findall(document.read_text())):
                with self.subTest(document=document.name, name=name):
                    self.assertTrue((ROOT / name).exists(), "no such file")

    def test_claims(self):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "claims.py"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_readme(self):
        text = (ROOT / "README.md").read_text()
        self.assertLessEqual(len(text.splitlines()), 150)
        printed = subprocess.run([PROGRAM, "--help"], check=True, capture_output=True,
                                 text=True).stdout
        commands = re.findall(r"(?m)^  (\w+)  +\S", printed)
        self.assertIn("train", commands)
        for command in commands:
            with self.subTest(command=command):
                self.assertRegex(text, f"`(smallworld )?{command} ")


if __name__ == "__main__":
    PROGRAM = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
