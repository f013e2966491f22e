"""The report of `scripts/structure`, and the import circles of instrument."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

from tests.captures import ROOT

CODE = '"""A part\n\nof two lines."""\n\n# A comment.\nPARTS = (\n    1,\n)  # part\n'
FILES = {
    "traceview/__init__.py": "",
    "traceview/reader.py": "def rows():\n    from traceview.writer import Writer\n    return Writer\n",
    "traceview/writer.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from traceview import reader\n",
    "traceview/alone.py": "from traceview.reader import rows\n",
    "traceview/page.js": "one\ntwo\n",
    "traceview/code.py": CODE,
    "tests/test_code.py": "one\ntwo\nthree\n",
    "instrument/__init__.py": "import instrument.train\n",
    "instrument/train.py": "import torch\n",
    "docs/design.md": "# Design\n\nThree more words\n",
    "docs/performance.md": "",
    "pyproject.toml": "[[tool.importlinter.contracts]]\nignore_imports = ['a -> b', 'b -> c']\n",
}
TODAY = {
    "lines of code of traceview": 10,
    'lines with the word "part"': 3,
    "lines of tests": 3,
    "lines of the page's scripts": 2,
    "lines of code of instrument": 2,
    "modules of traceview": 5,
    "modules with one importer, outside registries": 1,
    "entries in traceview/": 6,
    "files of traceview in import circles": 2,
    "files of instrument in import circles": 0,
    "ignored imports": 2,
    "words of docs/design.md": 5,
    "words of docs/performance.md": 0,
}


def structure(root: Path) -> list[str]:
    """Return the lines that the script prints for a checkout."""
    command = [sys.executable, str(ROOT / "scripts" / "structure"), str(root)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def test_measures_of_a_checkout(tmp_path: Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    lines = structure(tmp_path)
    printed = {line[:60].strip(): line[60:].split() for line in lines}
    assert {name: int(printed[name][0].rstrip(",")) for name in TODAY} == TODAY
    # An import in a function and one for type checkers close a circle.
    assert "import circle of 2 files: traceview.reader, traceview.writer" in lines


def test_instrument_has_one_import_circle_at_most() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "structure"))
    trees = {path: tree for path, tree in script["parsed_packages"](ROOT).items() if path.parts[0] == "instrument"}
    assert len(trees) > 50 and len(script["import_circles"](trees)) <= 1
