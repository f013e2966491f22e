"""The measures of one time slice of a capture: today's measures inside a window, reduced to what merges.

Slices adjoin. A border is a moment at which no GPU works and no thread is blocked (slices/plan.py), so that every
operation and every blocking call lies in one slice. Only gaps cross borders.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np
import polars as pl

from traceview.frozen import frozen
from traceview.measure import all_measures
from traceview.measure.activity import Activity, active_devices, device_activity
from traceview.measure.base import CaptureInput, CaptureMeasure, fill_tables
from traceview.measure.devices import count_unmatched, gap_candidates, measure_devices, with_steady_part
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.host import HostIdle, with_host_states
from traceview.measure.nvtx.projection import project_operations
from traceview.measure.places.locate import locate_operations
from traceview.measure.sync import measure_host
from traceview.model.analysis import HostUse, NotMeasured, Unmatched
from traceview.model.columns import Table
from traceview.model.devices import DevicePart, DeviceUse
from traceview.model.trace import Trace, Window

BEGINNING, END = -(1 << 62), 1 << 62  # before and after all events: the outer edges of a capture's slices
NO_ROWS = pl.DataFrame()
NO_ITERATIONS = NotMeasured("iterations are those of the capture, not of a slice")


@frozen
class Extents:
    """The time from the first start to the last end of each device and each stream in the analyzed window.

    The keys are rows of Trace.devices and Trace.streams.
    """

    devices: Mapping[int, Window]
    streams: Mapping[int, Window]

    @classmethod
    def from_trace(cls, trace: Trace, device: str | None = None) -> Extents:
        """Find the extents of a complete trace; `device` selects a GPU (see active_devices, also for errors)."""
        devices, streams = {}, {}
        stream = trace.operations["stream"].to_numpy()
        for work in active_devices(trace, device):
            devices[work.device] = work.window
            own = stream[work.rows]
            for row in np.unique(own).tolist():
                members = np.flatnonzero(own == row)
                streams[row] = Window(int(work.start[members[0]]), int(work.end[members].max()))
        return cls(devices, streams)


@frozen
class Slice:
    """A slice of a capture. `trace` has what the measures of its window need, and its own window.

    `steady` is the steady part of each device of the whole capture.
    """

    index: int
    trace: Trace
    extents: Extents
    steady: Mapping[int, Window]
    top: int = 10  # longest gaps to list


@frozen
class SliceResult:
    """The figures of a slice, which are small: no frame has a row for each event.

    The gaps of devices have no frames. `gaps` has, by device, the gaps that may be among the longest of the capture,
    and the pieces of gaps that cross an edge of the slice (gap_candidates; `continues`: beyond the slice).
    """

    index: int
    devices: tuple[DeviceUse, ...]
    gaps: Mapping[int, pl.DataFrame]
    host: HostUse
    tables: Mapping[str, Table]
    unmatched: Unmatched
    extras: Mapping[str, object] = field(default_factory=dict)


def measure_slice(part: Slice) -> SliceResult:
    """Measure a slice with the measures of a complete capture."""
    trace = part.trace
    activities = _activities(part)
    threads = ThreadStates.from_trace(trace)
    projection = project_operations(trace)
    places = locate_operations(trace, projection)
    host_idle = HostIdle.build(trace, threads)
    devices = []
    for work in activities:
        (device,) = measure_devices(trace, threads, [work], places, part.extents.streams)
        steady = work.clip(part.steady[work.device].within(work.window))
        devices.append(with_host_states(host_idle, with_steady_part(trace, threads, device, steady, places)))
    host = measure_host(trace, activities)
    given = CaptureInput(trace, host, projection, tuple(devices), NO_ITERATIONS, host_time=host_idle)
    tables = fill_tables(all_measures(), given, CaptureMeasure)
    continues = [_gap_continues(work, part.extents.devices[work.device]) for work in activities]
    return SliceResult(
        index=part.index,
        devices=tuple(
            _without_frames(device, part.steady[device.device], goes_on)
            for device, goes_on in zip(devices, continues, strict=True)
        ),
        gaps={
            device.device: _candidates(part, device, goes_on)
            for device, goes_on in zip(devices, continues, strict=True)
        },
        host=replace(
            host, sync=replace(host.sync, frame=NO_ROWS), implicit_sync=replace(host.implicit_sync, frame=NO_ROWS)
        ),
        tables={name: _small(table) for name, table in tables.items()},
        unmatched=count_unmatched(trace),
    )


def _activities(part: Slice) -> tuple[Activity, ...]:
    """Return the work of each device whose extent has a part in the slice, also of one that is idle there."""
    complete = replace(part.trace, window=None)
    window = part.trace.window or Window(BEGINNING, END)
    inside = {row: extent.within(window) for row, extent in part.extents.devices.items()}
    works = ((device_activity(complete, row), window) for row, window in inside.items() if window.length)
    return tuple(work.clip(window) for work, window in works if work is not None)


def _gap_continues(work: Activity, extent: Window) -> bool:
    reach = int(work.busy.end[-1]) if len(work.busy.end) else work.window.start
    return work.gap_continues(reach, extent)


def _candidates(part: Slice, device: DeviceUse, continues: bool) -> pl.DataFrame:
    """Return the gaps that may be among the longest, and the pieces at the slice's edges."""
    frame, last = device.gaps.frame, device.gaps.frame.height - 1
    starts_before = last >= 0 and frame["start"][0] == device.window.start
    pieces = [*([0] if starts_before else []), *([last] if continues else [])]
    chosen = gap_candidates(part.trace, device, part.top, pieces)
    is_last = pl.col("end") == device.window.end
    return chosen.with_columns((is_last & pl.lit(continues)).alias("continues"))


def _without_frames(device: DeviceUse, steady: Window, continues: bool) -> DeviceUse:
    """Return the device without frames. A gap that continues is counted by the slice in which it ends."""

    def small(part: DevicePart, extent: Window) -> dict[str, Any]:
        beyond = continues and part.window.length > 0 and extent.end > part.window.end == device.window.end
        gaps = replace(part.gaps, count=part.gaps.count - beyond, frame=NO_ROWS)
        return {"gaps": gaps, "tables": {name: _small(table) for name, table in part.tables.items()}}

    steady_part = replace(device.steady, **small(device.steady, steady))
    everything = Window(BEGINNING, END)
    return replace(device, **small(device, everything), steady=steady_part)


def _small(table: Table) -> Table:
    return table if table.totals is None else replace(table, rows=())
