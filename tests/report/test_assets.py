"""The scripts of a page are modules that fit together, and are written as one script."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import re
import sys
import zlib
from collections import Counter
from graphlib import TopologicalSorter
from importlib import resources
from pathlib import Path

import pytest

from tests.captures import ROOT
from traceview.report import assets
from traceview.report.assets import ANALYSIS, FLEET, PageFiles, imports, library, modules, script

FOLDER = Path(str(resources.files(assets)))
BUNDLE = "plotly.js-basic-dist-min"
SCRIPTS = sorted(path.relative_to(FOLDER).as_posix() for path in FOLDER.rglob("*.js"))
PAGES = pytest.mark.parametrize("page", [ANALYSIS, FLEET], ids=["analysis", "fleet"])
# Everything at the top level begins in the first column; prettier sees to that.
DECLARED = re.compile(r"^(export )?(?:async function|function|const) (\w+)", re.MULTILINE)
OTHER_DECLARATION = re.compile(
    r"^(?:export )?(?:(?:let|var|class) .*|const (?!\w+ =).*|const \w+ = .*,\n  \w+ = .*)", re.MULTILINE
)


def declared(name: str) -> list[str]:
    return [match[2] for match in DECLARED.finditer((FOLDER / name).read_text())]


def exported(name: str) -> set[str]:
    return {match[2] for match in DECLARED.finditer((FOLDER / name).read_text()) if match[1]}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_import_names_an_export(name: str) -> None:
    for other, names in imports(name).items():
        assert set(names) <= exported(other), other


def test_every_export_is_imported() -> None:
    used = {(other, word) for name in SCRIPTS for other, words in imports(name).items() for word in words}
    assert {(name, word) for name in SCRIPTS for word in exported(name)} == used


def test_no_import_cycle() -> None:
    order = list(TopologicalSorter({name: imports(name).keys() for name in SCRIPTS}).static_order())
    assert sorted(order) == SCRIPTS


@PAGES
def test_modules_of_a_page_declare_distinct_names(page: PageFiles) -> None:
    count = Counter(word for name in modules(page.entry) for word in declared(name))
    assert [word for word, times in count.items() if times > 1] == []


@PAGES
def test_modules_follow_their_imports(page: PageFiles) -> None:
    order = modules(page.entry)
    for place, name in enumerate(order):
        assert imports(name).keys() <= set(order[:place])
    assert order[-1] == page.entry


@PAGES
def test_written_script_has_no_module_syntax(page: PageFiles) -> None:
    text = script(page.entry)
    assert text.isascii()
    assert re.findall(r"^\s*(?:import|export)\b.*", text, re.MULTILINE) == []


@PAGES
def test_written_script_has_no_line_of_comments(page: PageFiles) -> None:
    assert re.findall(r"^(?: +\S|//|/\*\*(?:[^*]|\*(?!/))*\*/$).*", script(page.entry), re.MULTILINE) == []


def test_every_script_belongs_to_a_page() -> None:
    assert sorted({name for page in (ANALYSIS, FLEET) for name in modules(page.entry)}) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_declarations_declare_one_name(name: str) -> None:
    assert OTHER_DECLARATION.findall((FOLDER / name).read_text()) == []


def test_core_imports_only_core() -> None:
    assert {other for name in SCRIPTS if name.startswith("core/") for other in imports(name)} <= {
        name for name in SCRIPTS if name.startswith("core/")
    }


def test_library_is_plotly_js_packed_once() -> None:
    packed = library()
    assert library() is packed
    text = zlib.decompress(base64.b64decode(packed.packed))
    assert packed.digest == f"sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}"
    assert len(packed.style_ids) > 1 and all(style.encode() in text for style in packed.style_ids[1:])


def test_library_is_the_bundle_of_the_pinned_package() -> None:
    """`npm run plotly` packs the package that package-lock.json pins; without it only the version is known."""
    pinned = ROOT / "package.json"
    if not pinned.exists():
        pytest.skip("needs a checkout")
    package = json.loads(pinned.read_text(encoding="utf-8"))["devDependencies"][BUNDLE]
    text = zlib.decompress(base64.b64decode(library().packed))
    assert text.startswith(b"/**\n* plotly.js (basic - minified) v%s\n" % package.encode())
    folder = ROOT / "node_modules" / BUNDLE
    if not folder.exists():
        pytest.skip("needs npm ci")
    assert text == (folder / "plotly-basic.min.js").read_bytes()
    assert (FOLDER / "charts/plotly-basic.LICENSE").read_bytes() == (folder / "LICENSE").read_bytes()


def test_zlib_packs_where_isal_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal", None)
    found = importlib.util.find_spec("traceview.report.assets")
    assert found is not None and found.loader is not None
    without = importlib.util.module_from_spec(found)
    found.loader.exec_module(without)
    assert without.packer is zlib
    assert zlib.decompress(base64.b64decode(without.pack(b"a page"))) == b"a page"
