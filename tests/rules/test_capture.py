"""Tests of the rules on missing and cut data, and of all rules on random traces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tests.build_export import Call, Kernel, Nvtx, build_export
from tests.made_trace import made_trace
from tests.rules.helpers import MS, notes
from traceview.errors import RequestError
from traceview.model.analysis import Iterations
from traceview.model.trace import CLASSES, ROLES, Note, Trace, Window
from traceview.pipeline import analyze, open_trace
from traceview.rules.cut_capture import cut_capture
from traceview.rules.missing_data import missing_data

WORK = [(0, MS, "compute", 0, 0), (2 * MS, 3 * MS, "compute", 0, None)]
CALLS = [(0, 10, "api", 0)]


def ids(trace: Trace) -> list[str]:
    return [note.id for note in notes(trace, missing_data, cut_capture)]


def test_no_calls() -> None:
    assert ids(made_trace(WORK[1:])) == ["no_cuda_calls"]


def test_lost_ranges_are_a_note() -> None:
    trace = made_trace(WORK, CALLS)
    trace = replace(trace, info=replace(trace.info, health=(Note("lost_ranges", "the ranges were lost"),)))
    assert ids(trace) == []
    assert [note.id for note in analyze(trace).notes] == ["lost_ranges", "no_iterations"]


def test_names_of_threads_are_not_lost_ranges(tmp_path: Path) -> None:
    path = build_export(tmp_path / "made.sqlite", kernels=[Kernel()], api=[Call()], nvtx=[Nvtx(text="loader", kind=39)])
    assert "no_nvtx" in [note.id for note in analyze(open_trace(path)).notes]


def test_missing_ranges_and_iterations_have_one_note() -> None:
    without = analyze(made_trace(WORK, CALLS))
    assert [note.id for note in without.notes] == ["no_nvtx", "no_iterations"]
    assert [note.id for note in analyze(made_trace(WORK, CALLS, [(0, 3 * MS, "main", 0)])).notes] == ["no_iterations"]


def test_complete_capture() -> None:
    assert ids(made_trace(WORK, CALLS, [(i * MS, i * MS + MS, f"step {i}", 0) for i in range(3)])) == []


def test_cut_capture() -> None:
    trace = made_trace(WORK[:1] * 2, CALLS, [(0, 3 * MS, "main", 0)])
    unmatched = trace.operations.with_columns(launch=None).cast({"launch": trace.operations.schema["launch"]})
    trace = replace(trace, operations=unmatched, ranges=trace.ranges.with_columns(open=True))
    (note,) = notes(trace, cut_capture)
    assert note.text.startswith(
        "The capture is cut: 2 GPU operations (100%) without a launch and 1 range without an end."
    )


times = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)
operations = st.lists(
    st.tuples(times, st.sampled_from(CLASSES), st.integers(0, 2), st.none() | st.integers(0, 4)),
    min_size=1,
    max_size=12,
)
calls = st.lists(st.tuples(times, st.sampled_from(ROLES), st.integers(0, 1)), min_size=5, max_size=9)
ranges = st.lists(st.tuples(times, st.sampled_from(["step 1", "step 2", "load"]), st.integers(0, 1)), max_size=6)
windows = st.none() | st.tuples(st.integers(0, 30), st.integers(1, 30)).map(lambda w: Window(w[0], w[0] + w[1]))


@settings(max_examples=80, deadline=None)
@given(operations, calls, ranges, windows, st.sampled_from([1, 100_000, 2**40]), st.booleans())
def test_costs_do_not_exceed_lost_time(work, api, spans, window, unit, whole) -> None:
    trace = made_trace(
        [(start * unit, end * unit, *rest) for (start, end), *rest in work],
        [(start * unit, end * unit, *rest) for (start, end), *rest in api],
        [(start * unit, end * unit, *rest) for (start, end), *rest in spans],
    )
    first, last = trace.operations["start"][0], trace.operations["end"].max()
    if window is not None and window.start * unit < last and window.end * unit > first:
        trace = trace.with_window(Window(window.start * unit, window.end * unit))
    try:
        analysis = analyze(trace, whole=whole)
    except RequestError:  # the window lies in a gap: nothing to measure
        reject()
    for device in analysis.devices:
        own = [part for finding in analysis.findings for part in finding.by_device if part.device == device.id]
        part = analysis.part(device)
        of_run = analysis.covers_run or any(finding.once for finding in own)
        time = analysis.run.length if of_run else part.window.length
        waiting = sum(finding.cost_ns for finding in own if finding.claims == "waiting")
        assert waiting <= time - part.compute_ns
        assert sum(finding.cost_ns for finding in own) - waiting <= part.compute_ns
        for finding in own:
            assert finding.cost_ns > 0
            if isinstance(analysis.iterations, Iterations):
                assert (finding.cost_per_iteration_ns or 0) <= analysis.iterations.time_ns
