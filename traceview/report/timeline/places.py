"""The places that the page shows in full detail: they surround findings, gaps and stalls, and cover iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Times, is_sorted, sorted_unique
from traceview.model.analysis import Analysis, Iterations, SyncUse
from traceview.report.timeline.inputs import PageInputs
from traceview.report.timeline.levels import Lane
from traceview.report.timeline.marks import Marks

MARGIN_SHARE = 0.5  # margin on both sides of a place, as a share of its length
MIN_MARGIN = 50_000  # ns
MAX_PLACE_FRACTION = 100  # only both ends are kept of a place longer than the capture divided by this
MAX_CALLS = 10
MAX_SPAN = 1 << 26  # correlation ids in a table, which takes a byte for each

Place = tuple[int, int]


def places(inputs: PageInputs, lanes: Sequence[Lane], max_events: int) -> Intervals:
    """Return the union of the places with full detail.

    The most important places come first. A place is left out when the events would exceed `max_events`.
    """
    kept, events = [], 0
    for start, end in _with_surroundings(_important_places(inputs), inputs.span.length):
        more = sum(int(np.diff(np.searchsorted(lane.marks.start, (start, end)))[0]) for lane in lanes)
        if events + more <= max_events:
            kept.append((start, end))
            events += more
    if not kept:
        return EMPTY
    ends = np.array(kept, np.int64)
    return intervals.union(ends[:, 0], ends[:, 1])


def _with_surroundings(important: Iterator[Place], length: int) -> Iterator[Place]:
    longest = length // MAX_PLACE_FRACTION
    for start, end in important:
        margin = min(max(int((end - start) * MARGIN_SHARE), MIN_MARGIN), longest)
        if end - start <= longest:
            yield start - margin, end + margin
        else:
            yield start - margin, start + margin
            yield end - margin, end + margin


def _important_places(inputs: PageInputs) -> Iterator[Place]:
    findings = (finding for shown in inputs.analyses for finding in shown.findings)
    evidence = list(dict.fromkeys(use.evidence for finding in findings for use in finding.by_device))
    # The first place of every finding comes before the second place of any.
    for rank in range(max((len(finding_places) for finding_places in evidence), default=0)):
        yield from (
            (finding_places[rank].start_ns, finding_places[rank].end_ns)
            for finding_places in evidence
            if rank < len(finding_places)
        )
    yield from _iterations(inputs.analysis)
    for device in inputs.analysis.devices:
        yield from ((gap.start_ns, gap.end_ns) for gap in device.gaps.longest)
    host = inputs.analysis.host
    yield from (*_costliest_calls(host.sync), *_costliest_calls(host.implicit_sync))


def _iterations(analysis: Analysis) -> Iterator[Place]:
    """Yield the median, the fastest and the slowest of the steady iterations."""
    if not isinstance(analysis.iterations, Iterations):
        return
    each = [iteration for iteration in analysis.iterations.per_iteration if not iteration.skipped]
    each.sort(key=lambda iteration: (iteration.wall_ns, iteration.start_ns))
    if each:
        yield from ((iteration.start_ns, iteration.end_ns) for iteration in (each[len(each) // 2], each[0], each[-1]))


def _costliest_calls(use: SyncUse) -> Iterator[Place]:
    """Yield the costliest calls; among equally costly ones, the first."""
    first = np.argsort(-use.frame["cost"].to_numpy(), kind="stable")[:MAX_CALLS]
    yield from use.frame.select("start", "end")[first].iter_rows()


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


def _chosen_marks(marks: Marks, cover: Intervals, correlations: Times) -> Marks:
    """Return the marks that touch the stretches in `cover` or have one of the correlation ids, which ascend."""
    rows = _touching_rows(marks, cover)
    if len(correlations) and "correlation" in marks.details:
        # A table of the ids is ten times as fast as a search, and small: ids of one capture are close to each other.
        are_close = correlations[-1] - correlations[0] < MAX_SPAN
        chosen = np.isin(marks.details["correlation"], correlations, kind="table" if are_close else None)
        launched = np.flatnonzero(chosen)
        rows = sorted_unique(np.concatenate([rows, launched]))
    return marks.take(rows)


def _touching_rows(marks: Marks, cover: Intervals) -> Times:
    """Return the rows of marks that touch any of the disjoint stretches, ascending."""
    latest = marks.end if is_sorted(marks.end) else np.maximum.accumulate(marks.end)  # the latest end up to each mark
    first = np.searchsorted(latest, cover.start, "left")
    last = np.maximum(np.searchsorted(marks.start, cover.end, "right"), first)
    first = np.maximum(first, np.append(np.zeros(1, np.int64), last[:-1])[: len(first)])
    stretches = zip(first, last, cover.start, strict=True)
    rows = [at + np.flatnonzero(marks.end[at:to] >= begin) for at, to, begin in stretches]
    return np.concatenate([np.empty(0, np.int64), *rows])
