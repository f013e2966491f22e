"""Captures in parts: in processes, and with events on streams without work."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from tests.build_export import Call, Kernel, Record, build_export
from tests.captures import sample
from traceview.engine.limited import plan_parts
from traceview.engine.measure import Extents
from traceview.engine.part import FIRST, LAST, PartRunner, ProcessRunner
from traceview.engine.run import AnalysisOptions, analyze_parts
from traceview.engine.traces import PartSource
from traceview.model.analysis import Analysis
from traceview.model.findings import NO_ANSWER
from traceview.model.trace import Window
from traceview.pipeline import analyze
from traceview.report.analysis import document
from traceview.workers.processes import Processes


def figures(analysis: Analysis) -> tuple[object, ...]:
    """Return the document, and of findings what does not come from one part or its model."""
    costs = {(finding.id, finding.title, finding.device, finding.cost_ns) for finding in analysis.findings}
    without = replace(analysis, findings=(), answer=NO_ANSWER, notes=())
    return document(without), costs, [note.id for note in analysis.notes]


def in_parts(source: PartSource, runner: PartRunner) -> Analysis:
    return analyze_parts(runner, source.resident, Extents(*source.extents), AnalysisOptions()).analysis


def test_processes_measure_what_this_process_does(tmp_path: Path) -> None:
    path = sample("dual.sqlite")
    source = PartSource.open(path, 16)
    parts = PartRunner(source, plan_parts(source, 3), folder=tmp_path)
    assert len(parts.windows) == 3
    extents = Extents(*source.extents)
    here = analyze_parts(parts, source.resident, extents, AnalysisOptions()).analysis
    with Processes(2) as workers:
        there = PartSource.open(path, 16, workers=workers)
        assert plan_parts(there, 3, workers) == tuple(parts.windows)
        runner = ProcessRunner(PartRunner(there, parts.windows, folder=tmp_path), workers)
        assert document(analyze_parts(runner, there.resident, extents, AnalysisOptions()).analysis) == document(here)
    assert len(list(tmp_path.glob("*.trace"))) == 3  # one each, which later passes read
    assert figures(here) == figures(analyze(path, costs=None))


def test_events_of_streams_without_work_count_in_all_slices(tmp_path: Path) -> None:
    """A made export: another stream has an event before, during and after the work of the GPU."""
    work = range(40, 80)
    calls = [
        Call(1_000 * at, 1_000 * at + 90, correlation=at, name="cudaLaunchKernel" if at in work else "cudaEventRecord")
        for at in range(120)
    ]
    kernels = [Kernel(1_000 * at + 100, 1_000 * at + 900, correlation=at) for at in work]
    events = [Record(number, correlation=at, stream=9) for number, at in enumerate((1, 60, 119))]
    path = build_export(tmp_path / "made.sqlite", api=calls, kernels=kernels, records=events)
    source, edges = PartSource.open(path, 1), (FIRST, 30_000, 55_000, 100_000, LAST)
    runner = PartRunner(source, [Window(*edge) for edge in pairwise(edges)], 1 << 40)
    merged = in_parts(source, runner)
    assert merged.notes == analyze(path, costs=None).notes
    assert any("(3 events)" in note.text for note in merged.notes)
