"""One DeviceUse for each GPU that worked: its figures in its window and in its steady part, and its longest idle gaps.

docs/definitions.md "The steady part".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import polars as pl

from traceview import intervals
from traceview.measure import all_measures
from traceview.measure.activity import KERNEL, Activity, Copies
from traceview.measure.base import DeviceInput, fill_tables
from traceview.measure.event_tables import gap_ranges
from traceview.measure.exposure import device_exposure
from traceview.measure.gaps import ThreadStates, attribute
from traceview.measure.places import Places
from traceview.measure.shared_work import codes_of
from traceview.model.analysis import CAUSES, DeviceFigures, DeviceUse, Gap, Gaps, Unmatched
from traceview.model.columns import Table
from traceview.model.rows import CopyOverlap
from traceview.model.trace import KINDS, Trace, Window


def measure_device(
    trace: Trace, threads: ThreadStates, work: Activity, places: Places, steady: Window | None = None
) -> DeviceUse:
    """Return the figures of a device in its window, and in the part of it that is `steady`, by default all of it."""
    row, exposed = trace.devices.row(work.device, named=True), device_exposure(trace, work)
    part = work if steady is None else work.clip(steady.within(work.window))
    given = DeviceInput(trace, work, places, threads, exposed)
    of_part = given if part is work else DeviceInput(trace, part, places, threads, exposed.inside(trace, part.window))
    tables = fill_tables(all_measures(), given, "steady", "window")
    entire = _measure_part(trace, work, given.gaps, tables)
    if part is work:
        of_steady = {each.table.name: tables[each.table.name] for each in all_measures() if each.scope == "steady"}
        narrow = replace(entire, tables=of_steady)
    else:
        tables = fill_tables(all_measures(), of_part, "steady")
        narrow = _measure_part(trace, part, clip_gaps(trace, threads, given.gaps, part.window), tables)
    return DeviceUse(
        **entire.figures(),
        device=work.device,
        id=row["id"],
        name=row["name"],
        process_ids=tuple(row["processes"]),
        steady=narrow,
    )


def with_longest_gaps(trace: Trace, devices: Sequence[DeviceUse], top: int) -> Iterator[DeviceUse]:
    """Yield the devices with their `top` longest gaps, longest first.

    Each gap names the operation that ends it, the thread that launched this operation, and the thread's NVTX range.
    """
    if not devices:
        return
    frames = [_longest(device.gaps.frame, top) for device in devices]
    chosen = pl.concat(frames)
    names = trace.operations["name"].gather(chosen["operation"]).cast(pl.String)
    gaps = (
        Gap(
            start_ns=row["start"],
            end_ns=row["end"],
            causes={name: row[name] for name in CAUSES},
            next_operation=name,
            thread=row["thread"],
            range=range_name,
        )
        for row, name, range_name in zip(chosen.iter_rows(named=True), names, gap_ranges(trace, chosen), strict=True)
    )
    for device, frame in zip(devices, frames, strict=True):
        yield replace(device, gaps=replace(device.gaps, longest=tuple(islice(gaps, len(frame)))))


def _longest(gaps: pl.DataFrame, top: int) -> pl.DataFrame:
    length = gaps["end"].to_numpy() - gaps["start"].to_numpy()
    candidates = intervals.rows_of_largest(length, top)
    return gaps[candidates[np.argsort(-length[candidates], kind="stable")[: max(top, 0)]]]


def count_unmatched(trace: Trace) -> Unmatched:
    """Count operations of the window whose launch is not in the capture.

    Operations with correlation id 0 never have a launch. An operation belongs to the window of its start.
    """
    without = trace.operations.lazy().filter(pl.col("launch").is_null() & (pl.col("correlation") != 0))
    if trace.window is not None:
        without = without.filter(pl.col("start").is_between(trace.window.start, trace.window.end, closed="left"))
    sources = without.select("source").collect()["source"].cast(pl.String)
    counts = dict(sources.value_counts().iter_rows())
    return Unmatched(
        kernels=counts.get("kernel", 0),
        copies=counts.get("memcpy", 0),
        memsets=counts.get("memset", 0),
        graphs=counts.get("graph", 0),
    )


def _measure_part(trace: Trace, work: Activity, gaps: Gaps, tables: Mapping[str, Table]) -> DeviceFigures:
    """Combine what is measured for a window with the lengths of its work."""
    busy, copies = intervals.length(work.busy), tables["copies"].rows
    source = work.select(codes_of(trace.operations, "source"))
    return DeviceFigures(
        window=work.window,
        kernel_count=int(np.count_nonzero(source == KERNEL)),
        busy_ns=busy,
        compute_ns=intervals.length(work.compute),
        communication_ns=intervals.length(work.communication),
        exposed_h2d_ns=_exposed_copies(trace, work, copies, "h2d"),
        exposed_d2h_ns=_exposed_copies(trace, work, copies, "d2h"),
        idle_ns=work.window.length - busy,
        gaps=gaps,
        tables=tables,
    )


def _exposed_copies(trace: Trace, work: Activity, overlaps: Sequence[CopyOverlap], kind: str) -> int:
    """Return the time with a copy of this kind and without compute."""
    exposed = [overlap.exposed_ns for overlap in overlaps if overlap.kind == kind]
    if len(exposed) < 2:
        return sum(exposed)
    # Copies from two kinds of memory may run at the same time.
    copies = Copies.from_activity(trace, work)
    chosen = copies.members[copies.kind == KINDS.index(kind)]
    union = intervals.union(work.start[chosen], work.end[chosen], ordered=True)
    return intervals.length(union) - intervals.overlap_length(union, work.compute)


def clip_gaps(trace: Trace, threads: ThreadStates, gaps: Gaps, window: Window) -> Gaps:
    """Return the gaps inside a window. A gap at its border is cut, and what stays inside gets its causes again."""
    start, end = gaps.frame["start"].to_numpy(), gaps.frame["end"].to_numpy()
    first = int(np.searchsorted(end, window.start, side="right"))
    last = int(np.searchsorted(start, window.end, side="left")) if window.length else first
    frame = gaps.frame[first : max(last, first)]
    if len(frame) and (start[first] < window.start or end[last - 1] > window.end):
        ends = _cut_to(trace, threads, frame[[0, -1]] if len(frame) > 1 else frame, window)
        frame = pl.concat([ends[:1], frame[1:-1], ends[1:]])
    return Gaps(
        count=len(frame),
        total_ns=int((frame["end"] - frame["start"]).sum()),
        causes={cause: int(frame[cause].sum()) if gaps.causes[cause] else 0 for cause in CAUSES},
        frame=frame,
    )


def _cut_to(trace: Trace, threads: ThreadStates, gaps: pl.DataFrame, window: Window) -> pl.DataFrame:
    start = np.maximum(gaps["start"].to_numpy(), window.start)
    end = np.minimum(gaps["end"].to_numpy(), window.end)
    causes = attribute(trace, threads, start, end, gaps["operation"].fill_null(-1).to_numpy())
    columns = {"start": start, "end": end} | dict(zip(CAUSES, causes, strict=True))
    return gaps.with_columns(pl.Series(name, values) for name, values in columns.items())
