"""What a notebook shows: HTML, plotly figures, and the two notebooks of the documentation."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.captures import ROOT, sample
from tests.exporters.hostile import hostile_export
from tests.ranks.reports import merged, ranks_of
from traceview import analyze, compare
from traceview.errors import RequestError
from traceview.model.analysis import Analysis, Iterations
from traceview.model.columns import partial_row
from traceview.model.rows import SourceLine

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
PLOTLY = "application/vnd.plotly.v1+json"


@pytest.fixture(scope="module")
def dual() -> Analysis:
    return analyze(sample("dual.sqlite"))


def stacks(figure: Any) -> list[float]:
    """Return the heights of stacked bars, in ms."""
    assert "(ms)" in figure.layout.xaxis.title.text or figure.layout.yaxis.title.text == "ms"
    return [sum(parts) for parts in zip(*(bar.y for bar in figure.data), strict=True)]


def test_figures_have_the_sums_of_the_analysis(dual: Analysis) -> None:
    assert isinstance(dual.iterations, Iterations)
    exact = [
        each.compute_ns + each.exposed_communication_ns + each.exposed_h2d_ns + each.exposed_d2h_ns + each.idle_ns
        for each in dual.iterations.per_iteration
    ]
    assert stacks(dual.figures.iterations()) == pytest.approx([ns / 1e6 for ns in exact])
    assert stacks(dual.figures.idle()) == pytest.approx([dual.part(dual.devices[0]).idle_ns / 1e6])
    (bars,) = dual.figures.kernels(top=5).data
    rows = dual.devices[0].steady.tables["kernels"].rows
    assert list(bars.x) == pytest.approx(sorted((row.total_ns / 1e6 for row in rows), reverse=True)[:5])
    with pytest.raises(RequestError, match="stacks"):
        dual.figures.lines()
    row = partial_row(SourceLine, file="train.py", line=7, idle_ns=3_000_000)
    known = replace(dual, tables={"lines": dual.tables["lines"].with_rows((row,))})
    (bars,) = known.figures.lines().data
    assert list(bars.x) == [3.0] and bars.hovertext == ("train.py:7",)


def test_fleet_figures() -> None:
    fleet = merged(ranks_of("slowhost"))
    assert fleet.heat is not None
    assert stacks(fleet.figures.ranks()) == pytest.approx([rank.wall / 1e6 for rank in fleet.ranks])
    (heat,) = fleet.figures.heat("wait").data
    assert [[round(ms * 1e6) for ms in row] for row in heat.z] == fleet.heat.wait.tolist()
    assert "<td>slowhost_rank1</td>" in fleet._repr_html_() and "1 straggler of 4 ranks" in fleet._repr_html_()
    with pytest.raises(RequestError, match="choose one of"):
        fleet.figures.heat("lag")


def test_figures_name_the_missing_package(dual: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(RequestError, match=r"pip install 'traceview\[notebook\]'"):
        dual.figures.idle()


def test_html_states_the_answer(dual: Analysis) -> None:
    text = dual._repr_html_()
    assert dual.answer.text in text and dual.findings[0].title in text
    assert "<th>bandwidth</th>" in dual.devices[0].tables["copies"]._repr_html_()
    reason = dual.tables["speed_of_light"].unmeasured("a <reason>")
    assert "a &lt;reason&gt;" in reason._repr_html_() and "<table" not in reason._repr_html_()
    assert ": noise</b>" in compare(dual, dual)._repr_html_()


def test_hostile_names_are_escaped(tmp_path: Path) -> None:
    analysis = analyze(hostile_export(tmp_path / "hostile.sqlite"))
    tables = [*analysis.tables.values(), *(table for use in analysis.devices for table in use.tables.values())]
    shown = "".join([analysis._repr_html_(), *(table._repr_html_() for table in tables)])
    figures = "".join([analysis.figures.idle().to_json(), analysis.figures.kernels().to_json()])
    assert "&lt;script" in shown and "<script" not in shown
    assert "<script" not in figures and "&lt;script" in figures


@pytest.mark.filterwarnings("default")  # of Jupyter's own packages
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells), "a notebook is stored without outputs"
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(ROOT)}}).execute()
    results = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    assert len(results) == sum(cell.cell_type == "code" for cell in notebook.cells), "each cell shows a result"
    assert "text/html" in results[0] and sum(PLOTLY in data for data in results) >= 2
