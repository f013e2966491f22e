"""Places with full detail: around listed findings, gaps and stalls, and in three iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Times, sorted_unique
from traceview.model.analysis import Analysis, Iterations
from traceview.report.timeline.levels import Lane
from traceview.report.timeline.marks import Marks, Numbers, concatenated, reach
from traceview.report.timeline.stored import AllMarks

MARGIN_SHARE = 0.5  # margin on both sides of a place, as a share of its length
MIN_MARGIN = 50_000  # ns
MAX_PLACE_FRACTION = 100  # only both ends are kept of a place longer than the capture divided by this
LOW_BITS = (1 << 20) - 1

Place = tuple[int, int]


def places(
    analysis: Analysis, worst_calls: Sequence[Place], length: int, lanes: Sequence[Lane], max_events: int
) -> Intervals:
    """Return the union of the places with full detail; `length` is the timeline's span in ns.

    The most important places come first. A place is left out when the events would exceed `max_events`.
    """
    kept, events = [], 0
    for start, end in _with_surroundings((*_important_places(analysis), *worst_calls), length):
        more = sum(lane.marks.count_starting(start, end, max_events) for lane in lanes)
        if events + more <= max_events:
            kept.append((start, end))
            events += more
    if not kept:
        return EMPTY
    ends = np.array(kept, np.int64)
    return intervals.union(ends[:, 0], ends[:, 1])


def _with_surroundings(important: Sequence[Place], length: int) -> Iterator[Place]:
    longest = length // MAX_PLACE_FRACTION
    for start, end in important:
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
    kept = {id(lane): _chosen_marks(lane.marks, cover, EMPTY.start) for lane in lanes if lane.on_gpu}
    for lane in lanes:
        if not lane.on_gpu:
            launched = [
                work.details["correlation"]
                for other in lanes
                if other.on_gpu and other.process == lane.process
                if "correlation" in (work := kept[id(other)]).details
            ]
            numbers = np.unique(np.concatenate([np.empty(0, np.int64), *launched]))
            kept[id(lane)] = _chosen_marks(lane.marks, cover, numbers[numbers > 0])
    return [kept[id(lane)] for lane in lanes]


def _chosen_marks(marks: AllMarks, cover: Intervals, correlations: Times) -> Marks:
    """Return the marks that touch the stretches in `cover` or have one of the correlation ids."""
    parts = []
    for piece in marks.near(cover, correlations):
        rows = _touching_rows(piece, cover)
        if len(correlations) and "correlation" in piece.details:
            rows = sorted_unique(np.concatenate([rows, _rows_with(piece.details["correlation"], correlations)]))
        parts.append(piece.take(rows))
    return concatenated(parts) if parts else marks.take(slice(0, 0))


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
