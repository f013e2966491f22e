"""Tests of gap causes against the definition, nanosecond by nanosecond."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.made_trace import made_trace
from traceview.measure.activity import device_activity
from traceview.measure.base import DeviceInput
from traceview.measure.exposure import device_exposure
from traceview.measure.gaps import ThreadStates, device_gaps
from traceview.measure.nvtx import project_operations
from traceview.measure.places import locate_operations
from traceview.measure.streams import stream_uses
from traceview.model.analysis import CAUSES
from traceview.model.trace import Trace, Window

SPAN = st.tuples(st.integers(-20, 60), st.integers(0, 12)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    api = draw(
        st.lists(
            st.tuples(SPAN, st.sampled_from(["sync", "blocking_copy", "memory", "api"]), st.integers(0, 2)),
            max_size=8,
        )
    )
    launch = st.none() if not api else st.one_of(st.none(), st.integers(0, len(api) - 1))
    classes = st.sampled_from(["compute", "communication", "copy", "memset"])
    work = draw(st.lists(st.tuples(SPAN, classes, st.integers(0, 2), launch), min_size=1, max_size=8))
    overhead = draw(st.lists(SPAN, max_size=2))
    window = draw(st.one_of(st.none(), st.just(Window(10, 50))))
    return made_trace(
        [(*span, name, stream, call) for span, name, stream, call in work],
        [(*span, role, thread) for span, role, thread in api],
        overhead=overhead,
        window=window,
    )


def cause_of(trace: Trace, moment: int, operation: int | None) -> str:
    if any(start <= moment < end for start, end in trace.overhead.iter_rows()):
        return "profiler"
    launch = None if operation is None else trace.operations["launch"][operation]
    if launch is None:
        return "unknown"
    call = trace.api.row(launch, named=True)
    if moment >= call["end"]:
        return "queued"
    if moment >= call["start"]:
        return "launch"
    open_roles = {
        row["role"]
        for row in trace.api.iter_rows(named=True)
        if row["thread"] == call["thread"] and row["start"] <= moment < row["end"]
    }
    return next((role for role in ("sync", "blocking_copy", "memory", "api") if role in open_roles), "host")


def next_after(trace: Trace, moment: int) -> int | None:
    for index, row in enumerate(trace.operations.iter_rows(named=True)):
        if row["end"] > row["start"] >= moment:
            return index
    return None


def busy_class(trace: Trace, moment: int) -> str | None:
    running = {row["class"] for row in trace.operations.iter_rows(named=True) if row["start"] <= moment < row["end"]}
    return next((name for name in ("compute", "communication", "copy", "memset") if name in running), None)


@settings(max_examples=80, deadline=None)
@given(traces())
def test_device_gaps_by_the_nanosecond(trace: Trace) -> None:
    device = device_activity(trace, 0)
    if device is None:
        return
    gaps = device_gaps(trace, ThreadStates.from_trace(trace), device)
    expected = dict.fromkeys(CAUSES, 0)
    idle = [moment for moment in range(device.window.start, device.window.end) if busy_class(trace, moment) is None]
    for moment in idle:
        expected[cause_of(trace, moment, next_after(trace, moment))] += 1
    assert dict(gaps.causes) == expected
    assert gaps.total_ns == len(idle) == sum(gaps.causes.values())
    assert gaps.count == sum(moment - 1 not in idle for moment in idle)
    rows = gaps.frame.select("start", "end", *CAUSES).rows()
    assert all(sum(row[2:]) == row[1] - row[0] for row in rows)


def touches(row: dict[str, int], window: Window) -> bool:
    return row["start"] < window.end and (row["end"] > window.start or row["start"] >= window.start)


@settings(max_examples=80, deadline=None)
@given(traces())
def test_stream_gaps_by_the_nanosecond(trace: Trace) -> None:
    device = device_activity(trace, 0)
    if device is None:
        return
    threads = ThreadStates.from_trace(trace)
    places = locate_operations(trace, project_operations(trace))
    for use in stream_uses(DeviceInput(trace, device, places, threads, device_exposure(trace, device))):
        own = [
            (max(row["start"], device.window.start), min(row["end"], device.window.end))
            for row in trace.operations.iter_rows(named=True)
            if row["stream"] == use.stream and (trace.window is None or touches(row, trace.window))
        ]
        busy = {moment for start, end in own for moment in range(start, end)}
        idle = sorted(set(range(own[0][0], max(end for _, end in own))) - busy)
        assert use.busy_ns == len(busy)
        assert use.gap_ns == len(idle)
        assert use.gap_count == sum(moment - 1 not in idle for moment in idle)


@pytest.mark.parametrize("missing", [True, False])
def test_gap_without_launch_is_unknown(missing: bool) -> None:
    trace = made_trace(
        [(0, 10, "compute", 0, 0), (30, 40, "compute", 0, None if missing else 1)],
        [(0, 2, "api", 0), (20, 25, "api", 0)],
    )
    device = device_activity(trace, 0)
    assert device is not None
    causes = dict(device_gaps(trace, ThreadStates.from_trace(trace), device).causes)
    found = {name: length for name, length in causes.items() if length}
    assert found == ({"unknown": 20} if missing else {"host": 10, "launch": 5, "queued": 5})


def test_gaps_around_work_without_length_have_no_work_before_them() -> None:
    trace = made_trace([(5, 5, "compute", 0, 0)], [(0, 1, "api", 0)]).with_window(Window(0, 10))
    device = device_activity(trace, 0)
    assert device is not None
    gaps = device_gaps(trace, ThreadStates.from_trace(trace), device).frame
    assert gaps.select("start", "end", "before", "operation").rows() == [(0, 10, None, None)]
