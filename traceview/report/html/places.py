"""Where full detail matters: around every finding, gap and stall that is listed, and three telling iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from traceview import intervals
from traceview.intervals import EMPTY, Intervals
from traceview.model import Analysis, Iterations
from traceview.report.html.marks import Marks

LONGEST_CALLS = 10
AROUND = 0.5  # of a place's own length, on both sides
LEAST_AROUND = 50_000  # ns
SHORT = 100  # a place longer than the capture divided by this is kept at both its ends alone

Place = tuple[int, int]


def places(analysis: Analysis, length: int, lanes: Sequence[Marks], most: int) -> Intervals:
    """Return the union of the places that stay in full, `length` ns being the whole span.

    The most telling come first; one that would bring the events kept above `most` is left out.
    """
    kept, events = [], 0
    for start, end in _with_surroundings(analysis, length):
        more = sum(int(np.searchsorted(marks.start, end) - np.searchsorted(marks.start, start)) for marks in lanes)
        if events + more <= most:
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
