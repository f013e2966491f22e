"""Tests of the charts against counts of single nanoseconds, gaps, copies and iterations."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.captures import ALL, analyzed, shared
from tests.made_trace import made_trace
from tests.measured import charts_of, measured
from traceview.measure.charts import LENGTH_EDGES, copy_groups, streams_at_once
from traceview.model.analysis import Iteration
from traceview.model.charts import CopyGroup, iteration_bars
from traceview.model.trace import CopyKind, Memory, Trace, Window

SPAN = st.tuples(st.integers(0, 200), st.integers(0, 40))
OPERATION = st.builds(
    lambda span, work, stream: (span[0], span[0] + span[1], work, stream, None),
    SPAN,
    st.sampled_from(["compute", "communication", "copy", "memset"]),
    st.integers(0, 3),
)
OPERATIONS = st.lists(OPERATION, min_size=1, max_size=30)
WINDOW = st.one_of(
    st.none(), st.builds(lambda at, long: Window(at, at + long), st.integers(0, 150), st.integers(1, 90))
)


def moments(trace: Trace, stream: int, window: Window) -> set[int]:
    rows = trace.operations.filter(pl.col("stream") == stream).select("start", "end").iter_rows()
    return {at for start, end in rows for at in range(max(start, window.start), min(end, window.end))}


@settings(deadline=None)
@given(OPERATIONS, WINDOW)
def test_streams_at_once_counts_shared_nanoseconds(
    operations: list[tuple[int, int, str, int, None]], window: Window | None
) -> None:
    start, end = (window.start, window.end) if window else (0, 1000)
    assume(any(first < end and last > start for first, last, *_ in operations))
    analysis = measured(made_trace(operations, window=window))
    for device, chart in zip(analysis.devices, charts_of(analysis).devices, strict=True):
        found = chart.streams
        busy = {stream: moments(analysis.trace, stream, device.window) for stream in found.streams}
        expected = tuple(tuple(len(busy[one] & busy[other]) for other in found.streams) for one in found.streams)
        assert found.together_ns == expected
        assert [row[at] for at, row in enumerate(expected)] == sorted((len(one) for one in busy.values()), reverse=True)


def test_limit_keeps_the_busiest_streams() -> None:
    trace = made_trace([(0, 10 * (stream + 1), "compute", stream, None) for stream in range(6)])
    [device] = measured(trace).devices
    found = streams_at_once(trace, device, limit=3)
    assert found.streams == (5, 4, 3) and found.left_out == 3
    assert found.together_ns == ((60, 50, 40), (50, 50, 40), (40, 40, 40))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(1, 9)), min_size=1, max_size=25), st.booleans())
def test_gap_lengths_add_up(steps: list[tuple[int, int]], launched: bool) -> None:
    at, operations, calls = 10_000, [], []
    for place, (gap, length) in enumerate(steps):
        calls.append((at, at + gap // 2, "api", 0))
        at += gap
        operations.append((at, at + length, "compute", 0, place if launched else None))
        at += length
    [device] = (analysis := measured(made_trace(operations, calls))).devices
    [chart] = charts_of(analysis).devices
    gaps = list(device.gaps.frame.iter_rows(named=True))
    for one in chart.gaps:
        members = [gap for gap in gaps if one.from_ns <= gap["end"] - gap["start"] < one.to_ns]
        assert one.count == len(members) > 0
        assert one.causes == {
            cause: total for cause in device.gaps.causes if (total := sum(gap[cause] for gap in members))
        }
        longest = max(members, key=lambda gap: (gap["end"] - gap["start"], -gap["start"]))
        assert one.longest == Window(longest["start"], longest["end"])
    assert sum(one.count for one in chart.gaps) == len(gaps)


def test_edges_are_round_numbers() -> None:
    assert LENGTH_EDGES[:7].tolist() == [1, 2, 5, 10, 20, 50, 100]
    assert (LENGTH_EDGES[1:] > LENGTH_EDGES[:-1]).all()


COPY = st.tuples(
    st.integers(0, 100_000),
    st.integers(0, 70),
    st.integers(0, 5000),
    st.sampled_from(["h2d", "d2h", "d2d"]),
    st.sampled_from(["pinned", "pageable"]),
)


def trace_of_copies(copies: list[tuple[int, int, int, str, str]]) -> Trace:
    copies = sorted(copies)
    trace = made_trace([(start, start + length, "copy", 0, None) for start, length, *_ in copies])
    columns = {
        "bytes": pl.Series("bytes", [one[2] for one in copies], pl.Int64),
        "kind": pl.Series("kind", [one[3] for one in copies], CopyKind),
        "memory": pl.Series("memory", [one[4] for one in copies], Memory),
    }
    return replace(trace, operations=trace.operations.with_columns(**columns))


@settings(deadline=None)
@given(st.lists(COPY, min_size=1, max_size=40), st.sampled_from([6, 12, 100]))
def test_copy_groups_have_every_copy(copies: list[tuple[int, int, int, str, str]], most: int) -> None:
    analysis = measured(trace := trace_of_copies(copies))
    [device] = analysis.devices
    groups, left_out = copy_groups(trace, device.device, most)
    fit = [one for one in copies if one[1] and one[2]]
    assert left_out == len(copies) - len(fit)
    assert len(groups) == len(fit) or most < len(fit)
    for kind, memory in {(one.kind, one.memory) for one in groups} | {(one[3], one[4]) for one in fit}:
        mine = [one for one in groups if (one.kind, one.memory) == (kind, memory)]
        theirs = [one for one in fit if one[3:] == (kind, memory)]
        assert sum(one.count for one in mine) == len(theirs)
        assert sum(one.bytes for one in mine) == sum(one[2] for one in theirs)
        assert sum(one.duration_ns for one in mine) == sum(one[1] for one in theirs)
    assert all(is_one_of(one, fit) for one in groups)


def is_one_of(group: CopyGroup, copies: list[tuple[int, int, int, str, str]]) -> bool:
    """Return whether the slowest copy of a group is one of `copies` and not faster than the group's average."""
    length = group.slowest.end - group.slowest.start
    sizes = [
        size
        for start, long, size, kind, memory in copies
        if (start, long, kind, memory) == (group.slowest.start, length, group.kind, group.memory)
    ]
    return any(size * group.duration_ns <= group.bytes * length for size in sizes)


