"""The events that an export holds, narrowed to a window and a device, and the idle time of its GPUs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from traceview.measure.activity import Activity, active_devices, overlaps_window
from traceview.measure.gaps import ThreadStates, device_gaps
from traceview.model.analysis import Analysis, Gaps
from traceview.model.frozen import dataclass
from traceview.model.trace import Trace


@dataclass(frozen=True, slots=True)
class ExportContents:
    """The events of an export, cut at the borders of the window as an analysis cuts them.

    `operations`, `api`, `ranges` and `scopes` have the columns of Trace's frames plus `row`, the row number in that
    frame; ranges that are scopes are in `ranges` alone. A `launch` is null if its call is not in `api`. `analysis` has
    the findings to show, if any.
    """

    trace: Trace
    activities: tuple[Activity, ...]
    host: ThreadStates
    operations: pl.DataFrame
    api: pl.DataFrame
    ranges: pl.DataFrame
    scopes: pl.DataFrame
    analysis: Analysis | None = None

    def device_name(self, device: int) -> str:
        """Return the name of a device (a row of Trace.devices) in all tracks: "GPU 0 NVIDIA H200"."""
        row = self.trace.devices.row(device, named=True)
        return f"{row['id']} {row['name']}".strip()

    def gaps(self, device: Activity) -> Gaps:
        """Measure the idle gaps of a device and their causes, as an analysis does."""
        return device_gaps(self.trace, self.host, device)

    @property
    def first(self) -> int:
        """The earliest time in the export, in ns."""
        frames = (self.operations, self.api, self.ranges, self.scopes)
        starts = [int(frame["start"].to_numpy().min()) for frame in frames if len(frame)]
        return min([*starts, *(device.window.start for device in self.activities)], default=0)


def collect(trace: Trace, device: str | None = None) -> ExportContents:
    """Collect the events of `trace` inside its window; `device` keeps only one GPU and its processes.

    Raises NoGpuWorkError and RequestError as active_devices does.
    """
    activities = active_devices(trace, device)
    used = [process for work in activities for process in trace.devices["processes"][work.device]]
    processes = None if device is None else sorted(set(used))
    api = _host_events(trace, trace.api, processes)
    return ExportContents(
        trace=trace,
        activities=activities,
        host=ThreadStates.from_trace(trace),
        operations=_operations(trace, activities, api),
        api=api,
        ranges=_host_events(trace, trace.ranges, processes),
        scopes=_host_events(trace, trace.scopes.filter(pl.col("range").is_null()), processes),
    )


def _operations(trace: Trace, activities: Sequence[Activity], api: pl.DataFrame) -> pl.DataFrame:
    if trace.window is None and sum(len(work.rows) for work in activities) == len(trace.operations):
        return _with_row_numbers(trace.operations)
    nothing = [np.empty(0, np.int64)]
    rows = np.concatenate([work.rows for work in activities] or nothing)
    order = np.argsort(rows, kind="stable")
    start = np.concatenate([work.start for work in activities] or nothing)[order]
    end = np.concatenate([work.end for work in activities] or nothing)[order]
    frame = trace.operations[rows[order]].with_columns(
        start=pl.Series(start, dtype=pl.Int64),
        end=pl.Series(end, dtype=pl.Int64),
        row=pl.Series(rows[order], dtype=pl.Int64),
    )
    if len(api) == len(trace.api):
        return frame
    kept = np.zeros(len(trace.api) + 1, np.bool_)
    kept[api["row"].to_numpy()] = True
    known = kept[frame["launch"].fill_null(len(trace.api)).to_numpy()]
    return frame.with_columns(pl.when(pl.Series(known)).then("launch").alias("launch"))


def _host_events(trace: Trace, frame: pl.DataFrame, processes: Sequence[int] | None) -> pl.DataFrame:
    if trace.window is None and processes is None:
        return _with_row_numbers(frame)
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    inside = np.ones(len(frame), np.bool_)
    if trace.window is not None:
        inside = overlaps_window(start, end, trace.window)
        start, end = np.maximum(start, trace.window.start), np.minimum(end, trace.window.end)
    if processes is not None:
        inside &= np.isin(frame["process"].to_numpy(), processes)
    rows = np.flatnonzero(inside)
    return frame[rows].with_columns(
        start=pl.Series(start[rows], dtype=pl.Int64),
        end=pl.Series(end[rows], dtype=pl.Int64),
        row=pl.Series(rows, dtype=pl.Int64),
    )


def _with_row_numbers(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(row=pl.int_range(len(frame), dtype=pl.Int64))
