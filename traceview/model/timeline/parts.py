"""The timeline of a capture in parts: each part writes its marks to a file, and the files are read as one timeline.

Memory holds the places of the blocks, sums in bins and, while a page is made, levels of detail. Rows that need no
operations or calls (iterations, NVTX ranges) come from the resident tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import EMPTY, Times, distinct_rows
from traceview.model.analysis import CAUSES, DeviceUse, HostUse
from traceview.model.sums import sum_mappings
from traceview.model.timeline.events import (
    ClassTimes,
    TimelineEvents,
    TraceLanes,
    call_id,
    call_places,
    costliest,
    exposed_times,
    idle_id,
    names_of_events,
    overlap_ids,
    stream_id,
    worst_calls,
)
from traceview.model.timeline.marks import NO_MARKS, Marks, Names, Numbers, concatenated, used
from traceview.model.timeline.merging import GroupCounts
from traceview.model.timeline.rows import IDLE_LOOK, OVERLAP_LANES, NamePlaces, TimelineRow, bands, largest
from traceview.model.timeline.stored import (
    AllMarks,
    LanePart,
    MarkBlock,
    PartBlocks,
    StoredMarks,
    write_blocks,
    write_lane,
)
from traceview.model.timeline.sums import (
    MAX_DEVICE_BINS,
    DeviceLanes,
    DeviceSums,
    NameSums,
    StoredSums,
    added,
    bin_edges,
    bin_shift,
    device_sums,
    sums_of_row,
)
from traceview.model.trace import PROJECTED, Trace, Window

NAME_BINS = 1 << 10  # bins of the whole timeline; a page has at most half as many
JOINED_FILE = "joined.marks"
MAX_SUMS = 1 << 20  # sums of names in memory; wider bins have fewer
PARTS_AT_ONCE = 16  # places of names in memory
NO_WORK = TimelineRow("overlap", "", "", "", (NO_MARKS,) * len(OVERLAP_LANES))
NO_COUNTS = GroupCounts(EMPTY.start, (0, 0), (0, 0))
ZERO = np.zeros(1, np.int64)


class DeviceBins(NamedTuple):
    """The sums of a device (by id) in a part, in bins of the whole timeline from bin `first` on."""

    id: str
    first: int
    sums: DeviceSums


class PartMarks(NamedTuple):
    """The marks of a part in a file, by id of their lane.

    `edges` are the first and the last gap of each lane of gaps if they touch the border of the part there, or no mark.
    `devices` have the sums of each lane of gaps and its device, without `edges`; `sums` those of names. `places` are
    NamePlaces as marks: their detail `row` indexes `rows`, ids of lanes; `widths` are NamePlaces.width. `exposed` and
    `calls` are parts of `exposed` and `worst_calls` of TimelineEvents, with the cost of the calls. `projected` has the
    ranges with work in the part (PROJECTED).
    """

    lanes: Mapping[str, LanePart]
    edges: Mapping[str, tuple[Marks, Marks]]
    devices: Mapping[str, DeviceBins]
    sums: Sequence[NameSums]
    rows: Sequence[str]
    places: Sequence[MarkBlock]
    widths: Times
    names: Sequence[str]
    shapes: pl.DataFrame
    exposed: Mapping[int, tuple[ClassTimes, ClassTimes]]
    calls: Sequence[pl.DataFrame]
    projected: pl.DataFrame


def write_part(
    trace: Trace,
    devices: tuple[DeviceUse, ...],
    host: HostUse,
    projected: pl.DataFrame,
    own: bool,
    folder: Path,
    span: Window,
) -> PartMarks:
    """Write the marks of a part, the window of `trace`, to a new file in `folder`.

    `devices` and `host` have the frames of gaps and calls. `own` is false for the first part, which also has the calls
    that begin before it. `projected` has the ranges with work in the part. `span` is the time of the whole timeline.
    """
    names, work = Names(), bands(trace, devices)
    lanes = TraceLanes.from_trace(trace, host, work, names, own)
    leading = [(device, lanes.overlap(device), *split_edges(lanes.idle(device), device)) for device in devices]
    path = folder / f"{trace.window.start if trace.window else 0}.marks"
    streams = used(lanes.operations.owner).tolist()
    owner = trace.streams["device"].to_list()
    edges, bins = {}, {}
    with path.open("xb") as file:
        out = _LaneWriter(file, path, span, len(names.texts))
        for device, overlap, gaps, *ends in leading:
            edges[idle_id(device)] = (ends[0], ends[1])
            for lane, marks in zip(overlap_ids(device), overlap, strict=True):
                out.write(lane, marks)
            out.write(idle_id(device), gaps)
            own_streams = [row for row in streams if owner[row] == device.device]
            work_of = [out.row("stream", stream_id(row), lanes.stream(row)) for row in own_streams]
            leading_row = TimelineRow("overlap", "", "", "", overlap)
            sums = DeviceLanes(device.id, leading_row, gaps, work_of)
            bins[idle_id(device)] = _device_bins(sums, trace.window, span)
        for thread in used(lanes.api.owner).tolist():
            out.row("call", call_id(thread), lanes.calls(thread))
        places = NamePlaces.merged(out.places, span.start)
        places = places.take(np.argsort(places.start, kind="stable"))
        look, details = np.zeros(len(places.start), np.uint8), {"row": places.row}
        marks = Marks(places.start, places.start + places.length, places.name, look, {}, details)
        blocks = write_blocks(marks, file, path)
    return PartMarks(
        out.lanes,
        edges,
        bins,
        out.sums,
        out.rows,
        blocks,
        places.width,
        names.texts,
        trace.shapes,
        {device.device: exposed_times(device, work[device.device]) for device in devices},
        [worst_calls(use) for use in (host.sync, host.implicit_sync)],
        projected,
    )


class _LaneWriter:
    """Writes lanes to a file, and collects their sums and the places of their names."""

    def __init__(self, file: BinaryIO, path: Path, span: Window, names: int) -> None:
        self.file, self.path, self.span, self.names = file, path, span, names
        self.lanes: dict[str, LanePart] = {}
        self.sums: list[NameSums] = []
        self.rows: list[str] = []
        self.places = [NamePlaces.none(names)]

    def write(self, lane: str, marks: Marks) -> None:
        """Write the marks of a lane, if there are any."""
        if len(marks):
            self.lanes[lane] = write_lane(marks.without_zeros(), self.span.start, self.file, self.path)

    def row(self, kind: str, lane: str, marks: Marks) -> Marks:
        """Write the marks of a row of operations or calls, and return them. There must be a mark."""
        self.write(lane, marks)
        self.places.append(NamePlaces.from_marks(marks, self.span.start, len(self.rows), self.names))
        self.rows.append(lane)
        shift = bin_shift(self.span.length, NAME_BINS)
        first, edges = _own_bins(int(marks.start[0]), int(marks.end.max()), self.span, shift)
        for part in sums_of_row(TimelineRow(kind, lane, "", "", (marks,)), edges):
            self.sums.append(part._replace(bin=part.bin + first))
        return marks


def _own_bins(start: int, end: int, span: Window, shift: int) -> tuple[int, Times]:
    """Return the first of the timeline's bins that a time from `start` to `end` touches, and their borders."""
    first, last = ((min(max(moment, span.start), span.end) - span.start) >> shift for moment in (start, end))
    return first, bin_edges(span, shift, first, last)


