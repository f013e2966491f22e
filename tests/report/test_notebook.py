"""What a notebook shows: HTML, and the two notebooks of the documentation."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import ROOT, sample
from tests.exporters.hostile import hostile_export
from tests.ranks.reports import merged, ranks_of
from traceview import analyze, compare
from traceview.model.analysis import Analysis

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


@pytest.fixture(scope="module")
def dual() -> Analysis:
    return analyze(sample("dual.sqlite"))


def test_html_states_the_answer(dual: Analysis) -> None:
    text = dual._repr_html_()
    assert dual.answer.text in text and dual.findings[0].title in text
    assert "<th>bandwidth</th>" in dual.devices[0].tables["copies"]._repr_html_()
    reason = dual.tables["speed_of_light"].unmeasured("a <reason>")
    assert "a &lt;reason&gt;" in reason._repr_html_() and "<table" not in reason._repr_html_()
    assert ": noise</b>" in compare(dual, dual)._repr_html_()
    fleet = merged(ranks_of("slowhost"))
    assert "<td>slowhost_rank1</td>" in fleet._repr_html_() and "1 straggler of 4 ranks" in fleet._repr_html_()


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    analysis = analyze(hostile_export(tmp_path / "hostile.sqlite"))
    tables = [*analysis.tables.values(), *(table for use in analysis.devices for table in use.tables.values())]
    shown = "".join([analysis._repr_html_(), *(table._repr_html_() for table in tables)])
    assert "&lt;script" in shown and "<script" not in shown


@pytest.mark.filterwarnings("default")  # of Jupyter's own packages
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "a notebook is stored without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    results = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert len(results) == sum(cell.cell_type == "code" for cell in notebook.cells), "each cell shows a result"
    assert all("text/html" in data for data in results)
