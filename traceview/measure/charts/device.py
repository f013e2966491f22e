"""A device's charts: streams that are busy together, gaps by length, copies by size (docs/definitions.md "Charts")."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times
from traceview.measure.activity import overlaps_window
from traceview.measure.sums import sums_by_owner
from traceview.model.charts import CopyGroup, GapLengths, StreamsAtOnce
from traceview.model.devices import CAUSES, DeviceUse
from traceview.model.rows import StreamUse
from traceview.model.trace import KINDS, MEMORIES, Trace, Window

MAX_STREAMS = 16
MAX_COPY_GROUPS = 1000
STEPS_PER_DOUBLING = (8, 4, 2, 1)  # steps of size or duration; the first that gives at most MAX_COPY_GROUPS is used
# 1, 2, 5, 10, 20, 50, ... ns
LENGTH_EDGES = np.array([step * 10**power for power in range(18) for step in (1, 2, 5)], np.int64)


def streams_at_once(trace: Trace, device: DeviceUse, limit: int = MAX_STREAMS) -> StreamsAtOnce:
    """Measure how long each pair of a device's `limit` busiest streams was busy at the same time, in its window."""
    chosen = sorted(device.streams, key=lambda use: (-use.busy_ns, use.stream))[:limit]
    unions = _stream_unions(trace, device, chosen)
    together = np.diag([intervals.length(union) for union in unions]).astype(np.int64)
    coverages = [Coverage.from_union(union) for union in unions]
    for left in range(len(unions)):
        for right in range(left):
            # Look up the stream with fewer intervals in the other one.
            few, many = sorted((left, right), key=lambda index: len(unions[index].start))
            common = int(coverages[many].length_between(unions[few].start, unions[few].end).sum())
            together[left, right] = together[right, left] = common
    return StreamsAtOnce(
        streams=tuple(use.stream for use in chosen),
        together_ns=tuple(tuple(int(ns) for ns in row) for row in together),
        left_out=len(device.streams) - len(chosen),
    )


def _stream_unions(trace: Trace, device: DeviceUse, chosen: list[StreamUse]) -> list[Intervals]:
    stream = trace.operations["stream"].to_numpy()
    start, end = trace.operations["start"].to_numpy(), trace.operations["end"].to_numpy()
    unions = []
    for use in chosen:
        rows = np.flatnonzero(stream == use.stream)
        union = intervals.union(start[rows], end[rows], ordered=True)
        unions.append(intervals.clip(union, device.window.start, device.window.end))
    return unions


def gap_lengths(device: DeviceUse) -> tuple[GapLengths, ...]:
    """Return a device's gaps by length, shortest first, without the lengths that no gap has."""
    frame = device.gaps.frame
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    place = np.searchsorted(LENGTH_EDGES, end - start, side="right") - 1
    longest = _longest_rows(place, end - start)
    counts = np.bincount(place, minlength=len(LENGTH_EDGES))
    sums = {
        cause: sums_by_owner(place, frame[cause].to_numpy(), len(LENGTH_EDGES))
        for cause in CAUSES
        if device.gaps.causes[cause]
    }
    return tuple(
        GapLengths(
            from_ns=int(LENGTH_EDGES[edge]),
            to_ns=int(LENGTH_EDGES[edge + 1]),
            count=int(counts[edge]),
            causes={cause: int(column[edge]) for cause, column in sums.items() if column[edge]},
            longest=Window(int(start[longest[edge]]), int(end[longest[edge]])),
        )
        for edge in np.flatnonzero(counts)
    )


def _longest_rows(place: Times, length: Times) -> Times:
    """Return the row of the longest gap of each edge; among equally long ones, the first."""
    longest = np.zeros(len(LENGTH_EDGES), np.int64)
    np.maximum.at(longest, place, length)
    rows = np.flatnonzero(length == longest[place])[::-1]
    first_rows = np.full(len(LENGTH_EDGES), -1, np.int64)
    first_rows[place[rows]] = rows  # the last write remains: the first row
    return first_rows


def copy_groups(trace: Trace, device: DeviceUse, limit: int = MAX_COPY_GROUPS) -> tuple[tuple[CopyGroup, ...], int]:
    """Return a device's copies by size and duration, and the number of copies without bytes or length.

    Up to `limit` copies form a group each. Otherwise, copies of the same kind and memory form a group if their sizes
    and durations fall into the same steps; a doubling has 8 steps, or fewer until there are at most `limit` groups.
    With Trace.window, copies that overlap the window count in full.
    """
    copies = _device_copies(trace, device)
    measurable = (copies["bytes"].to_numpy() > 0) & (copies["end"].to_numpy() > copies["start"].to_numpy())
    left_out = int(np.count_nonzero(~measurable))
    copies = copies.filter(pl.Series(measurable))
    if len(copies) <= limit:
        return _build_copy_groups(copies, np.arange(len(copies))), left_out
    for steps in STEPS_PER_DOUBLING:
        number = _group_numbers(copies, steps)
        if int(number.max()) < limit:
            break
    return _build_copy_groups(copies, number), left_out


def _device_copies(trace: Trace, device: DeviceUse) -> pl.DataFrame:
    columns = ("start", "end", "kind", "memory", "bytes", "stream")
    chosen = trace.operations.lazy().filter(pl.col("kind").is_not_null(), pl.col("device") == device.device)
    copies = chosen.select(columns).collect()
    if trace.window is None:
        return copies
    inside = overlaps_window(copies["start"].to_numpy(), copies["end"].to_numpy(), trace.window)
    return copies.filter(pl.Series(inside))


def _group_numbers(copies: pl.DataFrame, steps: int) -> Times:
    """Number the groups in the order of kind, memory, size and duration."""
    # Integer edges: the rounding of a logarithm would move copies between groups.
    edges = np.unique(np.array([round(2 ** (step / steps)) for step in range(62 * steps)], np.int64))
    size = np.searchsorted(edges, copies["bytes"].to_numpy(), side="right")
    length = np.searchsorted(edges, (copies["end"] - copies["start"]).to_numpy(), side="right")
    pair = copies["kind"].to_physical().to_numpy().astype(np.int64) * len(MEMORIES)
    pair = pair + copies["memory"].to_physical().to_numpy()
    key = (pair * (len(edges) + 1) + size) * (len(edges) + 1) + length
    number: Times = np.unique(key, return_inverse=True)[1]
    return number


def _build_copy_groups(copies: pl.DataFrame, number: Times) -> tuple[CopyGroup, ...]:
    if len(copies) == 0:
        return ()
    start, end = copies["start"].to_numpy(), copies["end"].to_numpy()
    size, length = copies["bytes"].to_numpy(), end - start
    order = np.lexsort((start, size / length, number))
    slowest = order[np.flatnonzero(np.diff(number[order], prepend=-1))]
    count = np.bincount(number)
    sizes, lengths = (sums_by_owner(number, values, len(count)) for values in (size, length))
    kinds, memories = copies["kind"].to_physical(), copies["memory"].to_physical()
    return tuple(
        CopyGroup(
            kind=KINDS[kinds[int(row)]],
            memory=MEMORIES[memories[int(row)]],
            count=int(count[group]),
            bytes=int(sizes[group]),
            duration_ns=int(lengths[group]),
            slowest=Window(int(start[row]), int(end[row])),
            stream=int(copies["stream"][int(row)]),
        )
        for group, row in enumerate(slowest)
    )