def _device_bins(device: DeviceLanes, window: Window | None, span: Window) -> DeviceBins:
    inside = window or span
    first, edges = _own_bins(inside.start, inside.end, span, bin_shift(span.length, MAX_DEVICE_BINS))
    return DeviceBins(device.id, first, device_sums(device, edges))


def split_edges(gaps: Marks, device: DeviceUse) -> tuple[Marks, Marks, Marks]:
    """Return the gaps that touch no edge of the device's window in the part, the one at its start, the one at its end.

    A gap that touches both is at the start.
    """
    first = int(len(gaps) > 0 and gaps.start[0] == device.window.start)
    last = len(gaps) - int(len(gaps) > first and gaps.end[-1] == device.window.end)
    return gaps.take(slice(first, last)), gaps.take(slice(0, first)), gaps.take(slice(last, None))


def stored_events(parts: Sequence[PartMarks], span: Window, folder: Path) -> TimelineEvents:
    """Return the events of a capture from its parts, in the order of time; `span` is the time of the timeline.

    The files in `folder` must exist as long as the events are used.
    """
    names = names_of_events(text for part in parts for text in part.names)
    lanes = StoredLanes(parts, names, folder, span.start)
    exposed: dict[int, tuple[ClassTimes, ClassTimes]] = {}
    for part in parts:
        for device, (whole, steady) in part.exposed.items():
            before = exposed.get(device, ({}, {}))
            exposed[device] = (sum_mappings((before[0], whole)), sum_mappings((before[1], steady)))
    calls = [costliest(pl.concat(frames)) for frames in zip(*(part.calls for part in parts), strict=True)]
    return TimelineEvents(
        span, names, lanes.by_id, exposed, call_places(calls), _stored_sums(parts, span, lanes, len(names.texts))
    )


