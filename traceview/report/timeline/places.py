"""Places with full detail: around listed findings, gaps and stalls, and in three iterations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Times, sorted_unique
from traceview.model.analysis import Analysis, Iterations
from traceview.report.timeline.levels import Lane
from traceview.report.timeline.marks import Marks, Numbers, reach

MAX_CALLS = 10
MARGIN_SHARE = 0.5  # margin on both sides of a place, as a share of its length
MIN_MARGIN = 50_000  # ns
MAX_PLACE_FRACTION = 100  # only both ends are kept of a place longer than the capture divided by this
LOW_BITS = (1 << 20) - 1

Place = tuple[int, int]


def places(analysis: Analysis, length: int, lanes: Sequence[Lane], max_events: int) -> Intervals:
    """Return the union of the places with full detail; `length` is the timeline's span in ns.

    The most important places come first. A place is left out when the events would exceed `max_events`.
    """
    kept, events = [], 0
    for start, end in _with_surroundings(analysis, length):
        starts = (lane.marks.start for lane in lanes)
        more = sum(
            int(np.searchsorted(lane_starts, end) - np.searchsorted(lane_starts, start)) for lane_starts in starts
        )
        if events + more <= max_events:
            kept.append((start, end))
            events += more
    if not kept:
        return EMPTY
    ends = np.array(kept, np.int64)
    return intervals.union(ends[:, 0], ends[:, 1])


def _with_surroundings(analysis: Analysis, length: int) -> Iterator[Place]:
    longest = length // MAX_PLACE_FRACTION
    for start, end in _important_places(analysis):
        margin = min(max(int((end - start) * MARGIN_SHARE), MIN_MARGIN), longest)
        if end - start <= longest:
            yield start - margin, end + margin
        else:
            yield start - margin, start + margin
            yield end - margin, end + margin


def _important_places(analysis: Analysis) -> Iterator[Place]:
    findings = (finding for shown in analysis.parts() for finding in shown.findings)
    evidence = list(dict.fromkeys(part.evidence for finding in findings for part in finding.by_device))
    # The first place of every finding comes before the second place of any.
    for rank in range(max((len(finding_places) for finding_places in evidence), default=0)):
        yield from (
            (finding_places[rank].start_ns, finding_places[rank].end_ns)
            for finding_places in evidence
            if rank < len(finding_places)
        )
    yield from _iterations(analysis)
    for device in analysis.devices:
        yield from ((gap.start_ns, gap.end_ns) for gap in device.gaps.longest)
    for use in (analysis.host.sync, analysis.host.implicit_sync):
        cost = use.frame["cost"].to_numpy()
        worst = np.argsort(-cost, kind="stable")[:MAX_CALLS]
        yield from use.frame.select("start", "end")[worst].iter_rows()


def _iterations(analysis: Analysis) -> Iterator[Place]:
    """Yield the median, the fastest and the slowest of the steady iterations."""
    if not isinstance(analysis.iterations, Iterations):
        return
    each = [iteration for iteration in analysis.iterations.per_iteration if not iteration.skipped]
    each.sort(key=lambda iteration: (iteration.wall_ns, iteration.start_ns))
    if each:
        yield from ((iteration.start_ns, iteration.end_ns) for iteration in (each[len(each) // 2], each[0], each[-1]))


def kept_marks(lanes: Sequence[Lane], cover: Intervals) -> list[Marks]:
    """Return the marks of each lane that touch the stretches in `cover`, and the calls that launched them."""
    touching = {id(lane): _touching_rows(lane.marks, cover) for lane in lanes}
    for lane in lanes:
        if not lane.on_gpu and "correlation" in lane.marks.details:
            rows = np.concatenate([touching[id(lane)], _launching_calls(lane, lanes, touching)])
            touching[id(lane)] = sorted_unique(rows)
    return [lane.marks.take(touching[id(lane)]) for lane in lanes]


def _launching_calls(host: Lane, lanes: Sequence[Lane], touching: Mapping[int, Times]) -> Times:
    launched = [
        lane.marks.details["correlation"][touching[id(lane)]]
        for lane in lanes
        if lane.on_gpu and lane.process == host.process and "correlation" in lane.marks.details
    ]
    numbers = np.unique(np.concatenate([np.empty(0, np.int64), *launched]))
    return _rows_with(host.marks.details["correlation"], numbers[numbers > 0])


def _rows_with(values: Numbers, numbers: Numbers) -> Times:
    """Return the rows whose value is among `numbers`. A table of the lowest bits selects candidates."""
    table = np.zeros(LOW_BITS + 1, np.bool_)
    table[numbers & LOW_BITS] = True
    rows = np.flatnonzero(table[values & LOW_BITS])
    return rows[np.isin(values[rows], numbers)]


def _touching_rows(marks: Marks, cover: Intervals) -> Times:
    """Return the rows of marks that touch any of the disjoint stretches, ascending."""
    first = np.searchsorted(reach(marks.end), cover.start, "left")
    last = np.maximum(np.searchsorted(marks.start, cover.end, "right"), first)
    first = np.maximum(first, np.append(np.zeros(1, np.int64), last[:-1])[: len(first)])
    stretches = zip(first, last, cover.start, strict=True)
    parts = [at + np.flatnonzero(marks.end[at:to] >= begin) for at, to, begin in stretches]
    return np.concatenate([np.empty(0, np.int64), *parts])
