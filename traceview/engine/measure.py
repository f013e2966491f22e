"""The measures of one part of a capture: today's measures inside a window, reduced to what merges.

Parts adjoin. A border is a moment at which no GPU works and no thread is blocked (engine/limited.py), so that every
operation and every blocking call lies in one part. Only gaps cross borders.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import polars as pl

from traceview.engine.iterations import IterationPart, measure_iteration_part, own_rows
from traceview.engine.part import PartTrace
from traceview.measure import all_measures
from traceview.measure.activity import Activity, active_devices, chosen_devices
from traceview.measure.base import CaptureInput, CaptureMeasure, fill_tables
from traceview.measure.devices import (
    count_unmatched,
    gap_candidates,
    measure_devices,
    steady_window,
    with_steady_part,
)
from traceview.measure.host import with_host_states
from traceview.measure.iterations import IterationRanges
from traceview.measure.iterations.times import MeasuredDevices
from traceview.measure.nvtx import project_ranges
from traceview.measure.places import locate_operations
from traceview.measure.sync import measure_host
from traceview.model.analysis import (
    CAUSES,
    NO_RUN,
    DeviceFigures,
    DeviceUse,
    HostUse,
    Iterations,
    NotMeasured,
    Unmatched,
)
from traceview.model.columns import Table
from traceview.model.rows import StreamUse
from traceview.model.trace import EVERYTHING, Trace, Window
from traceview.normalise.lost_events import CallPart
from traceview.normalise.sizes import count_messages
from traceview.pricing.accounts import streams_in_part
from traceview.pricing.base import Covered

if TYPE_CHECKING:
    from traceview.measure.charts import ChartTotals
    from traceview.measure.nvtx import Projection
    from traceview.measure.places import Places
    from traceview.model.timeline.parts import PartMarks

MAX_PAIRED = 64  # streams of a device that are paired in the first pass; with more, a later pass pairs the busiest
NO_ROWS = pl.DataFrame()


class Extents(NamedTuple):
    """The time from the first start to the last end of each device and each stream in the analyzed window.

    The keys are rows of Trace.devices and Trace.streams. `events` is the time of all events (see Trace.span).
    """

    devices: Mapping[int, Window]
    streams: Mapping[int, Window]
    events: Window

    @classmethod
    def from_trace(cls, trace: Trace, device: str | None = None) -> Extents:
        """Find the extents of a complete trace; `device` selects a GPU (see active_devices, also for errors)."""
        devices, streams = {}, {}
        stream = trace.operations["stream"].to_numpy()
        for work in active_devices(trace, device):
            devices[work.device] = work.window
            own = stream[work.rows]
            for row in np.flatnonzero(np.bincount(own)).tolist():
                members = np.flatnonzero(own == row)
                streams[row] = Window(int(work.start[members[0]]), int(work.end[members].max()))
        return cls(devices, streams, trace.span)

    def select(self, resident: Trace, device: str | None) -> Extents:
        """Return the extents of the device that `device` names, or all (see chosen_devices, also for errors)."""
        chosen = chosen_devices(resident, device)
        on_device = resident.streams["device"]
        return Extents(
            {row: extent for row, extent in self.devices.items() if row in chosen},
            {row: extent for row, extent in self.streams.items() if on_device[row] in chosen},
            self.events,
        )


class PartPlan(NamedTuple):
    """What all parts of a capture share. A part knows figures of the whole capture, but none of another part.

    `window` is that of the capture. `iterations` have their times, but not their figures yet; `where` is the result of
    find_iterations_in_parts, and `run` is Analysis.run. The others are options of `analyze`.
    """

    window: Window
    extents: Extents
    where: IterationRanges | None
    iterations: Iterations | NotMeasured
    top: int
    whole: bool
    flops_per_iteration: int | None
    folder: Path | None = None  # for the marks of a timeline; None makes none
    run: Window = NO_RUN
    part_count: int = 1
    keeps_rows: bool = False  # results have the frames of gaps and calls

    @property
    def devices(self) -> list[int]:
        """The measured devices, rows of Trace.devices."""
        return sorted(self.extents.devices)

    def paired_streams(self, trace: Trace, device: int) -> list[int]:
        """Return the streams of a device, rows of Trace.streams, or none if the device has more than MAX_PAIRED."""
        on_device = trace.streams["device"]
        streams = [row for row in self.extents.streams if on_device[row] == device]
        return streams if len(streams) <= MAX_PAIRED else []

    def steady(self, device: int) -> Window:
        """Return the steady part of a device in the whole capture."""
        return steady_window(self.iterations, self.extents.devices[device])

    def covered(self, *, whole: bool) -> Covered:
        """Return what findings cover: the steady parts, or with `whole` the windows of devices."""
        times = {row: (extent, self.steady(row)) for row, extent in self.extents.devices.items()}
        counted = None if self.where is None else len(self.where.start) - self.where.skipped
        return Covered.from_times(times, counted, self.run, whole=whole)


class PagePart(NamedTuple):
    """What a page needs of a part: its marks, and the totals of charts of each device.

    These are without `edge_gaps`, the device's pieces of gaps at the edges of the part.
    """

    marks: PartMarks
    charts: Mapping[int, ChartTotals]
    edge_gaps: Mapping[int, pl.DataFrame]


class PartResult(NamedTuple):
    """The figures of a part, which are small: no frame has a row for each event.

    `devices` have no frames of gaps. `gaps` has some gaps of each device (see gap_candidates): those that may be among
    the longest of the capture, and pieces of gaps that cross an edge of the part. Its column `continues` marks pieces
    that go on in the next part. `calls` shows which events are lost, None if a complete trace
    shows it. `messages` is the result of count_messages.
    `steady_streams` has the streams of each device in its steady part (see streams_in_part).
    `page` is None without a page.
    """

    devices: tuple[DeviceUse, ...]
    gaps: Mapping[int, pl.DataFrame]
    host: HostUse
    tables: Mapping[str, Table]
    iterations: IterationPart | None
    unmatched: Unmatched
    calls: CallPart | None
    messages: tuple[int, int]
    steady_streams: Mapping[int, tuple[StreamUse, ...]]
    page: PagePart | None = None


def measure_part(part: PartTrace, plan: PartPlan) -> PartResult:
    """Measure a part with the measures of a complete capture."""
    trace, threads, host_idle = part.trace, part.threads, part.host_idle
    activities = activities_in_part(part, plan.extents.devices)
    projection = part.projection
    places = locate_operations(trace, projection)
    devices = measure_devices(trace, threads, activities, places, plan.extents.streams, part.idle_gaps)
    for device in devices:
        part.keep_gaps(device.device, device.window, device.gaps)
    measured = MeasuredDevices(activities, {device.device: device.gaps for device in devices})
    iterations = None
    if plan.where is not None:
        iterations = measure_iteration_part(trace, threads, measured, plan.devices, plan.where)
    parts = [work.clip(plan.steady(work.device).within(work.window)) for work in activities]
    steady_streams = {
        device.device: tuple(streams_in_part(trace, device.streams, work, part))
        for device, work, part in zip(devices, activities, parts, strict=True)
    }
    devices = tuple(
        with_steady_part(trace, threads, device, part, places, totals_only=True)
        for device, part in zip(devices, parts, strict=True)
    )
    devices = tuple(with_host_states(host_idle, device) for device in devices)
    host = host_in_part(part, plan.extents.devices)
    given = CaptureInput(
        trace,
        host,
        projection,
        devices,
        plan.iterations,
        plan.flops_per_iteration,
        plan.whole,
        host_idle,
        outer=plan.window if plan.part_count > 1 else None,
    )
    tables = fill_tables(all_measures(), given, CaptureMeasure, totals_only=True)
    continues = {work.device: _gap_continues(work, plan.extents.devices[work.device]) for work in activities}
    page = None if plan.folder is None else _page_part(trace, plan, devices, host, projection, places, continues)
    rows = own_rows(trace)
    return PartResult(
        devices=devices
        if plan.keeps_rows
        else tuple(_without_frames(device, plan.steady(device.device), continues[device.device]) for device in devices),
        gaps={device.device: _candidates(trace, device, plan.top, continues[device.device]) for device in devices},
        host=host if plan.keeps_rows else _host_without_frames(host),
        tables=tables,
        iterations=iterations,
        unmatched=count_unmatched(trace),
        calls=None if plan.keeps_rows else _calls_in_part(trace),
        messages=count_messages(trace.sizes, trace.operations[rows], rows.start),
        steady_streams=steady_streams,
        page=page,
    )


def _page_part(
    trace: Trace,
    plan: PartPlan,
    devices: tuple[DeviceUse, ...],
    host: HostUse,
    projection: Projection,
    places: Places,
    continues: Mapping[int, bool],
) -> PagePart:
    """Return what a page needs of a part."""
    from traceview.measure.charts import chart_totals  # these modules are needed for a page alone
    from traceview.model.timeline.parts import write_part

    assert plan.folder is not None, "a page has a folder"
    own = trace.window is not None and trace.window.start > plan.window.start
    marks = write_part(trace, devices, host, project_ranges(trace, projection), own, plan.folder, plan.extents.events)
    charts, edges = {}, {}
    for device in devices:
        gaps, edges[device.device] = _split_pieces(device, continues[device.device])
        streams = plan.paired_streams(trace, device.device)
        charts[device.device] = chart_totals(
            trace, device, gaps, places, whole=plan.whole, streams=streams, part_count=plan.part_count
        )
    return PagePart(marks, charts, edges)


def _host_without_frames(host: HostUse) -> HostUse:
    sync, implicit = (replace(use, frame=NO_ROWS) for use in (host.sync, host.implicit_sync))
    return replace(host, sync=sync, implicit_sync=implicit)


def pair_streams(part: PartTrace, extents: Mapping[int, Window], streams: Mapping[int, Sequence[int]]) -> pl.DataFrame:
    """Return the result of stream_pairs for `streams` of devices; the keys are rows of Trace.devices."""
    from traceview.measure.charts import stream_pairs

    windows = {row: extents[row].within(part.trace.window or EVERYTHING) for row in streams}
    return pl.concat(stream_pairs(part.trace, row, window, streams[row]) for row, window in windows.items())


def _calls_in_part(trace: Trace) -> CallPart:
    window = trace.window or EVERYTHING
    own = np.searchsorted(trace.api["start"].to_numpy(), (window.start, window.end)).tolist()
    return CallPart.build(trace.api, trace.operations, trace.failed, slice(*own))


def activities_in_part(part: PartTrace, extents: Mapping[int, Window]) -> tuple[Activity, ...]:
    """Return the work of each device whose extent reaches into the part, also of one that is idle there.

    The keys of `extents` are rows of Trace.devices.
    """
    outer = part.trace.window or EVERYTHING
    inside = {row: extent.within(outer) for row, extent in extents.items()}
    for row, extent in extents.items():
        # A device whose work all has no length stays in the part where its extent starts.
        if not inside[row].length and (extent.length or not outer.start <= extent.start < outer.end):
            del inside[row]
    works = ((part.work(row), window) for row, window in inside.items())
    return tuple(work.clip(window) for work, window in works if work is not None)


def host_in_part(part: PartTrace, extents: Mapping[int, Window]) -> HostUse:
    """Return the blocking calls of a part; `extents` are those of activities_in_part."""

    def measured() -> HostUse:
        return measure_host(part.trace, activities_in_part(part, extents))

    return part.once_for_all_passes("host", measured, tuple(extents.items()))


def _gap_continues(work: Activity, extent: Window) -> bool:
    reach = int(work.busy.end[-1]) if len(work.busy.end) else work.window.start
    return work.gap_continues(reach, extent)


def _split_pieces(device: DeviceUse, continues: bool) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the gaps inside a part, and the pieces at its edges with the column `continues`."""
    frame = device.gaps.frame.select("start", "end", *CAUSES)
    is_piece = np.zeros(len(frame), np.bool_)
    is_piece[_edge_rows(device, continues)] = True
    return frame.filter(~is_piece), _with_continues(frame.filter(is_piece), device, continues)


