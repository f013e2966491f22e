"""Levels of detail: the marks of a lane, merged into bins of growing widths, and the places with full detail.

Places surround listed findings, gaps and stalls, and cover three iterations.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from traceview import intervals
from traceview.intervals import EMPTY, Intervals, Times, sorted_unique
from traceview.model.analysis import Analysis, Iterations
from traceview.model.timeline.events import PageInputs
from traceview.model.timeline.marks import Marks, concatenated, reach
from traceview.model.timeline.merging import MAX_SHIFT, GroupCounts, merged
from traceview.model.timeline.rows import TimelineRow
from traceview.model.timeline.stored import AllMarks, StoredMarks

MERGE_THREADS = 4
COARSEST = 11  # 2^11 bins in the whole span: about two per pixel
FINEST = 20  # 2^20 bins in the whole span; sparse captures get finer bins
MAX_MARKS_WITHOUT_LEVELS = 8192  # the page draws so few marks at once
STEP = 2  # doublings per level; 1 costs 1.5 times the bytes and draws hardly faster
MARGIN_SHARE = 0.5  # margin on both sides of a place, as a share of its length
MIN_MARGIN = 50_000  # ns
MAX_PLACE_FRACTION = 100  # only both ends are kept of a place longer than the capture divided by this

Place = tuple[int, int]


def merged_pieces(marks: AllMarks, zero: int, shift: int) -> Marks:
    """Return `merged` of marks that may be in a file."""
    looks = marks.looks
    parts = [merged(piece, zero, shift, looks) for piece in marks.coarse(shift).pieces()]
    return parts[0] if len(parts) == 1 else merged(concatenated(parts), zero, shift)


def merged_counts(marks: AllMarks, zero: int) -> Times:
    """Return the number of marks after merging into bins of 2^shift ns, for each shift from 0 to MAX_SHIFT."""
    counts = marks.counts if isinstance(marks, StoredMarks) else GroupCounts.from_marks(marks, zero)
    return counts.by_shift()


class Level(NamedTuple):
    """One row in bins of 2^shift ns."""

    shift: int
    marks: Marks


class Widths(NamedTuple):
    """The bin widths of some rows as powers of two in ns, finest first, and the number of marks of all levels."""

    shifts: tuple[int, ...]
    marks: int

    @classmethod
    def affordable(cls, lanes: Sequence[AllMarks], zero: int, length: int, max_marks: int) -> Widths:
        """Return widths whose finest level has at most `max_marks` marks.

        A sparse capture gets a finer width than a dense one.
        """
        coarsest = max(0, length.bit_length() - COARSEST)
        finest = max(0, length.bit_length() - FINEST)
        large = [merged_counts(lane, zero) for lane in lanes if len(lane) > MAX_MARKS_WITHOUT_LEVELS]
        count = sum(large, np.zeros(MAX_SHIFT + 1, np.int64))
        while large and finest and count[finest] < max_marks // 4:
            finest = max(0, finest - 2)
        while large and finest < coarsest and count[finest] > max_marks:
            finest += 1
        return cls((*range(finest, coarsest, STEP), coarsest), int(count[finest]) * 2**STEP // (2**STEP - 1))


def levels(marks: AllMarks, zero: int, widths: Sequence[int]) -> Iterator[Level]:
    """Yield the levels of a row, finest first, until few marks are left or the bins are the widest."""
    if len(marks) <= MAX_MARKS_WITHOUT_LEVELS:
        return
    last, left = 0, merged_pieces(marks, zero, widths[0])
    for shift in widths:
        left = left if shift == widths[0] else merged(left, zero, shift)
        # Skip a level that merges little compared with the next finer level.
        if last == 0 or len(left) < 0.8 * last:
            last = len(left)
            yield Level(shift, left)
        if len(left) <= MAX_MARKS_WITHOUT_LEVELS // 2:
            return


def coarser(level: Level, zero: int) -> Level:
    """Return the level with bins of twice the width."""
    return Level(level.shift + 1, merged(level.marks, zero, level.shift + 1))


HOST_KINDS = ("call", "range", "sample")


class Lane(NamedTuple):
    """A line of marks, its levels of detail (finest first) and the looks of its marks."""

    marks: AllMarks
    on_gpu: bool
    process: int | None
    levels: Sequence[Level]
    looks: Times

    @classmethod
    def merged(cls, marks: AllMarks, on_gpu: bool, process: int | None, zero: int, widths: Widths) -> Lane:
        """Return a lane with its levels."""
        made = list(levels(marks, zero, widths.shifts))
        merges = (level.marks.merge for level in made)
        looks = next((merge.looks for merge in merges if merge is not None), None)
        return cls(marks, on_gpu, process, made, marks.looks if looks is None else looks)

    def whole(self) -> Marks:
        """Return all marks, in memory."""
        return concatenated(list(self.marks.pieces()))


def merged_lanes(rows: Sequence[TimelineRow], zero: int, length: int, max_marks: int) -> list[list[Lane]]:
    """Return the lanes of each row. Their finest levels have at most `max_marks` marks, half of them on the GPU."""
    marks = [[lane.without_zeros() for lane in row.lanes] for row in rows]
    on_gpu = [row.kind not in HOST_KINDS for row in rows]
    gpu_marks, host_marks = (
        [lane for lanes, side in zip(marks, on_gpu, strict=True) if side is wanted for lane in lanes]
        for wanted in (True, False)
    )
    gpu = Widths.affordable(gpu_marks, zero, length, max_marks // 2)
    host = Widths.affordable(host_marks, zero, length, max_marks - gpu.marks)
    # NumPy releases the interpreter lock, so lanes are merged side by side.
    with ThreadPoolExecutor(MERGE_THREADS) as pool:
        merging = [
            [pool.submit(Lane.merged, lane, side, row.process, zero, gpu if side else host) for lane in lanes]
            for row, side, lanes in zip(rows, on_gpu, marks, strict=True)
        ]
        return [[lane.result() for lane in lanes] for lanes in merging]


def places(inputs: PageInputs, lanes: Sequence[Lane], max_events: int) -> Intervals:
    """Return the union of the places with full detail.

    The most important places come first. A place is left out when the events would exceed `max_events`.
    """
    kept, events = [], 0
    important = (*_important_places(inputs), *inputs.events.worst_calls)
    for start, end in _with_surroundings(important, inputs.events.span.length):
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


def _important_places(inputs: PageInputs) -> Iterator[Place]:
    findings = (finding for shown in inputs.parts for finding in shown.findings)
    evidence = list(dict.fromkeys(part.evidence for finding in findings for part in finding.by_device))
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
            launched = np.flatnonzero(np.isin(piece.details["correlation"], correlations))
            rows = sorted_unique(np.concatenate([rows, launched]))
        parts.append(piece.take(rows))
    return concatenated(parts) if parts else marks.take(slice(0, 0))


def _touching_rows(marks: Marks, cover: Intervals) -> Times:
    """Return the rows of marks that touch any of the disjoint stretches, ascending."""
    first = np.searchsorted(reach(marks.end), cover.start, "left")
    last = np.maximum(np.searchsorted(marks.start, cover.end, "right"), first)
    first = np.maximum(first, np.append(np.zeros(1, np.int64), last[:-1])[: len(first)])
    stretches = zip(first, last, cover.start, strict=True)
    parts = [at + np.flatnonzero(marks.end[at:to] >= begin) for at, to, begin in stretches]
    return np.concatenate([np.empty(0, np.int64), *parts])