def made_iteration(place: int, skipped: bool, wall: int) -> Iteration:
    idle = {"launch": place % 3, "host": wall}
    return Iteration(
        f"iteration {place}", place, place + wall, skipped, wall, 2 * wall, 3, 5, 0, 7, wall, idle, 11, 13, None
    )


@given(st.integers(0, 5), st.lists(st.integers(0, 50), max_size=60), st.integers(1, 20))
def test_bars_have_every_iteration_once(warm_up: int, walls: list[int], most: int) -> None:
    each = [made_iteration(place, place < warm_up, wall) for place, wall in enumerate(walls)]
    bars = iteration_bars(each, most)
    assert [at for bar in bars for at in range(bar.first, bar.first + bar.count)] == list(range(len(each)))
    assert len(bars) <= most + 2
    for bar in bars:
        members = each[bar.first : bar.first + bar.count]
        assert {one.skipped for one in members} == {bar.skipped}
        assert each[bar.slowest] in members and each[bar.slowest].wall_ns == max(one.wall_ns for one in members)
        assert bar.wall_ns == sum(one.wall_ns for one in members)
        assert bar.parts.get("compute", 0) == sum(one.compute_ns for one in members)
        assert bar.parts["exposed_h2d"] == 5 * len(members) and "exposed_d2h" not in bar.parts
        assert bar.parts.get("idle_launch", 0) == sum(one.idle["launch"] for one in members)


@pytest.mark.parametrize("name", [name for name in ALL if "nvtx_textid_only" not in name])
def test_charts_add_up_to_the_analysis(name: str) -> None:
    analysis = analyzed(shared(name))
    for device, chart in zip(analysis.devices, charts_of(analysis).devices, strict=True):
        busy = {use.stream: use.busy_ns for use in device.streams}
        assert {
            stream: row[at]
            for at, (stream, row) in enumerate(zip(chart.streams.streams, chart.streams.together_ns, strict=True))
        }.items() <= busy.items()
        assert sum(one.count for one in chart.gaps) == device.gaps.count
        for cause, total in device.gaps.causes.items():
            assert sum(one.causes.get(cause, 0) for one in chart.gaps) == total
        assert sum(one.count for one in chart.copies) + chart.copies_left_out == sum(one.count for one in device.copies)
        assert sum(one.bytes for one in chart.copies) <= sum(one.bytes for one in device.copies)
