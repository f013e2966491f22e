"""A Perfetto trace, read back by Perfetto's own protobuf classes, adds up to the capture."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import ALL, sample, shared
from tests.export.decode import decode
from tests.export.sums import added, of_idle, of_operations
from tests.made_trace import made_trace
from traceview.export import collect
from traceview.model.trace import Trace
from traceview.pipeline import analyze, open_trace

TRAINER = ["trainer/ddp.sqlite", "trainer/graph.sqlite"]
WORK = ("kernel", "communication", "graph", "copy", "memset")


def capture(name: str) -> Path:
    return shared(name) if name in ALL else sample(name)


@pytest.mark.parametrize("name", [*ALL, *TRAINER])
def test_every_event_is_there_with_its_exact_times(name: str) -> None:
    trace = open_trace(capture(name))
    slices = decode(collect(trace)).slices
    work = [one for one in slices if one.category in WORK]
    assert added(((*one.row, one.name), one.end - one.start) for one in work) == of_operations(trace)
    assert sorted(one.start for one in work) == trace.operations["start"].to_list()
    for category, frame in (("cuda_api", trace.api), ("nvtx", trace.ranges)):
        mine = [one for one in slices if one.category == category]
        found = Counter((one.name, one.start, one.end) for one in mine)
        assert found == Counter(frame.select("name", "start", "end").iter_rows())


def test_every_launch_points_to_its_work_and_to_no_other() -> None:
    trace = open_trace(sample("cudagraph.sqlite"))
    slices = decode(collect(trace)).slices
    calls = {flow: one for one in slices if one.category == "cuda_api" for flow in one.flows}
    work = {flow: one for one in slices if one.category in WORK for flow in one.flows}
    assert calls.keys() == work.keys()
    assert len(calls) == trace.operations["launch"].count() > 0
    assert all(dict(calls[flow].arguments)["correlation"] == dict(work[flow].arguments)["correlation"] for flow in work)


def test_idle_time_adds_up_by_cause_and_covers_the_gaps() -> None:
    trace = open_trace(sample("ddp2.sqlite"))
    analysis = analyze(trace)
    idle = [one for one in decode(collect(trace)).slices if one.category == "idle"]
    sums = added(((one.row[0], one.name), one.end - one.start) for one in idle)
    assert {key: ns for key, (_, ns) in sums.items()} == of_idle(analysis)
    for device in analysis.devices:
        mine = [one for one in idle if one.row[0].startswith(device.id)]
        assert len({one.arguments for one in mine}) == device.gaps.count


def test_copies_carry_bytes_and_their_counter_adds_up_to_them() -> None:
    trace = open_trace(sample("dual.sqlite"))
    found = decode(collect(trace))
    copies = [dict(one.arguments) for one in found.slices if one.category == "copy"]
    by_kind = trace.operations.filter(trace.operations["kind"].is_not_null()).group_by("kind").agg(bytes="bytes")
    for kind, sizes in by_kind.iter_rows():
        assert sorted(int(one["bytes"]) for one in copies if one["kind"] == kind) == sorted(sizes)
        rate = sorted((at, value) for row, at, value in found.counters if row[-1] == f"{kind} bytes/s")
        moved = sum(value * (after[0] - at) for (at, value), after in pairwise(rate)) / 1e9
        assert moved == pytest.approx(sum(sizes), rel=1e-6)
        assert rate[-1][1] == 0


OPERATIONS = st.lists(
    st.tuples(
        st.integers(-4, 12), st.integers(0, 5), st.sampled_from(("compute", "copy", "memset")), st.integers(0, 1)
    ),
    max_size=8,
)
SPANS = st.lists(st.tuples(st.integers(-4, 12), st.integers(0, 6), st.integers(0, 1)), max_size=8)


@given(OPERATIONS, SPANS, SPANS)
@settings(max_examples=100)
def test_overlaps_points_and_ties_lose_nothing(
    operations: list[tuple[int, int, str, int]],
    calls: list[tuple[int, int, int]],
    ranges: list[tuple[int, int, int]],
) -> None:
    trace = made_trace(
        [
            (start, start + length, kind, stream, index if index < len(calls) else None)
            for index, (start, length, kind, stream) in enumerate([*operations, (0, 1, "compute", 0)])
        ],
        [(start, start + length, "api", thread) for start, length, thread in calls],
        [(start, start + length, f"range {index}", thread) for index, (start, length, thread) in enumerate(ranges)],
    )
    found = decode(collect(trace)).slices
    moved = -min(0, *(one.start for one in found), *_starts(trace))
    seen = Counter((one.category, one.name, one.start, one.end) for one in found if one.category != "idle")
    assert seen == Counter(_expected(trace, moved))


def _starts(trace: Trace) -> list[int]:
    return [start for frame in (trace.operations, trace.api, trace.ranges) for start in frame["start"].to_list()]


def _expected(trace: Trace, moved: int) -> list[tuple[str, str, int, int]]:
    work = {"compute": "kernel"}
    return [
        *(
            (work.get(kind, kind), name, start + moved, end + moved)
            for kind, name, start, end in trace.operations.select("class", "name", "start", "end").iter_rows()
        ),
        *(
            (category, name, start + moved, end + moved)
            for category, frame in (("cuda_api", trace.api), ("nvtx", trace.ranges))
            for name, start, end in frame.select("name", "start", "end").iter_rows()
        ),
    ]
