"""Means of GPU metrics, against loops over samples and kernels. The samples are made: those in a sample are none."""

from __future__ import annotations

import bisect
import shutil
import sqlite3
from contextlib import closing
from statistics import fmean

import pytest

from tests.captures import sample
from traceview.measure.gpu_metrics import metric_curves
from traceview.model.analysis import Analysis
from traceview.model.sizes import MetricMeans
from traceview.pipeline import analyze

PERIOD = 20_000
TYPE = 281_479_271_677_952
METRICS = ("SMs Active [Throughput %]", "Tensor Active [Throughput %]", "GPC Clock Frequency [MHz]", "GR Active")
TABLES = """
CREATE TABLE TARGET_INFO_GPU_METRICS (typeId INTEGER, metricId INTEGER, metricName TEXT);
CREATE TABLE GPU_METRICS (timestamp INTEGER, typeId INTEGER, metricId INTEGER, value INTEGER);
"""


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    """Return the analysis of a sample with a metric that is 70 while kernels compute and 30 otherwise."""
    path = tmp_path_factory.mktemp("metrics") / "metrics.sqlite"
    shutil.copyfile(sample("dual.sqlite"), path)
    with closing(sqlite3.connect(path)) as export, export:
        export.executescript(TABLES)
        names = [(TYPE, number, name) for number, name in enumerate(METRICS)]
        export.executemany("INSERT INTO TARGET_INFO_GPU_METRICS VALUES (?, ?, ?)", names)
        kernels = export.execute("SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL ORDER BY start").fetchall()
        rows = []
        for at in range(kernels[0][0] - 5 * PERIOD, kernels[-1][1], PERIOD):
            values = (round(30 + 40 * covered(kernels, at) / PERIOD), 12, 1_980_000_000, 100)
            rows += [(at, TYPE, number, value) for number, value in enumerate(values)]
        export.executemany("INSERT INTO GPU_METRICS VALUES (?, ?, ?, ?)", rows)
    return analyze(path)


def covered(kernels: list[tuple[int, int]], at: int) -> int:
    """Return the ns of a sample in which a kernel runs; the kernels of this sample do not overlap."""
    first = max(bisect.bisect_left(kernels, (at, 0)) - 1, 0)
    last = bisect.bisect_left(kernels, (at + PERIOD, 0))
    return sum(max(0, min(end, at + PERIOD) - max(start, at)) for start, end in kernels[first:last])


def row(analysis: Analysis, part: str) -> MetricMeans:
    return next(row for row in analysis.devices[0].tables["gpu_metrics"].rows if row.part == part)


def test_means_agree_with_loops(analysis: Analysis) -> None:
    trace = analysis.trace
    samples = trace.gpu_metrics.select("start", "end", "sm_active").rows()
    kernels = trace.operations.select("start", "end", "class").rows()
    compute = [(start, end) for start, end, kind in kernels if kind == "compute"]
    window = analysis.devices[0].window
    filled = [value for at, _, value in samples if covered(compute, at) >= 0.9 * PERIOD]
    inside = [value for at, end, value in samples if min(end, window.end) - max(at, window.start) >= 0.9 * PERIOD]
    for part, values in (("compute", filled), ("all the time", inside)):
        means = row(analysis, part)
        assert means.count == len(values) > 100
        assert means.sm_active == pytest.approx(fmean(values) / 100, abs=1e-4)
        assert (means.tensor_active, means.gpc_clock_mhz, means.dram_read) == (0.12, 1980, None)
    assert row(analysis, "idle").sm_active == pytest.approx(0.3, abs=0.04)  # at most a tenth of a sample computes


def test_curves_and_notes(analysis: Analysis) -> None:
    assert [(curve.name, curve.unit) for curve in metric_curves(analysis.trace)] == [
        ("SMs active", "%"),
        ("tensor cores active", "%"),
        ("GPC clock", "MHz"),
    ]
    (shared,) = (note for note in analysis.notes if note.id == "shared_gpu")
    assert "its SMs are active 3" in shared.text
