"""The documentation names what exists."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import ROOT
from tests.docs_examples import tomllib
from traceview.measure import MEASURES
from traceview.measure.event_tables import EVENT_TABLES, ITERATIONS
from traceview.rules import RULES

FOLDERS = (ROOT / "docs", ROOT / "docs" / "symptoms")
PAGES = [page for folder in FOLDERS for page in sorted(folder.glob("*.md")) if page.name != "changelog.md"]
GENERATED = re.compile(r"(columns|rules|changelog|notebooks/\w+)\.md|schemas/\w+\.json")  # by `make docs`
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def test_column_reference_has_every_table() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "column-reference")]
    written = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    tables = [*(measure.table for measure in MEASURES), ITERATIONS, *(table for table, _ in EVENT_TABLES.values())]
    assert [table.title for table in tables if f"## {table.title}\n" not in written] == []
    assert "| `busy_ns` | ns | busy |" in written


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert [link for link in missing if not GENERATED.match(link.removeprefix("../"))] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_programs_parse(page: Path) -> None:
    """Some need a cluster or a GPU, so that nothing runs them here."""
    text = page.read_text(encoding="utf-8")
    for code in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        ast.parse(code)
    for script in re.findall(r"^    #!/bin/bash\n(?:    .*\n)+", text, re.MULTILINE):
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    for document in re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        assert pytest.importorskip("yaml").safe_load(document)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_lists_stand_apart(page: Path) -> None:
    """The site shows a list, a table or a block of code that follows a line of text at once as more text."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^(?![-#|:> ]|\d\. ).+\n(?:- |\d\. |\| |    ).*$", text, re.MULTILINE) == []


def test_sources_name_pages_and_sections_that_exist() -> None:
    named = {
        match
        for path in (ROOT / "traceview").rglob("*.py")
        for match in re.findall(r'docs/([a-z_]+\.md)(?: "([^"]+)")?', path.read_text(encoding="utf-8"))
    }
    titles = re.compile(r"^(?:#+ |\*\*)([^,.\n]+)", re.MULTILINE)
    sections = {page.name: titles.findall(page.read_text(encoding="utf-8")) for page in PAGES}
    assert [page for page, _ in named if page not in sections] == []
    assert [(page, name) for page, name in named if name and name not in sections[page]] == []


def test_every_page_is_in_the_navigation() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    names = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES]
    assert [name for name in names if f": {name}\n" not in navigation] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_links_of_the_package_index_are_absolute() -> None:
    """A package index shows README.md alone, without the files beside it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for rule in project["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    links = re.findall(r"\]\(([^)]*)\)", text)
    assert len(links) > 20 and [link for link in links if not link.startswith("https://")] == []


def test_rule_reference_has_every_rule() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "rule-reference")]
    written = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    listed = re.findall(r"^## (\w+)$", written, re.MULTILINE)
    assert "launch_bound" in listed and listed == list(RULES)
    assert [written.count(f"*{part}*: ") for part in ("Symptom", "Cause", "Remedy")] == [len(listed)] * 3
