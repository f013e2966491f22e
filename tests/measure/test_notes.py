"""Tests of the notes on what a capture lacks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.build_export import Call, Kernel, Nvtx, build_export
from tests.made_trace import made_trace
from tests.rules.helpers import MS
from traceview.model.trace import Note, Trace
from traceview.pipeline import analyze, open_trace

WORK = [(0, MS, "compute", 0, 0), (2 * MS, 3 * MS, "compute", 0, None)]
CALLS = [(0, 10, "api", 0)]
STEPS = [(step * MS, step * MS + MS, f"step {step}", 0) for step in range(8)]


def ids(trace: Trace) -> list[str]:
    return [note.id for note in analyze(trace).notes]


def test_no_calls() -> None:
    assert ids(made_trace(WORK[1:], ranges=STEPS)) == ["no_cuda_calls"]


def test_lost_ranges_are_a_note() -> None:
    trace = made_trace(WORK, CALLS)
    trace = replace(trace, info=replace(trace.info, health=(Note("lost_ranges", "the ranges were lost"),)))
    assert ids(trace) == ["lost_ranges", "no_iterations"]


def test_names_of_threads_are_not_lost_ranges(tmp_path: Path) -> None:
    path = build_export(tmp_path / "made.sqlite", kernels=[Kernel()], api=[Call()], nvtx=[Nvtx(text="loader", kind=39)])
    assert "no_nvtx" in ids(open_trace(path))


def test_missing_ranges_and_iterations_have_one_note() -> None:
    assert ids(made_trace(WORK, CALLS)) == ["no_nvtx", "no_iterations"]
    assert ids(made_trace(WORK, CALLS, [(0, 3 * MS, "main", 0)])) == ["no_iterations"]


def test_complete_capture() -> None:
    work = [(start + 20, start + MS // 2, "compute", 0, step) for step, (start, *_) in enumerate(STEPS)]
    assert ids(made_trace(work, [(start, start + 10, "api", 0) for start, *_ in STEPS], STEPS)) == []


def test_cut_capture() -> None:
    trace = made_trace(WORK[:1] * 2, CALLS, [(0, 3 * MS, "main", 0)])
    unmatched = trace.operations.with_columns(launch=None).cast({"launch": trace.operations.schema["launch"]})
    trace = replace(trace, operations=unmatched, ranges=trace.ranges.with_columns(open=True))
    [note] = [each for each in analyze(trace).notes if each.id == "cut_capture"]
    assert note.text.startswith(
        "The capture is cut: 2 GPU operations (100%) without a launch and 1 range without an end."
    )
