"""Captures in parts: in processes, with lost events, stacks of calls, and streams without work."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from tests.build_export import Call, Kernel, Nvtx, Record, build_export
from tests.captures import sample, shared
from traceview.model.analysis import Analysis
from traceview.model.trace import Window
from traceview.pipeline import analyze
from traceview.report.analysis.document import document
from traceview.slices.measure import Extents
from traceview.slices.plan import plan_slices
from traceview.slices.run import analyze_slices
from traceview.slices.runner import ProcessRunner, SliceRunner
from traceview.slices.slice import FIRST, LAST
from traceview.slices.traces import SliceSource
from traceview.workers import Processes


def figures(analysis: Analysis) -> tuple[object, ...]:
    """Return the document, and of findings what does not come from one slice."""
    costs = [
        (finding.id, finding.title, finding.device, finding.severity, finding.cost_ns) for finding in analysis.findings
    ]
    return document(replace(analysis, findings=(), answer="", notes=())), costs, [note.id for note in analysis.notes]


def test_processes_measure_what_this_process_does(tmp_path: Path) -> None:
    path = sample("dual.sqlite")
    source = SliceSource.open(path, 16)
    slices = SliceRunner(source, plan_slices(source, 3), folder=tmp_path)
    assert len(slices.windows) == 3
    extents = Extents(*source.extents)
    here = analyze_slices(slices, source.resident, extents)
    with Processes(2) as workers:
        there = SliceSource.open(path, 16, workers=workers)
        assert plan_slices(there, 3, workers) == tuple(slices.windows)
        runner = ProcessRunner(SliceRunner(there, slices.windows, folder=tmp_path), workers)
        assert document(analyze_slices(runner, there.resident, extents)) == document(here)
    assert len(list(tmp_path.glob("*.trace"))) == 3  # one each, which later passes read
    assert figures(here) == figures(analyze(path, costs=None))


def test_lost_events_of_slices(tmp_path: Path) -> None:
    """A made export: two processes, each loses half of its launches, and one its last events."""
    calls, kernels, ranges = [], [], []
    for number in range(400):
        process, start = (10, 20)[number % 2], 1_000_000 * number
        ranges.append(Nvtx(start, start + 900_000, text=f"step {number}", process=process))
        if number % 2 == 0 or number < 300:
            calls.append(Call(start, start + 9_000, correlation=number + 1, process=process))
            if number % 4 < 2:
                kernels.append(Kernel(start + 10_000, start + 99_000, correlation=number + 1, process=process))
    path = build_export(tmp_path / "made.sqlite", api=calls, kernels=kernels, nvtx=ranges)
    source = SliceSource.open(path, 1)
    windows = plan_slices(source, 7)
    assert len(windows) == 7
    merged = analyze_slices(SliceRunner(source, windows, 1 << 40), source.resident, Extents(*source.extents))
    whole = analyze(path, costs=None)
    assert merged.info.health == whole.info.health
    assert merged.info.passed == whole.info.passed
    assert merged.notes == whole.notes
    assert [note.id for note in whole.info.health] == ["lost_launches", "lost_launches", "cuda_ends_early"]


def test_lines_from_stacks_of_cuda_calls() -> None:
    path = shared("public/nsys2022.2_mpi_empty_tables.sqlite")
    source = SliceSource.open(path)
    runner = SliceRunner(source, plan_slices(source, 2), 1 << 40)
    merged, whole = analyze_slices(runner, source.resident, Extents(*source.extents)), analyze(path, costs=None)
    lines = [[replace(row, node=0) for row in each.tables["lines"].rows] for each in (merged, whole)]
    assert lines[0] == lines[1]
    assert [finding.host for finding in merged.findings] == [finding.host for finding in whole.findings]
    assert sum(finding.host is not None for finding in whole.findings) > 1


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
    source, edges = SliceSource.open(path, 1), (FIRST, 30_000, 55_000, 100_000, LAST)
    runner = SliceRunner(source, [Window(*edge) for edge in pairwise(edges)], 1 << 40)
    merged = analyze_slices(runner, source.resident, Extents(*source.extents))
    assert merged.notes == analyze(path, costs=None).notes
    assert any("(3 events)" in note.text for note in merged.notes)
