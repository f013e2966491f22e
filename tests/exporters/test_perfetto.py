"""A Perfetto trace, decoded by Perfetto's protobuf classes, holds all events of the capture."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import ALL, sample, shared
from tests.exporters.decode import decode
from tests.exporters.sums import add_up, idle_sums, operation_sums
from tests.made_trace import made_trace
from traceview.captures.export import collect
from traceview.model.trace import Trace
from traceview.pipeline import analyze, open_trace

TRAINER = ["trainer/ddp.sqlite", "trainer/graph.sqlite"]
WORK = ("kernel", "communication", "graph", "copy", "memset")


def capture(name: str) -> Path:
    return shared(name) if name in ALL else sample(name)


@pytest.mark.parametrize("name", [*ALL, *TRAINER])
def test_all_events_with_exact_times(name: str) -> None:
    trace = open_trace(capture(name))
    slices = decode(collect(trace)).slices
    work = [item for item in slices if item.category in WORK]
    assert add_up(((*item.row, item.name), item.end - item.start) for item in work) == operation_sums(trace)
    assert sorted(item.start for item in work) == trace.operations["start"].to_list()
    for category, frame in (("cuda_api", trace.api), ("nvtx", trace.ranges)):
        mine = [item for item in slices if item.category == category]
        listed = Counter((item.name, item.start, item.end) for item in mine)
        assert listed == Counter(frame.select("name", "start", "end").iter_rows())


def test_arrows_from_launches_to_operations() -> None:
    trace = open_trace(sample("cudagraph.sqlite"))
    slices = decode(collect(trace)).slices
    calls = {event: item for item in slices if item.category == "cuda_api" for event in item.events}
    work = {event: item for item in slices if item.category in WORK for event in item.events}
    assert len(work) == len(trace.operations) and calls.keys() <= work.keys()
    assert len(calls) == trace.operations["launch"].count() > 0
    for event, call in calls.items():
        assert dict(call.arguments)["correlation"] == dict(work[event].arguments)["correlation"]


def test_idle_time_by_cause() -> None:
    trace = open_trace(sample("ddp2.sqlite"))
    analysis = analyze(trace)
    idle = [item for item in decode(collect(trace)).slices if item.category == "idle"]
    sums = add_up(((item.row[0], item.name), item.end - item.start) for item in idle)
    assert {key: ns for key, (_, ns) in sums.items()} == idle_sums(analysis)
    for device in analysis.devices:
        mine = [item for item in idle if item.row[0].startswith(device.id)]
        assert len({item.arguments for item in mine}) == device.gaps.count


def test_copy_bytes_and_throughput_counter() -> None:
    trace = open_trace(sample("dual.sqlite"))
    listed = decode(collect(trace))
    copies = [dict(item.arguments) for item in listed.slices if item.category == "copy"]
    by_kind = trace.operations.filter(trace.operations["kind"].is_not_null()).group_by("kind").agg(bytes="bytes")
    for kind, sizes in by_kind.iter_rows():
        assert sorted(int(item["bytes"]) for item in copies if item["kind"] == kind) == sorted(sizes)
        rate = sorted((at, value) for row, at, value in listed.counters if row[-1] == f"{kind} copies")
        moved = sum(value * (at - before) for (before, _), (at, value) in pairwise(rate)) / 1e9
        assert moved == pytest.approx(sum(sizes), rel=1e-6)


OPERATIONS = st.lists(
    st.tuples(
        st.integers(-4, 12), st.integers(0, 5), st.sampled_from(("compute", "copy", "memset")), st.integers(0, 1)
    ),
    max_size=8,
)
SPANS = st.lists(st.tuples(st.integers(-4, 12), st.integers(0, 6), st.integers(0, 1)), max_size=8)


@given(OPERATIONS, SPANS, SPANS)
@settings(max_examples=60)
def test_overlaps_points_and_ties(
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
    listed = decode(collect(trace)).slices
    moved = -min(0, *(item.start for item in listed), *_starts(trace))
    seen = Counter((item.category, item.name, item.start, item.end) for item in listed if item.category != "idle")
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
