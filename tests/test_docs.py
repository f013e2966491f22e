"""The documentation names what exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.captures import ROOT
from traceview.measure import MEASURES

PAGES = sorted((ROOT / "docs").glob("*.md"))
GENERATED = {"columns.md"}  # by `make docs`
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def test_column_reference_has_every_table() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "column-reference")]
    written = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    assert [measure.table.title for measure in MEASURES if f"## {measure.table.title}\n" not in written] == []
    assert "| `busy_ns` | ns | busy |" in written


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    assert [link for link in links if not (page.parent / link).exists() and link not in GENERATED] == []


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
    assert [page.name for page in PAGES if f": {page.name}" not in navigation] == []


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120
