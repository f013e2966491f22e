"""The run without the profiler: replays with shorter calls."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.captures import SAMPLES, analyzed, sample
from tests.made_trace import made_trace
from traceview.model.analysis import Analysis, Iterations
from traceview.model.trace import MEMORIES, Trace
from traceview.model.unprofiled import ESTIMATE, RANGE_EVENT, Bounds, ProfilerCosts, UnprofiledTime
from traceview.model.whatif import WhatIf
from traceview.pipeline import analyze
from traceview.replay.build import build
from traceview.replay.changes.base import longest_launching_gap
from traceview.replay.constants import CAPTURE_NOISE
from traceview.replay.graph import GAP, RUN
from traceview.replay.prediction import predict, whatif
from traceview.replay.profiler_costs import traced_events, without_profiler
from traceview.replay.select import select
from traceview.replay.unprofiled import HOST_SPREAD, LOADER_SPREAD

US = 1000
FREE = ESTIMATE.scaled(0)
CAPTURES = sorted([*SAMPLES.glob("*.sqlite"), *(SAMPLES / "trainer").glob("*.sqlite")])


def costs(scale: float) -> ProfilerCosts:
    """Return costs without a range, and without any between kernels."""
    return ProfilerCosts(Bounds(scale, scale, scale), Bounds(0, 0, 0))


def loop(*, kernel: int, pause: int, calls: int = 10, steps: int = 12) -> Trace:
    """Hand-made: each step launches kernels one after the other: calls of 10 µs, `pause` µs between them.

    nsys adds 6 µs to such a call (CALL_FIXED + CALL_SHARE * 10 µs is more than MAX_CALL), and 1.5 µs to a range.
    """
    operations, api, ranges, at, free = [], [], [], 0, 0
    for step in range(steps):
        begin = at
        for _ in range(calls):
            start = max(at + 8 * US, free)
            free = start + kernel * US
            operations.append((start, free, "compute", 0, len(api)))
            api.append((at, at + 10 * US, "api", 0))
            at += (10 + pause) * US
        ranges.append((begin, at, f"step {step}", 0))
    return made_trace(operations, api, ranges)


def unprofiled(analysis: Analysis) -> UnprofiledTime:
    assert isinstance(analysis.iterations, Iterations)
    assert analysis.iterations.unprofiled is not None
    return analysis.iterations.unprofiled


def test_host_bound_loop_loses_the_cost_of_its_calls() -> None:
    analysis = analyze(loop(kernel=1, pause=20), costs=costs(1))
    assert unprofiled(analysis).mean_ns == 10 * (30 - 6) * US - 2 * RANGE_EVENT
    parts = analysis.devices[0].steady.gaps.profiler
    assert parts is not None
    assert 0 < parts["host"] < analysis.devices[0].steady.gaps.causes["host"]
    assert parts["launch"] > 0


def test_gpu_bound_loop_keeps_its_time() -> None:
    analysis = analyze(loop(kernel=50, pause=5), costs=costs(1))
    assert unprofiled(analysis).mean_ns == pytest.approx(500 * US, rel=0.01)


def test_host_keeps_a_part_of_its_time() -> None:
    """Calls cannot cost more than the time that they and the host between them take."""
    time = unprofiled(analyze(loop(kernel=1, pause=20), costs=costs(100)))
    assert 0.1 * 300 * US < time.mean_ns < 0.3 * 300 * US


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: str(path.relative_to(SAMPLES)))
def test_times_and_parts_of_samples(path: Path) -> None:
    analysis = analyzed(path)
    if not isinstance(analysis.iterations, Iterations):
        return
    time = unprofiled(analysis)
    assert 0 < time.low_ns <= time.mean_ns <= min(time.high_ns, analysis.iterations.time_ns)
    for device in analysis.devices:
        gaps = device.steady.gaps
        assert gaps.profiler is None or all(0 <= ns <= gaps.causes[cause] for cause, ns in gaps.profiler.items())
    assert all((finding.unprofiled_cost_ns or 0) <= finding.cost_ns for finding in analysis.findings)


def test_each_rank_of_a_capture_loses_its_own_share() -> None:
    parts = [device.steady.gaps.profiler for device in analyzed(sample("ddp2.sqlite")).devices]
    assert len(parts) == 2 and all(part and part["host"] > 0 and part["launch"] > 0 for part in parts)


def test_calls_without_cost_change_nothing() -> None:
    analysis = analyze(sample("trainer/pinned.sqlite"), costs=FREE)
    assert isinstance(analysis.iterations, Iterations)
    time = unprofiled(analysis)
    assert time.low_ns < time.mean_ns == analysis.iterations.time_ns < time.high_ns
    assert [finding.unprofiled_cost_ns for finding in analysis.findings] == [
        finding.cost_ns for finding in analysis.findings
    ]


def test_more_cost_means_less_time() -> None:
    times = [unprofiled(analyze(sample("dual.sqlite"), costs=ESTIMATE.scaled(scale))).mean_ns for scale in (0.5, 1, 2)]
    assert times == sorted(times, reverse=True) and times[0] > times[2]


def test_given_time() -> None:
    analysis = analyze(sample("dual.sqlite"), unprofiled_ns=9_700_000)
    time = unprofiled(analysis)
    assert (time.mean_ns, time.low_ns, time.high_ns, time.source) == (9_700_000, 9_700_000, 9_700_000, "given")
    parts = analysis.devices[0].steady.gaps.profiler
    assert parts is not None and isinstance(analysis.iterations, Iterations)
    # Copies that compute hides then save the rest.
    saved = sum(parts.values()) / analysis.iterations.count
    assert saved == pytest.approx(analysis.iterations.time_ns - time.mean_ns, rel=0.25)


def test_unknown_cost_leaves_findings_as_measured() -> None:
    analysis = analyzed(sample("dual.sqlite"), costs=None)
    assert isinstance(analysis.iterations, Iterations) and analysis.iterations.unprofiled is None
    assert all(finding.unprofiled_cost_ns is None for finding in analysis.findings)


def test_trace_of_another_profiler_has_only_a_given_time() -> None:
    trace = loop(kernel=1, pause=20)
    other = replace(trace, info=replace(trace.info, profiler="torch.profiler"))
    iterations = analyze(other).iterations
    assert isinstance(iterations, Iterations) and iterations.unprofiled is None
    assert unprofiled(analyze(other, unprofiled_ns=250 * US)).mean_ns == 250 * US


def test_range_is_wider_if_nsys_recorded_more() -> None:
    trace = loop(kernel=1, pause=20)
    analyses = [
        analyze(replace(trace, info=replace(trace.info, tables={"OSRT_API": rows})), costs=ESTIMATE) for rows in (0, 5)
    ]
    less, more = (unprofiled(analysis) for analysis in analyses)
    assert (more.mean_ns, more.high_ns) == (less.mean_ns, less.high_ns) and more.low_ns < less.low_ns
    notes = [[note.text for note in analysis.notes if note.id == "unprofiled_range"] for analysis in analyses]
    assert notes[0] == [] and notes[1][0].startswith("nsys recorded more than CUDA calls and ranges")


def test_range_is_wider_where_a_loader_works() -> None:
    trace = loop(kernel=1, pause=20)
    named = trace.threads.with_columns(pl.lit("pt_data_pin").alias("name"))
    usual, loader = (
        unprofiled(analysis)
        for analysis in (analyze(trace, costs=costs(1)), analyze(replace(trace, threads=named), costs=costs(1)))
    )
    assert loader.mean_ns == usual.mean_ns
    for spread, time in ((HOST_SPREAD, usual), (LOADER_SPREAD, loader)):
        assert time.low_ns == pytest.approx(time.mean_ns / spread * (1 - CAPTURE_NOISE), rel=0.02)
        assert time.high_ns == pytest.approx(time.mean_ns * spread * (1 + CAPTURE_NOISE), rel=0.02)
    notes = analyze(replace(trace, threads=named), costs=costs(1)).notes
    assert [note.text for note in notes if note.id == "unprofiled_range"] == [
        "What a DataLoader's processes give differs more from run to run than one run shows, so the range of the time "
        "without the profiler is wider."
    ]


def test_operations_keep_their_length_on_a_slow_host() -> None:
    """The host fills the buffers of pageable copies, which still take as long without the profiler."""
    analysis = analyze(sample("trainer/serial.sqlite"))
    selection = select(analysis)
    assert not isinstance(selection, str)
    graph = build(analysis.trace, selection)
    run, host = graph.edges.kind == RUN, graph.edges.kind == GAP
    events = traced_events(analysis.trace, graph)
    usual, slow = (without_profiler(analysis.trace, graph, events, FREE, slowdown=factor) for factor in (1.0, 1.5))
    assert (graph.operations.memory == MEMORIES.index("pageable")).any()
    assert (slow.edges.weight[run] == graph.edges.weight[run]).all()
    between, limit = usual.edges.weight[host], longest_launching_gap(graph)
    assert between.max() > limit > np.median(between)
    assert slow.edges.weight[host] == pytest.approx(between - np.minimum(between, limit) / 3, abs=1)


def test_predictions_are_for_runs_without_the_profiler() -> None:
    analysis = analyzed(sample("dual.sqlite"))
    result = whatif(analysis)
    assert isinstance(result, WhatIf) and result.unprofiled is not None
    assert result.base_ns == unprofiled(analysis).mean_ns < result.measured_ns
    # A graph launches nothing one by one, so the profiler hardly matters.
    alone, measured = predict(analysis, ["graph"]), predict(analyzed(sample("dual.sqlite"), costs=None), ["graph"])
    assert alone.iteration_ns == pytest.approx(measured.iteration_ns, rel=0.1)