def merged_projection(parts: Sequence[PartMarks]) -> pl.DataFrame:
    """Return the ranges on the GPU (see project_ranges) from those of all parts."""
    return (
        pl.concat([part.projected for part in parts])
        .group_by("range", "device")
        .agg(pl.col("start").min(), pl.col("end").max(), pl.col("operations").sum())
        .select(list(PROJECTED))
        .sort("device", "start", "end", "range", descending=[False, False, True, False])
    )


def _stored_sums(parts: Sequence[PartMarks], span: Window, lanes: StoredLanes, names: int) -> StoredSums:
    """Return the sums of the capture, and the places of its `names` names, from those of its parts."""
    shift = bin_shift(span.length, MAX_DEVICE_BINS)
    devices: dict[str, DeviceSums] = {}
    for part in parts:
        for lane, own in part.devices.items():
            if own.id not in devices:
                gaps = DeviceLanes(own.id, NO_WORK, lanes.joined(lane), ())
                devices[own.id] = device_sums(gaps, bin_edges(span, shift))
            total = devices[own.id]
            for name, sums in own.sums.items():
                into = total.setdefault(name, np.zeros(len(total["idle"]), np.int64))
                into[own.first : own.first + len(sums)] += sums
    name_shift, by_name = _merged_sums(parts, lanes.names, bin_shift(span.length, NAME_BINS))
    rows, places = _merged_places(parts, lanes.names, span.start, names)
    return StoredSums(shift, devices, name_shift, by_name, rows, places)


def _merged_sums(parts: Sequence[PartMarks], numbers: Sequence[Numbers], shift: int) -> tuple[int, list[NameSums]]:
    """Return the sums of names of all parts, in bins of 2^shift ns or wider ones, and their shift."""
    by_row: dict[tuple[str, str], list[NameSums]] = {}
    for part, number in zip(parts, numbers, strict=True):
        for sums in part.sums:
            by_row.setdefault((sums.row, sums.table), []).append(sums._replace(name=number[sums.name].astype(np.int64)))
    # The order of the tables of a row in memory: kernels, copies.
    every = [added(own).combined() for (_, table), own in sorted(by_row.items(), key=lambda item: item[0][1] == "copy")]
    while sum(len(part.bin) for part in every) > MAX_SUMS and any(part.bin.any() for part in every):
        shift, every = shift + 1, [part.wider() for part in every]
    return shift, every


