"""Where full detail matters: around every listed finding, gap and stall, and three telling iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Times, sorted_unique
from traceview.model.analysis import Analysis, Iterations
from traceview.report.timeline.lane import Lane
from traceview.report.timeline.marks import Marks, Numbers, reach

LONGEST_CALLS = 10
AROUND = 0.5  # of a place's own length, on both sides
LEAST_AROUND = 50_000  # ns
SHORT = 100  # a place longer than the capture divided by this is kept at both its ends alone
LOW_BITS = (1 << 20) - 1

Place = tuple[int, int]


def places(analysis: Analysis, length: int, lanes: Sequence[Lane], max_events: int) -> Intervals:
    """Return the union of the places that stay in full; `length` is the whole span in ns.

    The most telling come first. A place is left out if it brings the kept events above `max_events`.
    """
    kept, events = [], 0
    for start, end in _with_surroundings(analysis, length):
        starts = (lane.marks.start for lane in lanes)
        more = sum(int(np.searchsorted(one, end) - np.searchsorted(one, start)) for one in starts)
        if events + more <= max_events:
            kept.append((start, end))
            events += more
    if not kept:
        return EMPTY
    ends = np.array(kept, np.int64)
    return intervals.union(ends[:, 0], ends[:, 1])


def _with_surroundings(analysis: Analysis, length: int) -> Iterator[Place]:
    longest = length // SHORT
    for start, end in _telling(analysis):
        around = min(max(int((end - start) * AROUND), LEAST_AROUND), longest)
        if end - start <= longest:
            yield start - around, end + around
        else:
            yield start - around, start + around
            yield end - around, end + around


def _telling(analysis: Analysis) -> Iterator[Place]:
    evidence = [finding.evidence for finding in analysis.findings]
    # The worst place of every finding before the second of any.
    for rank in range(max((len(one) for one in evidence), default=0)):
        yield from ((one[rank].start_ns, one[rank].end_ns) for one in evidence if rank < len(one))
    yield from _iterations(analysis)
    for device in analysis.devices:
        yield from ((gap.start_ns, gap.end_ns) for gap in device.gaps.longest)
    for use in (analysis.host.sync, analysis.host.implicit_sync):
        cost = (use.frame["starved"] + use.frame["refill"]).to_numpy()
        worst = np.argsort(-cost, kind="stable")[:LONGEST_CALLS]
        yield from use.frame.select("start", "end")[worst].iter_rows()


def _iterations(analysis: Analysis) -> Iterator[Place]:
    """Yield the median, the best and the worst of the iterations that count."""
    if not isinstance(analysis.iterations, Iterations):
        return
    each = [one for one in analysis.iterations.per_iteration if not one.skipped]
    each.sort(key=lambda one: (one.wall_ns, one.start_ns))
    if each:
        yield from ((one.start_ns, one.end_ns) for one in (each[len(each) // 2], each[0], each[-1]))


def kept_marks(lanes: Sequence[Lane], cover: Intervals) -> list[Marks]:
    """Return the marks of each lane that touch the places in full, and the host calls that launched them."""
    touching = {id(lane): _touching(lane.marks, cover) for lane in lanes}
    for lane in lanes:
        if not lane.on_gpu and "correlation" in lane.marks.details:
            rows = np.concatenate([touching[id(lane)], _launching(lane, lanes, touching)])
            touching[id(lane)] = sorted_unique(rows)
    return [lane.marks.take(touching[id(lane)]) for lane in lanes]


def _launching(host: Lane, lanes: Sequence[Lane], touching: Mapping[int, Times]) -> Times:
    launched = [
        lane.marks.details["correlation"][touching[id(lane)]]
        for lane in lanes
        if lane.on_gpu and lane.process == host.process and "correlation" in lane.marks.details
    ]
    numbers = np.unique(np.concatenate([np.empty(0, np.int64), *launched]))
    return _rows_with(host.marks.details["correlation"], numbers[numbers > 0])


def _rows_with(values: Numbers, numbers: Numbers) -> Times:
    """Return the rows whose value is one of some numbers. A table of the lowest bits finds the candidates."""
    table = np.zeros(LOW_BITS + 1, np.bool_)
    table[numbers & LOW_BITS] = True
    rows = np.flatnonzero(table[values & LOW_BITS])
    return rows[np.isin(values[rows], numbers)]


def _touching(marks: Marks, cover: Intervals) -> Times:
    """Return the rows of the marks that touch one of some disjoint stretches, ascending."""
    first = np.searchsorted(reach(marks.end), cover.start, "left")
    last = np.maximum(np.searchsorted(marks.start, cover.end, "right"), first)
    first = np.maximum(first, np.append(np.zeros(1, np.int64), last[:-1])[: len(first)])
    stretches = zip(first, last, cover.start, strict=True)
    parts = [at + np.flatnonzero(marks.end[at:to] >= begin) for at, to, begin in stretches]
    return np.concatenate([np.empty(0, np.int64), *parts])
