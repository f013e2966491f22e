"""Rules and measures of other packages: the example package, and a faulty one made by hand."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import distributions, entry_points
from pathlib import Path

import pytest

from tests.captures import ROOT, sample
from tests.docs_examples import SECTIONS, examples
from tests.pages import inputs_of
from tests.schemas import SCHEMAS
from traceview import plugin
from traceview.measure import MEASURES
from traceview.model import plugins
from traceview.model.analysis import Analysis
from traceview.model.columns import columns
from traceview.pipeline import analyze
from traceview.report.analysis import document, page, terminal

EXAMPLE = ROOT / "docs" / "example_package"
FAULTY = """
from dataclasses import replace
from traceview.plugin import FindingDraft, GapClaim, Measure, Rule, Table, column
from dataclasses import dataclass
import numpy as np

@dataclass(frozen=True, slots=True)
class Row:
    ns: int = column("ns", "time", "A time.")

def divide(capture, device):
    yield 1 // len(())

def yield_text(capture, device):
    yield "text"

def claim_unknown_rows(capture, device):
    yield FindingDraft("x", device, (GapClaim(("host",), np.array([1 << 40])),))

def yield_without_entry(capture, device):
    yield FindingDraft("launch_bound", device, ())

def misspell_value(capture, device):
    yield FindingDraft("x", device, (), {"cuont": 1})

def yield_text_as_table(capture, device):
    yield FindingDraft("x", device, ())

divides = Rule("divides", divide)
yields_text = Rule("yields_text", yield_text)
claims_unknown_rows = Rule("claims_unknown_rows", claim_unknown_rows, entries={"x": {"title": "x", "advice": "x"}})
has_no_entry = Rule("has_no_entry", yield_without_entry)
misspells = Rule("misspells", misspell_value, entries={"x": {"title": "{count} for {cost}", "advice": "x"}})
has_no_table = Rule("has_no_table", yield_text_as_table, entries={"x": {"title": "x", "cuda": "x"}})
plain_function = divide

FAILS = Measure(Table(name="fails", title="Fails", row_type=Row), lambda given: given.nothing)
UNFIT = Measure(
    Table(name="unfit", title="Unfit", row_type=Row, single=True), lambda given: (Row(np.int64(1)),), "capture"
)
TAKEN = replace(FAILS, table=Table(name="copies", title="Taken", row_type=Row))
"""
FAULTY_RULES = (
    "divides",
    "yields_text",
    "claims_unknown_rows",
    "has_no_entry",
    "plain_function",
    "has_no_table",
    "misspells",
    "missing",
)
FAULTY_MEASURES = {"fails": "FAILS", "unfit": "UNFIT", "taken": "TAKEN", "absent": "ABSENT", "unsuitable": "Row"}


def install(folder: Path, name: str, module: str, groups: dict[str, dict[str, str]]) -> None:
    """Write a module and its metadata into a folder, as pip does."""
    (folder / f"{name}.py").write_text(module)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    sections = (
        f"[{group}]\n" + "".join(f"{key} = {name}:{value}\n" for key, value in entries.items())
        for group, entries in groups.items()
    )
    (metadata / "entry_points.txt").write_text("\n".join(sections))


def example_entry_points() -> dict[str, dict[str, str]]:
    sections = re.findall(r'entry-points."(.+?)"\]\n((?:.+\n)+)', (EXAMPLE / "pyproject.toml").read_text())
    return {group: dict(re.findall(r'(\w+) = "traceview_example:(\w+)"', lines)) for group, lines in sections}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install both packages for the tests of this module."""
    installed = tmp_path_factory.mktemp("packages")
    module = (EXAMPLE / "traceview_example.py").read_text()
    install(installed, "traceview_example", module, example_entry_points())
    rules = {name: name for name in FAULTY_RULES}
    install(installed, "faulty", FAULTY, {"traceview.rules": rules, "traceview.measures": FAULTY_MEASURES})
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(installed)
        yield installed


@pytest.fixture(scope="module")
def plain() -> Analysis:
    return analyze(sample("dual.sqlite"))


@pytest.fixture(scope="module")
def extended(plain: Analysis, folder: Path) -> Analysis:
    """Return the analysis with both packages; `plain` is the one before they were installed."""
    return analyze(plain.trace)


