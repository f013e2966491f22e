"""The timeline of a capture in slices, from the files of its slices.

Memory holds the places of the blocks, sums in bins and, while a page is made, levels of detail. Rows that need no
operations or calls (iterations, NVTX ranges) come from the resident tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from traceview.intervals import EMPTY, distinct_rows
from traceview.model.devices import CAUSES
from traceview.model.sums import sum_mappings
from traceview.model.trace import PROJECTED, Window
from traceview.timeline.events import ClassTimes, TimelineEvents, call_places, costliest, names_of_events
from traceview.timeline.index import NamePlaces
from traceview.timeline.marks import NO_MARKS, Marks, Names, Numbers, concatenated
from traceview.timeline.merging import GroupCounts
from traceview.timeline.parts import NAME_BINS, SliceMarks
from traceview.timeline.rows import IDLE_LOOK, OVERLAP_LANES, TimelineRow, largest
from traceview.timeline.stored import AllMarks, LanePart, SliceBlocks, StoredMarks, write_lane
from traceview.timeline.sums import (
    MAX_DEVICE_BINS,
    DeviceLanes,
    DeviceSums,
    NameSums,
    StoredSums,
    added,
    bin_edges,
    bin_shift,
    device_sums,
)

JOINED_FILE = "joined.marks"
MAX_SUMS = 1 << 20  # sums of names in memory; wider bins have fewer
SLICES_AT_ONCE = 16  # places of names in memory
NO_WORK = TimelineRow("overlap", "", "", "", (NO_MARKS,) * len(OVERLAP_LANES))
NO_COUNTS = GroupCounts(EMPTY.start, (0, 0), (0, 0))
ZERO = np.zeros(1, np.int64)


def stored_events(slices: Sequence[SliceMarks], span: Window, folder: Path) -> TimelineEvents:
    """Return the events of a capture from its slices, in the order of time; `span` is the time of the timeline.

    The files in `folder` must exist as long as the events are used.
    """
    names = names_of_events(text for part in slices for text in part.names)
    lanes = StoredLanes(slices, names, folder, span.start)
    exposed: dict[int, tuple[ClassTimes, ClassTimes]] = {}
    for part in slices:
        for device, (whole, steady) in part.exposed.items():
            before = exposed.get(device, ({}, {}))
            exposed[device] = (sum_mappings((before[0], whole)), sum_mappings((before[1], steady)))
    calls = [costliest(pl.concat(frames)) for frames in zip(*(part.calls for part in slices), strict=True)]
    return TimelineEvents(
        span,
        names,
        lanes.by_id,
        exposed,
        call_places(calls),
        _stored_sums(slices, span, lanes, len(names.texts)),
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


def _stored_sums(slices: Sequence[SliceMarks], span: Window, lanes: StoredLanes, names: int) -> StoredSums:
    """Return the sums of the capture, and the places of its `names` names, from those of its slices."""
    shift = bin_shift(span.length, MAX_DEVICE_BINS)
    devices: dict[str, DeviceSums] = {}
    for part in slices:
        for lane, own in part.devices.items():
            if own.id not in devices:
                gaps = DeviceLanes(own.id, NO_WORK, lanes.joined(lane), ())
                devices[own.id] = device_sums(gaps, bin_edges(span, shift))
            total = devices[own.id]
            for name, sums in own.sums.items():
                into = total.setdefault(name, np.zeros(len(total["idle"]), np.int64))
                into[own.first : own.first + len(sums)] += sums
    name_shift, by_name = _merged_sums(slices, lanes.names, bin_shift(span.length, NAME_BINS))
    rows, places = _merged_places(slices, lanes.names, span.start, names)
    return StoredSums(shift, devices, name_shift, by_name, rows, places)


def _merged_sums(slices: Sequence[SliceMarks], numbers: Sequence[Numbers], shift: int) -> tuple[int, list[NameSums]]:
    """Return the sums of names of all slices, in bins of 2^shift ns or wider ones, and their shift."""
    parts: dict[tuple[str, str], list[NameSums]] = {}
    for part, number in zip(slices, numbers, strict=True):
        for sums in part.sums:
            parts.setdefault((sums.row, sums.table), []).append(sums._replace(name=number[sums.name].astype(np.int64)))
    # The order of the tables of a row in memory: kernels, copies.
    every = [added(own).combined() for (_, table), own in sorted(parts.items(), key=lambda item: item[0][1] == "copy")]
    while sum(len(part.bin) for part in every) > MAX_SUMS and any(part.bin.any() for part in every):
        shift, every = shift + 1, [part.wider() for part in every]
    return shift, every


def _merged_places(
    slices: Sequence[SliceMarks], numbers: Sequence[Numbers], zero: int, names: int
) -> tuple[list[str], NamePlaces]:
    """Return the places of all slices, and the ids of their rows; some slices are in memory at once."""
    rows = sorted({row for part in slices for row in part.rows})
    merged, waiting = NamePlaces.none(names), []
    for place, (part, number) in enumerate(zip(slices, numbers, strict=True), 1):
        row_number = np.array([rows.index(row) for row in part.rows], np.int64)
        blocks = SliceBlocks(LanePart(part.places, {}, NO_COUNTS), number, number[:0])
        marks = concatenated(list(StoredMarks([blocks]).pieces())) if part.places else NO_MARKS
        width = NamePlaces.none(names).width
        width[number[: len(part.widths)]] = part.widths
        own = row_number[marks.details.get("row", np.zeros(len(marks), np.int64))]
        waiting.append(NamePlaces(marks.name.astype(np.int64), own, marks.start, marks.end - marks.start, width))
        if len(waiting) == SLICES_AT_ONCE or place == len(slices):
            merged, waiting = NamePlaces.merged([merged, *waiting], zero), []
    return rows, merged


class StoredLanes:
    """The lanes of a capture in slices by id, from the files in `folder`."""

    def __init__(self, slices: Sequence[SliceMarks], names: Names, folder: Path, zero: int) -> None:
        self.names = [np.array([names.number(text) for text in part.names], np.int32) for part in slices]
        _, shapes = distinct_rows([part.shapes for part in slices], ordered=True)
        lanes: dict[str, list[SliceBlocks]] = {}
        joins = _GapJoins(folder / JOINED_FILE, zero)
        for part, number, shape in zip(slices, self.names, shapes, strict=True):
            for lane, edges in part.edges.items():
                start, end = (_renamed(edge, number) for edge in edges)
                lanes.setdefault(lane, []).extend(joins.closed(lane, start, lane in part.lanes or len(end) > 0))
                joins.open(lane, end)
            for lane, own in part.lanes.items():
                lanes.setdefault(lane, []).append(SliceBlocks(own, number, shape))
        for lane, rest in joins.rest():
            lanes[lane].append(rest)
        self._joined = joins.joined
        self.by_id: Mapping[str, AllMarks] = {lane: StoredMarks(parts) for lane, parts in lanes.items() if parts}

    def joined(self, lane: str) -> Marks:
        """Return the gaps of a lane that touch a border of a slice."""
        return concatenated(self._joined[lane]) if lane in self._joined else NO_MARKS


class _GapJoins:
    """Joins the pieces of gaps that cross borders of slices, and writes the gaps to a file."""

    def __init__(self, path: Path, zero: int) -> None:
        self._path, self._zero = path, zero
        self._file = path.open("xb")
        self._open: dict[str, Marks] = {}
        self.joined: dict[str, list[Marks]] = {}

    def closed(self, lane: str, start: Marks, ends: bool) -> Iterator[SliceBlocks]:
        """Yield the gap that is open at a border and ends at or after it; `start` is its piece after the border.

        `ends` is false if the slice has only that piece, so that the gap may go on.
        """
        before = self._open.pop(lane, NO_MARKS)
        if len(before) and len(start) and before.end[0] == start.start[0]:
            before = _joined_gap(before, start)
        elif len(start):
            yield from self._written(lane, before)
            before = start
        if ends or not len(start):
            yield from self._written(lane, before)
        else:
            self._open[lane] = before

    def open(self, lane: str, end: Marks) -> None:
        """Keep the piece of a gap at the end of a slice."""
        if len(end):
            self._open[lane] = end

    def rest(self) -> Iterator[tuple[str, SliceBlocks]]:
        """Yield the gaps that are open at the end of the capture, and close the file."""
        for lane, marks in self._open.items():
            yield from ((lane, written) for written in self._written(lane, marks))
        self._file.close()

    def _written(self, lane: str, marks: Marks) -> Iterator[SliceBlocks]:
        if len(marks):
            names = np.arange(int(marks.name[0]) + 1)
            sums = {cause: marks.sums.get(cause, ZERO) for cause in CAUSES}
            self.joined.setdefault(lane, []).append(replace(marks, sums=sums))
            yield SliceBlocks(write_lane(marks, self._zero, self._file, self._path), names, names[:1])


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