def _merged_places(
    parts: Sequence[PartMarks], numbers: Sequence[Numbers], zero: int, names: int
) -> tuple[list[str], NamePlaces]:
    """Return the places of all parts, and the ids of their rows; some parts are in memory at once."""
    rows = sorted({row for part in parts for row in part.rows})
    merged, waiting = NamePlaces.none(names), []
    for place, (part, number) in enumerate(zip(parts, numbers, strict=True), 1):
        row_number = np.array([rows.index(row) for row in part.rows], np.int64)
        blocks = PartBlocks(LanePart(part.places, {}, NO_COUNTS), number, number[:0])
        marks = concatenated(list(StoredMarks([blocks]).pieces())) if part.places else NO_MARKS
        width = NamePlaces.none(names).width
        width[number[: len(part.widths)]] = part.widths
        own = row_number[marks.details.get("row", np.zeros(len(marks), np.int64))]
        waiting.append(NamePlaces(marks.name.astype(np.int64), own, marks.start, marks.end - marks.start, width))
        if len(waiting) == PARTS_AT_ONCE or place == len(parts):
            merged, waiting = NamePlaces.merged([merged, *waiting], zero), []
    return rows, merged


class StoredLanes:
    """The lanes of a capture in parts by id, from the files in `folder`."""

    def __init__(self, parts: Sequence[PartMarks], names: Names, folder: Path, zero: int) -> None:
        self.names = [np.array([names.number(text) for text in part.names], np.int32) for part in parts]
        _, shapes = distinct_rows([part.shapes for part in parts], ordered=True)
        lanes: dict[str, list[PartBlocks]] = {}
        joins = _GapJoins(folder / JOINED_FILE, zero)
        for part, number, shape in zip(parts, self.names, shapes, strict=True):
            for lane, edges in part.edges.items():
                start, end = (replace(edge, name=number[edge.name]) if len(edge) else edge for edge in edges)
                lanes.setdefault(lane, []).extend(joins.closed(lane, start, lane in part.lanes or len(end) > 0))
                joins.open(lane, end)
            for lane, own in part.lanes.items():
                lanes.setdefault(lane, []).append(PartBlocks(own, number, shape))
        for lane, rest in joins.rest():
            lanes[lane].append(rest)
        self._joined = joins.joined
        self.by_id: Mapping[str, AllMarks] = {lane: StoredMarks(own) for lane, own in lanes.items() if own}

    def joined(self, lane: str) -> Marks:
        """Return the gaps of a lane that touch a border of a part."""
        return concatenated(self._joined[lane]) if lane in self._joined else NO_MARKS


class _GapJoins:
    """Joins the pieces of gaps that cross borders of parts, and writes the gaps to a file."""

    def __init__(self, path: Path, zero: int) -> None:
        self._path, self._zero = path, zero
        self._file = path.open("xb")
        self._open: dict[str, Marks] = {}
        self.joined: dict[str, list[Marks]] = {}

    def closed(self, lane: str, start: Marks, ends: bool) -> Iterator[PartBlocks]:
        """Yield the gap that is open at a border and ends at or after it; `start` is its piece after the border.

        `ends` is false if the part has only that piece, so that the gap may go on.
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
        """Keep the piece of a gap at the end of a part."""
        if len(end):
            self._open[lane] = end

    def rest(self) -> Iterator[tuple[str, PartBlocks]]:
        """Yield the gaps that are open at the end of the capture, and close the file."""
        for lane, marks in self._open.items():
            yield from ((lane, written) for written in self._written(lane, marks))
        self._file.close()

    def _written(self, lane: str, marks: Marks) -> Iterator[PartBlocks]:
        if len(marks):
            names = np.arange(int(marks.name[0]) + 1)
            sums = {cause: marks.sums.get(cause, ZERO) for cause in CAUSES}
            self.joined.setdefault(lane, []).append(replace(marks, sums=sums))
            yield PartBlocks(write_lane(marks, self._zero, self._file, self._path), names, names[:1])


def _joined_gap(before: Marks, after: Marks) -> Marks:
    """Return one gap from two adjoining pieces. The later piece has the name of the operation that ends the gap."""
    sums = {
        cause: before.sums.get(cause, ZERO) + after.sums.get(cause, ZERO)
        for cause in CAUSES
        if cause in before.sums or cause in after.sums
    }
    look = largest({CAUSES.index(cause): column for cause, column in sums.items()}, 1) + IDLE_LOOK
    return replace(after, start=before.start, look=look, sums=sums)
