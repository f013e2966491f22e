"""Memory in use: its peak, and the range and line that allocated it; its curve for the timeline."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from traceview.measure.base import CaptureInput, Measure
from traceview.measure.nvtx import annotating_threads, innermost_ranges, without_library_ranges
from traceview.model.columns import Table
from traceview.model.names import fold_numbers
from traceview.model.sizes import CounterSeries, MemoryUse
from traceview.model.trace import Trace, Window

KEY = ("device", "kind")
MIN_SHOWN = 0.01  # a row of the timeline has at least this share of the largest peak of its device


def memory_curves(trace: Trace) -> Iterator[CounterSeries]:
    """Yield the memory of each device and kind over time."""
    peaks = trace.memory.group_by(KEY).agg(pl.col("total").max())
    shown = peaks.filter(pl.col("total") >= MIN_SHOWN * pl.col("total").max().over("device"))
    for (device, kind), _ in shown.sort(KEY).group_by(KEY, maintain_order=True):
        own = trace.memory.filter(pl.col("device") == device, pl.col("kind") == kind)
        yield CounterSeries(
            f"{kind} memory", "bytes", own["start"].to_numpy(), own["total"].to_numpy(), int(str(device))
        )


def memory_uses(given: CaptureInput) -> tuple[MemoryUse, ...]:
    """Return the memory of each analyzed device by kind, inside the trace's window."""
    first = 0 if given.trace.operations.is_empty() else int(given.trace.operations["start"][0])
    names = {device.device: device.id for device in given.devices}
    memory = given.trace.memory.filter(pl.col("device").is_in(list(names)))
    rows: list[MemoryUse] = []
    for (device, _), own in memory.sort(*KEY, "start", maintain_order=True).group_by(KEY, maintain_order=True):
        rows.extend(_memory_use(given, names[int(str(device))], own, first))
    return tuple(rows)


def _memory_use(given: CaptureInput, device: str, own: pl.DataFrame, first_work: int) -> Iterator[MemoryUse]:
    trace = given.trace
    window = trace.window or Window(int(str(own["start"].min())), int(str(own["start"].max())) + 1)
    until = own.filter(pl.col("start") < window.end)
    inside = until.filter(pl.col("start").shift(-1).fill_null(window.end) > window.start)
    if inside.is_empty():
        return
    peak = inside[int(inside["total"].arg_max() or 0)]
    (kind,), (at,), (total,) = peak["kind"], peak["start"], peak["total"]
    new = inside.filter((pl.col("bytes") > 0) & (pl.col("start") >= window.start))
    range_name, place, place_bytes = _largest_place(given, until.filter(pl.col("start") <= at))
    yield MemoryUse(
        device=device,
        kind=kind,
        peak_bytes=total,
        peak_ns=max(at, window.start) - first_work,
        end_bytes=int(inside["total"][-1]),
        count=len(new),
        allocated_bytes=int(new["bytes"].sum()),
        range=range_name,
        place=place,
        place_bytes=place_bytes,
    )


def _largest_place(given: CaptureInput, events: pl.DataFrame) -> tuple[str, str, int]:
    """Return the range and the line that allocated most of what is in use after these events, and its bytes."""
    held = events.filter(pl.col("address").is_not_null()).unique("address", keep="last", maintain_order=True)
    held = held.filter(pl.col("bytes") > 0)
    if held.is_empty():
        return "", "", 0
    thread = held["thread"].fill_null(-1).to_numpy().astype(np.int64)
    moments = held["start"].to_numpy()
    lines = [""] * len(held) if given.host_time is None else given.host_time.lines_at(thread, moments)
    places = held.select("bytes", _range_names(given.trace, thread, moments), pl.Series("place", lines))
    sums = places.group_by("range", "place").agg(pl.col("bytes").sum())
    name, place, size = sums.sort("bytes", "range", "place", descending=[True, False, False]).row(0)
    return name, place, size


def _range_names(trace: Trace, thread: np.ndarray, moments: np.ndarray) -> pl.Series:
    """Return the innermost range of each moment, of the thread or else of the one that annotates its process."""
    ranges = without_library_ranges(trace.ranges)
    start, end, own = (ranges[name].to_numpy() for name in ("start", "end", "thread"))
    row = innermost_ranges(start, end, own, thread, moments)
    other = innermost_ranges(start, end, own, annotating_threads(trace)[thread], moments)
    names = pl.concat([fold_numbers(ranges["name"].cast(pl.String)), pl.Series([""])])  # the last one for row -1
    return names.gather(np.where(row >= 0, row, other) % len(names)).alias("range")


MEMORY_USE = Measure(
    Table(
        name="memory",
        title="Memory",
        row_type=MemoryUse,
        note="Memory in use, and the range and line that allocated most of its peak.",
    ),
    memory_uses,
    "capture",
)
