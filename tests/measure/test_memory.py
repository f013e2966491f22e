"""The peak of the memory in use, and what allocated it."""

from __future__ import annotations

from dataclasses import replace

import polars as pl

from tests.made_trace import made_trace
from traceview.measure.memory import memory_curves
from traceview.model.sizes import MEMORY, MemoryUse
from traceview.model.stacks import FRAMES, SAMPLES, STACKS, HostEvidence
from traceview.model.trace import Trace, Window
from traceview.pipeline import analyze

MS = 1_000_000
# start, address, bytes held from now on, total
EVENTS = ((1, 1, 100, 100), (12, 2, 50, 150), (14, 1, 0, 50), (22, 3, 500, 550), (24, 3, 0, 50), (32, 4, 10, 60))


def memory_trace() -> Trace:
    """Return a made trace: steps of 10 ms, each with a kernel; line 1 before 20 ms, line 2 after it."""
    launches = [(10 * step * MS, 10 * step * MS + MS, "api", 0) for step in range(4)]
    kernels = [(10 * step * MS + 2 * MS, 10 * step * MS + 3 * MS, "compute", 0, step) for step in range(4)]
    ranges = [(10 * step * MS, 10 * step * MS + 9 * MS, f"step {step}", 0) for step in range(4)]
    memory = [(at * MS, 0, "device", address, size, total, 0) for at, address, size, total in EVENTS]
    samples = [(at * MS, at * MS, 0, 0, False, int(at >= 20)) for at in range(40)]
    frames = [("train", "train.py", 1, False), ("evaluate", "eval.py", 2, False)]
    return replace(
        made_trace(kernels, launches, ranges),
        memory=pl.DataFrame(memory, schema=dict(MEMORY), orient="row"),
        evidence=HostEvidence(
            frames=pl.DataFrame(frames, schema=dict(FRAMES), orient="row"),
            stacks=pl.DataFrame([(-1, 0), (-1, 1)], schema=dict(STACKS), orient="row"),
            samples=pl.DataFrame(samples, schema=dict(SAMPLES), orient="row"),
        ),
    )


def use(trace: Trace) -> MemoryUse:
    """Return the only row of the table."""
    (row,) = analyze(trace).tables["memory"].rows
    return row


def test_peak_names_its_range_and_line() -> None:
    row = use(memory_trace())
    assert (row.peak_bytes, row.peak_ns, row.end_bytes) == (550, 20 * MS, 60)  # the first GPU work starts at 2 ms
    assert (row.count, row.allocated_bytes) == (4, 660)
    assert (row.range, row.place, row.place_bytes) == ("step #", "evaluate (eval.py:2)", 500)


def test_window_starts_with_what_is_held_before_it() -> None:
    row = use(memory_trace().with_window(Window(12_500_000, 13_500_000)))
    assert (row.peak_bytes, row.peak_ns, row.count, row.place_bytes) == (150, 10_500_000, 0, 150)


def test_curves_leave_out_kinds_that_are_too_small_to_see() -> None:
    trace = memory_trace()
    small = trace.memory.with_columns(pl.lit("static", MEMORY["kind"]).alias("kind"), pl.col("total") // 100)
    (curve,) = memory_curves(replace(trace, memory=pl.concat([trace.memory, small])))
    assert (curve.name, curve.value.tolist()) == ("device memory", [total for *_, total in EVENTS])


def test_capture_without_memory_events_has_no_rows() -> None:
    trace = replace(memory_trace(), memory=pl.DataFrame(schema=dict(MEMORY)))
    assert analyze(trace).tables["memory"].rows == () and list(memory_curves(trace)) == []
