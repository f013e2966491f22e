"""The timeline of a slice: a file with its marks and their levels, and its part of the sums of the capture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.model.analysis import HostUse
from traceview.model.devices import DeviceUse
from traceview.model.trace import Trace, Window
from traceview.timeline.events import (
    ClassTimes,
    TraceLanes,
    call_id,
    exposed_times,
    idle_id,
    overlap_ids,
    stream_id,
    worst_calls,
)
from traceview.timeline.index import NamePlaces
from traceview.timeline.marks import Marks, Names, used
from traceview.timeline.rows import TimelineRow, bands
from traceview.timeline.stored import LanePart, MarkBlock, write_blocks, write_lane
from traceview.timeline.sums import (
    MAX_DEVICE_BINS,
    DeviceLanes,
    DeviceSums,
    NameSums,
    bin_edges,
    bin_shift,
    device_sums,
    sums_of_row,
)

NAME_BINS = 1 << 10  # bins of the whole timeline; a page has at most half as many


@dataclass(frozen=True, slots=True)
class DeviceBins:
    """The sums of a device (by id) in a slice, in bins of the whole timeline from bin `first` on."""

    id: str
    first: int
    sums: DeviceSums


@dataclass(frozen=True, slots=True)
class SliceMarks:
    """The marks of a slice in a file, by id of their lane.

    `edges` are the first and the last gap of each lane of gaps if they touch the border of the slice there, or no mark.
    `devices` have the sums of each lane of gaps and its device, without `edges`; `sums` those of names. `places` are
    NamePlaces as marks: their detail `row` indexes `rows`, ids of lanes; `widths` are NamePlaces.width. `exposed` and
    `calls` are parts of `exposed` and `worst_calls` of TimelineEvents, with the cost of the calls. `projected` has the
    ranges with work in the slice (PROJECTED).
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


def write_slice(
    trace: Trace,
    devices: tuple[DeviceUse, ...],
    host: HostUse,
    projected: pl.DataFrame,
    own: bool,
    folder: Path,
    span: Window,
) -> SliceMarks:
    """Write the marks of a slice, the window of `trace`, to a new file in `folder`.

    `devices` and `host` have the frames of gaps and calls. `own` is false for the first slice, which also has the calls
    that begin before it. `projected` has the ranges with work in the slice. `span` is the time of the whole timeline.
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
        blocks = write_blocks(_as_marks(places), file, path)
    return SliceMarks(
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


def _as_marks(places: NamePlaces) -> Marks:
    order = np.argsort(places.start, kind="stable")
    start, end = places.start[order], (places.start + places.length)[order]
    return Marks(start, end, places.name[order], np.zeros(len(start), np.uint8), {}, {"row": places.row[order]})


def split_edges(gaps: Marks, device: DeviceUse) -> tuple[Marks, Marks, Marks]:
    """Return the gaps that touch no edge of the device's window in the slice, the one at its start, the one at its end.

    A gap that touches both is at the start.
    """
    first = int(len(gaps) > 0 and gaps.start[0] == device.window.start)
    last = len(gaps) - int(len(gaps) > first and gaps.end[-1] == device.window.end)
    return gaps.take(slice(first, last)), gaps.take(slice(0, first)), gaps.take(slice(last, None))
