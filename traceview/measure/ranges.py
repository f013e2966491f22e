"""NVTX ranges projected on the GPU (METRICS.md "NVTX projected on the GPU")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.activity import within
from traceview.measure.groups import busy_by, sums_by
from traceview.measure.nesting import Nesting
from traceview.model import SOURCES, NotMeasured, RangeUse, Trace, Window

KERNEL = SOURCES.index("kernel")
HOW_TO_ANNOTATE = (
    "no NVTX ranges in the capture, so nothing can be told apart by phase or iteration: put "
    "torch.cuda.nvtx.range_push/range_pop (or instrument.annotate) around each step and capture with "
    "-t cuda,nvtx; the nvtx package from 0.2.12 on is not recorded by nsys 2022.4 to 2024.2"
)


class Projection(NamedTuple):
    """Which operation belongs to which range: pairs of rows, and the launches found through the process.

    `operation` (row of Trace.operations) ascends; `range` is a row of Trace.ranges; `via_process` says
    that the launching thread had no range open, and the annotating thread's were taken.
    """

    operation: Times
    range: Times
    via_process: NDArray[np.bool_]


def project(trace: Trace, rows: Times) -> Projection:
    """Assign operations to all ranges that were open when they were launched."""
    launch = trace.operations["launch"].fill_null(-1).to_numpy()[rows]
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    at = trace.api["start"].to_numpy()[launch]
    thread = trace.api["thread"].to_numpy()[launch].astype(np.int64)
    nesting = Nesting.of(
        trace.ranges["start"].to_numpy(),
        trace.ranges["end"].to_numpy(),
        trace.ranges["thread"].to_numpy().astype(np.int64),
    )
    place = nesting.innermost(thread, at)
    lost = np.flatnonzero(place < 0)
    process = trace.operations["process"].to_numpy()[rows[lost]]
    place[lost] = nesting.innermost(_annotating_threads(trace, process), at[lost])
    via_process = np.zeros(len(rows), np.bool_)
    via_process[lost] = True
    parts = []
    for level in nesting.levels(place, at):
        found = np.flatnonzero(level >= 0)
        parts.append((rows[found], nesting.rows[level[found]], via_process[found]))
    if not parts:
        return Projection(rows[:0], rows[:0], via_process[:0])
    operation, owner, via = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.argsort(operation, kind="stable")
    return Projection(operation[order], owner[order], via[order])


def _annotating_threads(trace: Trace, process: NDArray[np.int32]) -> Times:
    """Return the thread that carries each process's annotations: the one with the most range time; -1 for none."""
    totals = (
        trace.ranges.group_by("process", "thread")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread"], descending=[True, False])
        .unique("process", keep="first", maintain_order=True)
    )
    thread = np.full(len(process), -1, np.int64)
    for one, of, _ in totals.iter_rows():
        thread[process == one] = of
    return thread


def measure_ranges(trace: Trace) -> tuple[RangeUse, ...] | NotMeasured:
    """Return one RangeUse for each (name, domain), the busiest on the GPU first."""
    if trace.ranges.is_empty():
        return NotMeasured(HOW_TO_ANNOTATE)
    operations, window = trace.operations, trace.window
    start, end = operations["start"].to_numpy(), operations["end"].to_numpy()
    rows = np.arange(len(start)) if window is None else np.flatnonzero(within(start, end, window))
    pairs = project(trace, rows)
    group, names = _groups(trace.ranges)
    count = len(names)
    frame = pl.DataFrame(
        {
            "group": group[pairs.range],
            "operation": pairs.operation,
            "range": pairs.range,
            "start": _clip(start[pairs.operation], window),
            "end": _clip(end[pairs.operation], window),
            "via": pairs.via_process,
            "kernel": operations["source"].to_physical().to_numpy()[pairs.operation] == KERNEL,
        }
    )
    once = frame.unique(["group", "operation"], keep="first", maintain_order=True)
    totals = _totals(once, count)
    uses = [
        RangeUse(*names[index], *host, *gpu)
        for index, (host, gpu) in enumerate(
            zip(_host(trace.ranges, group, count, window), _gpu(once, frame, totals, count), strict=True)
        )
        if host[0]
    ]
    return tuple(sorted(uses, key=lambda use: (-use.gpu_busy_ns, -use.host_ns, use.name, use.domain)))


def _clip(times: Times, window: Window | None) -> Times:
    return times if window is None else np.clip(times, window.start, window.end)


def _groups(ranges: pl.DataFrame) -> tuple[Times, list[tuple[str, str]]]:
    keys = ranges.select(pl.col("name").cast(pl.String), pl.col("domain").cast(pl.String))
    unique = keys.unique(maintain_order=True).with_row_index("group")
    group = keys.join(unique, on=["name", "domain"], how="left", maintain_order="left")["group"]
    return group.to_numpy().astype(np.int64), list(unique.select("name", "domain").iter_rows())


def _host(ranges: pl.DataFrame, group: Times, count: int, window: Window | None) -> list[tuple[int, int]]:
    """Return (count, host_ns) for each group."""
    start, end = ranges["start"].to_numpy(), ranges["end"].to_numpy()
    if window is not None:
        inside = within(start, end, window)
        start, end, group = _clip(start[inside], window), _clip(end[inside], window), group[inside]
    number = np.bincount(group, minlength=count)
    host = sums_by(group, end - start, count)
    return list(zip(number.tolist(), host.tolist(), strict=True))


def _totals(once: pl.DataFrame, count: int) -> pl.DataFrame:
    """Return, by group: first, last, kernels, operations, via; one row for each group, in order."""
    found = once.group_by("group").agg(
        pl.col("start").min().alias("first"),
        pl.col("end").max().alias("last"),
        pl.col("kernel").sum().cast(pl.Int64).alias("kernels"),
        pl.len().cast(pl.Int64).alias("operations"),
        pl.col("via").sum().cast(pl.Int64).alias("via"),
    )
    every = pl.DataFrame({"group": np.arange(count)})
    return every.join(found, on="group", how="left", maintain_order="left").fill_null(0)


def _gpu(
    once: pl.DataFrame, frame: pl.DataFrame, totals: pl.DataFrame, count: int
) -> list[tuple[int, int, int, int, int, int]]:
    """Return (busy, span, span of each, kernels, operations, via) for each group."""
    busy = busy_by(*(once[name].to_numpy() for name in ("group", "start", "end")), count)
    each = frame.group_by("range", "group").agg((pl.col("end").max() - pl.col("start").min()).alias("span"))
    span_each = sums_by(each["group"].to_numpy(), each["span"].to_numpy(), count)
    span = (totals["last"] - totals["first"]).to_list()
    columns = (busy.tolist(), span, span_each.tolist(), *(totals[name].to_list() for name in ("kernels", "operations", "via")))
    return list(zip(*columns, strict=True))
