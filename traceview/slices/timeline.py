"""The timeline of a capture in slices: each slice writes its marks to a file, and lanes read them from all files.

Memory holds the places of the blocks and, while a page is made, levels of detail. Rows that need no operations or calls
(iterations, NVTX ranges) come from the resident tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from traceview.frozen import frozen
from traceview.intervals import EMPTY, Times, distinct_rows
from traceview.measure.nvtx.projection import Projection, project_ranges
from traceview.model.analysis import Analysis, HostUse, NotMeasured, Unmatched
from traceview.model.devices import CAUSES, DeviceUse
from traceview.model.trace import PROJECTED, Trace, Window
from traceview.report.timeline.bands import bands
from traceview.report.timeline.lanes import TraceLanes
from traceview.report.timeline.marks import Marks, Names, Numbers
from traceview.report.timeline.rows import IDLE_LOOK, OVERLAP_LANES, largest
from traceview.report.timeline.source import (
    ClassTimes,
    PageSource,
    call_places,
    costliest,
    exposed_times,
    timeline_span,
    worst_calls,
)
from traceview.report.timeline.stored import AllMarks, MarkBlock, SliceBlocks, StoredMarks, write_blocks

JOINED_FILE = "joined.marks"


@frozen
class SliceMarks:
    """The marks of a slice in a file: the blocks of each lane by id.

    `edges` are the first and the last gap of each lane of gaps if they touch the border of the slice there, or no mark.
    `exposed` and `calls` are parts of PageSource.exposed and PageSource.worst_calls, with the cost of the calls.
    `projected` has the ranges with work in the slice (PROJECTED).
    """

    lanes: Mapping[str, Sequence[MarkBlock]]
    edges: Mapping[str, tuple[Marks, Marks]]
    names: Sequence[str]
    shapes: pl.DataFrame
    span: Window
    exposed: Mapping[int, tuple[ClassTimes, ClassTimes]]
    calls: Sequence[pl.DataFrame]
    projected: pl.DataFrame


def write_slice(
    trace: Trace, devices: tuple[DeviceUse, ...], host: HostUse, projection: Projection, own: bool, folder: Path
) -> SliceMarks:
    """Write the marks of a slice, the window of `trace`, to a new file in `folder`.

    `devices` and `host` have the frames of gaps and calls. `own` is false for the first slice, which also has the calls
    that begin before it.
    """
    reason = NotMeasured("figures are those of the capture, not of a slice")
    analysis = Analysis(trace.info, trace, devices, host, {}, reason, Unmatched(0, 0, 0, 0))
    names, work = Names(), bands(analysis)
    lanes, edges = TraceLanes.from_analysis(analysis, work, names, own), {}
    path = folder / f"{trace.window.start if trace.window else 0}.marks"
    blocks: dict[str, Sequence[MarkBlock]] = {}
    with path.open("xb") as file:
        for device in analysis.devices:
            for number, marks in enumerate(lanes.overlap(device)):
                blocks[_overlap_id(device, number)] = write_blocks(marks, file, path)
            inner, *ends = _split_edges(lanes.idle(device), device)
            edges[_idle_id(device)] = (ends[0], ends[1])
            blocks[_idle_id(device)] = write_blocks(inner, file, path)
        for stream in np.unique(lanes.operations.owner).tolist():
            blocks[f"s:{stream}"] = write_blocks(lanes.stream(stream), file, path)
        for thread in np.flatnonzero(lanes.call_counts(len(trace.threads))).tolist():
            blocks[f"t:{thread}"] = write_blocks(lanes.calls(thread), file, path)
    return SliceMarks(
        blocks,
        edges,
        names.texts,
        trace.shapes,
        timeline_span(replace(trace, window=None)),
        {device.device: exposed_times(device, work[device.device]) for device in analysis.devices},
        [worst_calls(use) for use in (host.sync, host.implicit_sync)],
        project_ranges(trace, projection),
    )


def stored_source(trace: Trace, slices: Sequence[SliceMarks], folder: Path) -> PageSource:
    """Return the events of a capture from its slices, in the order of time; `trace` has its resident tables.

    The files in `folder` must exist as long as the source is used.
    """
    names = Names()
    spans = [timeline_span(trace)] if trace.window is not None else [part.span for part in slices]
    exposed: dict[int, tuple[ClassTimes, ClassTimes]] = {}
    for part in slices:
        for device, (whole, steady) in part.exposed.items():
            before = exposed.get(device, ({}, {}))
            exposed[device] = (_added(before[0], whole), _added(before[1], steady))
    calls = [costliest(pl.concat(frames)) for frames in zip(*(part.calls for part in slices), strict=True)]
    return PageSource(
        Window(min(span.start for span in spans), max(span.end for span in spans)),
        names,
        StoredLanes(slices, names, folder),
        exposed,
        call_places(calls),
    )


def merged_projection(slices: Sequence[SliceMarks]) -> pl.DataFrame:
    """Return the ranges on the GPU (see project_ranges) from those of all slices."""
    return (
        pl.concat([part.projected for part in slices])
        .group_by("range", "device")
        .agg(pl.col("start").min(), pl.col("end").max(), pl.col("operations").sum())
        .select(list(PROJECTED))
        .sort("device", "start", "end", "range", descending=[False, False, True, False])
    )


def _added(before: ClassTimes, more: ClassTimes) -> ClassTimes:
    return {name: before.get(name, 0) + ns for name, ns in more.items()}


def _overlap_id(device: DeviceUse, lane: int) -> str:
    return f"o:{device.device}:{lane}"


def _idle_id(device: DeviceUse) -> str:
    return f"d:{device.device}"


def _split_edges(gaps: Marks, device: DeviceUse) -> tuple[Marks, Marks, Marks]:
    """Return the gaps that touch no edge of the device's window in the slice, the one at its start, the one at its end.

    A gap that touches both is at the start.
    """
    first = int(len(gaps) > 0 and gaps.start[0] == device.window.start)
    last = len(gaps) - int(len(gaps) > first and gaps.end[-1] == device.window.end)
    return gaps.take(slice(first, last)), gaps.take(slice(0, first)), gaps.take(slice(last, None))


class StoredLanes:
    """The lanes of a capture in slices (report/timeline/lanes.py EventLanes), from the files in `folder`."""

    def __init__(self, slices: Sequence[SliceMarks], names: Names, folder: Path) -> None:
        numbers = [np.array([names.number(text) for text in part.names], np.int32) for part in slices]
        self.shapes, shapes = distinct_rows([part.shapes for part in slices])
        lanes: dict[str, list[SliceBlocks]] = {}
        joins = _GapJoins(folder / JOINED_FILE)
        for part, number, shape in zip(slices, numbers, shapes, strict=True):
            for lane, blocks in part.lanes.items():
                own = SliceBlocks(blocks, number, shape)
                if lane in part.edges:
                    start, end = (_renamed(edge, number) for edge in part.edges[lane])
                    lanes.setdefault(lane, []).extend([*joins.closed(lane, start, bool(blocks) or len(end) > 0), own])
                    joins.open(lane, end)
                else:
                    lanes.setdefault(lane, []).append(own)
        for lane, rest in joins.rest():
            lanes[lane].append(rest)
        self._lanes: Mapping[str, AllMarks] = {
            lane: StoredMarks(parts) for lane, parts in lanes.items() if any(part.blocks for part in parts)
        }

    def overlap(self, device: DeviceUse) -> tuple[AllMarks, ...]:
        """Return the work of a device by class, in the order of OVERLAP_LANES."""
        return tuple(self._lane(_overlap_id(device, lane)) for lane in range(len(OVERLAP_LANES)))

    def idle(self, device: DeviceUse) -> AllMarks:
        """Return the gaps of a device."""
        return self._lane(_idle_id(device))

    def stream(self, stream: int) -> AllMarks:
        """Return the operations of a row of Trace.streams."""
        return self._lane(f"s:{stream}")

    def calls(self, thread: int) -> AllMarks:
        """Return the API calls of a row of Trace.threads."""
        return self._lane(f"t:{thread}")

    def call_counts(self, threads: int) -> Times:
        """Return how many API calls each of `threads` rows of Trace.threads has."""
        return np.array([len(self.calls(thread)) for thread in range(threads)], np.int64)

    def _lane(self, lane: str) -> AllMarks:
        return self._lanes.get(lane, NO_MARKS)


NO_MARKS = Marks(EMPTY.start, EMPTY.end, EMPTY.start, EMPTY.start)


class _GapJoins:
    """Joins the pieces of gaps that cross borders of slices, and writes the gaps to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")
        self._open: dict[str, Marks] = {}

    def closed(self, lane: str, start: Marks, ends: bool) -> Iterator[SliceBlocks]:
        """Yield the gap that is open at a border and ends at or after it; `start` is its piece after the border.

        `ends` is false if the slice has only that piece, so that the gap may go on.
        """
        before = self._open.pop(lane, NO_MARKS)
        if len(before) and len(start) and before.end[0] == start.start[0]:
            before = _joined_gap(before, start)
        elif len(start):
            yield from self._written(before)
            before = start
        if ends or not len(start):
            yield from self._written(before)
        else:
            self._open[lane] = before

    def open(self, lane: str, end: Marks) -> None:
        """Keep the piece of a gap at the end of a slice."""
        if len(end):
            self._open[lane] = end

    def rest(self) -> Iterator[tuple[str, SliceBlocks]]:
        """Yield the gaps that are open at the end of the capture, and close the file."""
        for lane, marks in self._open.items():
            yield from ((lane, written) for written in self._written(marks))
        self._file.close()

    def _written(self, marks: Marks) -> Iterator[SliceBlocks]:
        if len(marks):
            names = np.arange(int(marks.name[0]) + 1)
            yield SliceBlocks(write_blocks(marks, self._file, self._path), names, names[:1])


def _renamed(marks: Marks, numbers: Numbers) -> Marks:
    return replace(marks, name=numbers[marks.name]) if len(marks) else marks


def _joined_gap(before: Marks, after: Marks) -> Marks:
    """Return one gap from two adjoining pieces. The later piece has the name of the operation that ends the gap."""
    sums = {
        cause: before.sums.get(cause, ZERO) + after.sums.get(cause, ZERO)
        for cause in CAUSES
        if cause in before.sums or cause in after.sums
    }
    look = largest({CAUSES.index(cause): column for cause, column in sums.items()}, 1) + IDLE_LOOK
    return replace(after, start=before.start, look=look, sums=sums)


ZERO = np.zeros(1, np.int64)