def _candidates(trace: Trace, device: DeviceUse, top: int, continues: bool) -> pl.DataFrame:
    """Return the gaps that may be among the longest, and the pieces at the part's edges."""
    chosen = gap_candidates(trace, device, top, _edge_rows(device, continues))
    return _with_continues(chosen, device, continues)


def _edge_rows(device: DeviceUse, continues: bool) -> list[int]:
    """Return the rows of the gaps that cross an edge of the part."""
    start, last = device.gaps.frame["start"], device.gaps.frame.height - 1
    starts_before = last >= 0 and start[0] == device.window.start
    return sorted({*([0] if starts_before else []), *([last] if continues else [])})


def _with_continues(gaps: pl.DataFrame, device: DeviceUse, continues: bool) -> pl.DataFrame:
    """Return gaps with the column `continues`, which marks the one that goes on in the next part."""
    is_last = pl.col("end") == device.window.end
    return gaps.with_columns((is_last & pl.lit(continues)).alias("continues"))


def _without_frames(device: DeviceUse, steady: Window, continues: bool) -> DeviceUse:
    """Return the device without frames. A gap that continues is counted by the part in which it ends."""

    def small(part: DeviceFigures, extent: Window) -> dict[str, Any]:
        beyond = continues and part.window.length > 0 and extent.end > part.window.end == device.window.end
        gaps = replace(part.gaps, count=part.gaps.count - beyond, frame=NO_ROWS)
        return {"gaps": gaps}

    steady_part = replace(device.steady, **small(device.steady, steady))
    return replace(device, **small(device, EVERYTHING), steady=steady_part)
