"""A gate does not pass where its quantity was not measured: exit code 2 with the reason, for every quantity."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tests.captures import analyzed, change, sample
from tests.ranks.reports import merged
from tests.report.made_analysis import bare_analysis
from traceview.cli import fleet
from traceview.cli.conditions import analysis, comparison
from traceview.comparison import compare
from traceview.errors import RequestError
from traceview.model.analysis import CAUSES, Analysis
from traceview.model.comparison import Comparison
from traceview.model.trace import KINDS
from traceview.pipeline import analyze

GPU_TABLES = [f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET")]
CALLS = "CUPTI_ACTIVITY_KIND_RUNTIME"
SYNCS = ("sync", "implicit_sync")
KNOWN_CAUSES = [cause for cause in CAUSES if cause not in ("profiler", "unknown")]
KERNELS = ['kernel:"vectorized_elementwise_kernel"', 'kernel:"vectorized_elementwise_kernel".per_call']


def without(folder: Path, *tables: str) -> Path:
    """Return a copy of a real capture without some tables."""
    path = shutil.copyfile(sample("dual.sqlite"), folder / "damaged.sqlite")
    return change(path, *(f"DROP TABLE {table}" for table in tables))


@pytest.fixture(scope="module")
def analysis_without(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Analysis]:
    @cache
    def damaged(*tables: str, iteration: str | None = None) -> Analysis:
        return analyze(without(tmp_path_factory.mktemp("captures"), *tables), iteration=iteration)

    return damaged


def unit_of(quantity: analysis.Quantity) -> str:
    return "%" if quantity.kind == "share" else ""


def lines(text: str, result: Analysis) -> list[str]:
    return list(analysis.failures([analysis.parse(text)], result))


def refused(name: str, quantity: analysis.Quantity, result: Analysis, reason: str) -> None:
    """Check that a bound which any value passes, and one which no value passes, are both refused."""
    for operator in ("<", ">="):
        with pytest.raises(RequestError, match=reason):
            lines(f"{name} {operator} 0{unit_of(quantity)}", result)


MEASURED_WITHOUT_GPU = {
    "notes.count",
    "iteration.count",
    *(f"{kind}.{figure}" for kind in SYNCS for figure in ("count", "blocked")),
    *(f"iteration.{figure}.{part}" for figure in ("wall", "blocked") for part in ("median", "p5", "p95")),
}


@pytest.mark.parametrize("name", sorted(analysis.QUANTITIES))
def test_analysis_without_gpu_work(name: str, analysis_without: Callable[..., Analysis]) -> None:
    result, quantity = analysis_without(*GPU_TABLES, iteration="iteration"), analysis.QUANTITIES[name]
    if name in MEASURED_WITHOUT_GPU:
        assert lines(f"{name} >= 0", result)
    else:
        refused(name, quantity, result, "was not measured: the capture holds no GPU work")


@pytest.mark.parametrize("name", sorted(name for name in analysis.QUANTITIES if name.startswith("iteration.")))
def test_analysis_without_iterations(name: str) -> None:
    refused(name, analysis.QUANTITIES[name], bare_analysis(), "was not measured: ")


@pytest.mark.parametrize(
    "name",
    [
        *(f"{kind}.{figure}" for kind in SYNCS for figure in (*analysis.SYNC_FIGURES, "count")),
        *(f"idle.{cause}" for cause in KNOWN_CAUSES),
    ],
)
def test_analysis_without_calls(name: str, analysis_without: Callable[..., Analysis]) -> None:
    reason = "was not measured: the capture (holds no CUDA|does not show)"
    refused(name, analysis.QUANTITIES[name], analysis_without(CALLS), reason)


def test_analysis_without_copies_kernels_and_calls_of_a_kernel(analysis_without: Callable[..., Analysis]) -> None:
    result = analysis_without("CUPTI_ACTIVITY_KIND_MEMCPY")
    for kind in KINDS:
        refused(f"overlap_{kind}", analysis.QUANTITIES[f"overlap_{kind}"], result, f"no device has {kind} copies")
    assert lines("exposed_h2d == 0", result)  # a table without rows is not in an export: there were no copies
    graphs = analyzed(sample("cudagraph.sqlite"))
    refused("kernels", analysis.QUANTITIES["kernels"], graphs, "was not measured: .*--cuda-graph-trace=node")
    for name in KERNELS:
        with pytest.raises(RequestError, match="no kernel has this name"):
            lines(f"{name} < 1s", analysis_without(GPU_TABLES[0]))


COMPARED_WITHOUT_GPU = {"time", "wall", "launches", *comparison.CALL_FIGURES}


@pytest.fixture(scope="module")
def compared_without_gpu(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    damaged = without(tmp_path_factory.mktemp("captures"), *GPU_TABLES)
    return compare(damaged, sample("dual.sqlite"), iteration="iteration")


@pytest.mark.parametrize("name", comparison.QUANTITIES)
def test_comparison_without_gpu_work(name: str, compared_without_gpu: Comparison) -> None:
    check = [comparison.parse(f"{name} > -99999s" if name not in comparison.COUNTS else f"{name} > -99999")]
    if name in COMPARED_WITHOUT_GPU:
        assert list(comparison.failures(check, compared_without_gpu))
    else:
        with pytest.raises(RequestError, match=r"was not measured in damaged\.sqlite: it holds no GPU work"):
            list(comparison.failures(check, compared_without_gpu))


def test_comparison_without_calls(analysis_without: Callable[..., Analysis]) -> None:
    result = compare(analyzed(sample("dual.sqlite")), analysis_without(CALLS))
    for name in (*(f"idle.{cause}" for cause in KNOWN_CAUSES), "sync.cost", "launches"):
        with pytest.raises(RequestError, match=r"was not measured in damaged\.sqlite"):
            list(comparison.failures([comparison.parse(f"{name} > -99999")], result))


@pytest.mark.parametrize("name", [*fleet.FLEET_TIMES, "straggler", "wait", "caused", "stragglers", "unmatched"])
def test_fleet_of_one_rank(name: str) -> None:
    alone = merged([sample("dual.sqlite")])
    for operator in ("<", ">="):
        with pytest.raises(RequestError, match=f"{name} was not measured; it needs"):
            list(fleet.failures([fleet.parse(f"{name} {operator} 0")], alone))