def test_example_reaches_every_report(plain: Analysis, extended: Analysis) -> None:
    found = next(finding for finding in extended.findings if finding.id == "event_polling")
    api = plain.devices[0].steady.gaps.causes["api"]
    assert 0.98 * api < found.cost_ns <= api  # time after the last kernel is not lost
    assert found.remedy == "Wait for the event instead of polling it."
    own = document(extended)["devices"][0]["extensions"]["short_kernels"]  # type: ignore[index, call-overload]
    kernels = plain.trace.operations.filter(plain.trace.operations["source"].cast(str) == "kernel")
    short = (kernels["end"] - kernels["start"]).filter(kernels["end"] - kernels["start"] < 5_000)
    assert (sum(row["count"] for row in own), sum(row["total_ns"] for row in own)) == (len(short), short.sum())  # type: ignore[index, misc, call-overload]
    assert "Short kernels on GPU 0" in terminal.render(extended)
    assert '"Short kernels"' in page.render(inputs_of(extended))


def test_faults_are_one_note_each_and_the_rest_is_the_same(plain: Analysis, extended: Analysis) -> None:
    notes = {note.id: note.text for note in extended.notes if note.id.startswith("package_")}
    assert set(notes) == {f"package_{name}" for name in (*FAULTY_RULES, *FAULTY_MEASURES)}
    assert all("of the package faulty 1.0" in text and "\n" not in text for text in notes.values())
    assert (
        "the rule `divides` of the package faulty 1.0 failed (ZeroDivisionError in faulty.py, line "
        in notes["package_divides"]
    )
    assert "failed (IndexError" in notes["package_claims_unknown_rows"]
    assert "the finding 'launch_bound' has no entry" in notes["package_has_no_entry"]
    assert "the entry of the finding 'x' lacks count" in notes["package_misspells"]
    assert "failed (AttributeError" in notes["package_has_no_table"]
    assert "names no traceview.plugin.Rule" in notes["package_plain_function"]
    assert "column 'ns' holds a value of type int64" in notes["package_unfit"]
    assert "another name than 'copies'" in notes["package_taken"]
    assert "is not a traceview.plugin.Measure" in notes["package_unsuitable"]
    assert "of the package faulty 1.0" in " ".join(terminal.render_brief(extended).split())
    assert [note for note in extended.notes if note.id not in notes] == list(plain.notes)
    assert [device.gaps.causes for device in extended.devices] == [device.gaps.causes for device in plain.devices]
    assert {finding.id for finding in extended.findings} == {"event_polling", *(item.id for item in plain.findings)}


def test_documents_fit_the_schema(extended: Analysis) -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator(SCHEMAS["analyze"]()).validate(json.loads(json.dumps(document(extended))))


def test_search_agrees_with_importlib(folder: Path) -> None:
    for group in (plugins.RULE_GROUP, plugins.MEASURE_GROUP):
        expected = {(entry.name, entry.value) for entry in entry_points(group=group)}
        assert {(plugin.name, plugin.target) for plugin in plugins.plugins(group)} == expected
        assert {plugin.package for plugin in plugins.plugins(group)} == {"faulty 1.0", "traceview_example 1.0"}
    assert {"faulty", "traceview_example"} <= {distribution.name for distribution in distributions()}


def test_declared_columns_of_the_example(folder: Path) -> None:
    from traceview_example import SHORT_KERNELS

    assert [column.unit for column in columns(SHORT_KERNELS.table.row_type)] == ["id", "count", "ns"]
    assert SHORT_KERNELS.table.name not in {measure.table.name for measure in MEASURES}


IMPORTED = re.compile(r"^(?:from|import) (traceview[\w.]*)", re.MULTILINE)
INSTALL = (*("-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"), "--target")


def test_interface_is_what_packages_use() -> None:
    sections = "".join(code for section in SECTIONS[:2] for code in examples(section))
    for text in (sections, FAULTY, (EXAMPLE / "traceview_example.py").read_text()):
        assert set(IMPORTED.findall(text)) == {"traceview.plugin"}
    assert plugin.API_VERSION == 2
    assert all(hasattr(plugin, name) for name in plugin.__all__)


def test_example_is_installed_outside_the_repository(tmp_path: Path) -> None:
    package, site = tmp_path / "package", tmp_path / "site"
    shutil.copytree(EXAMPLE, package, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, *INSTALL, str(site), str(package)], check=True, cwd=tmp_path, capture_output=True)
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{ROOT}"}
    command = [sys.executable, "-m", "traceview", "analyze", str(sample("dual.sqlite")), "--no-html", "--json", "-"]
    out = subprocess.run(command, check=True, cwd=tmp_path, env=environment, capture_output=True, text=True).stdout
    analysis = json.loads(out)
    assert sum(row["count"] for row in analysis["devices"][0]["extensions"]["short_kernels"])
    assert [row["id"] for row in analysis["findings"]].count("event_polling") == 1
    assert [note for note in analysis["notes"] if note["id"].startswith("package_")] == []
