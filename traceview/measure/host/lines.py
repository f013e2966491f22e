"""The source lines where host threads were while a GPU was idle (docs/definitions.md)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice, takewhile
from math import sqrt
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import EMPTY, Coverage, Intervals
from traceview.measure.host.idle_pieces import ThreadIdle
from traceview.measure.host.stack_cells import StackCells, StackIndex
from traceview.model.rows import CALLS, SourceLine
from traceview.model.stacks import HostEvidence

MAX_LINES = 200
MAX_CALLS = 12
Z = 1.96  # normal quantile of the confidence interval of 95%


class IdleStacks(NamedTuple):
    """For each stack that was seen in idle time: ns of idle time, ns of it with the cause `host`, and samples."""

    frame: pl.DataFrame
    exact: bool


def idle_stacks(index: StackIndex, idle: Iterable[ThreadIdle]) -> IdleStacks:
    """Return the stacks of idle time. Each nanosecond belongs to one stack or to none."""
    frame, exact = idle_cells(index, idle)
    counted = frame.with_columns(pl.lit(1, pl.Int64).alias("samples"))
    return IdleStacks(counted.group_by("stack").agg(pl.col("idle_ns", "host_ns", "samples").sum()).sort("stack"), exact)


def idle_cells(index: StackIndex, idle: Iterable[ThreadIdle]) -> IdleStacks:
    """Return the parts of the idle time by stack, with their `moment` (when the sample was due) and no `samples`."""
    rows, exact = [], True
    for part in idle:
        left = part.until_launch
        for cells in index.sources(part.thread):
            if len(left.start) == 0:
                break
            near = cells.near(left)
            rows.append(_stacks_in(near, left, part))
            exact &= cells.exact
            left = intervals.subtract(left, near.all)
    schema = {"stack": pl.Int32, "moment": pl.Int64, "idle_ns": pl.Int64, "host_ns": pl.Int64}
    return IdleStacks(pl.concat(rows) if rows else pl.DataFrame(schema=schema), exact)


def _stacks_in(cells: StackCells, left: Intervals, part: ThreadIdle) -> pl.DataFrame:
    inside = Coverage.from_union(left).length_between(cells.start, cells.end)
    stack = cells.stacks_in(part.until_launch)
    chosen = np.flatnonzero((inside > 0) & (stack >= 0))
    own = Coverage.from_union(intervals.intersect(left, part.host))
    return pl.DataFrame(
        {
            "stack": stack[chosen],
            "moment": cells.moment[chosen],
            "idle_ns": inside[chosen],
            "host_ns": own.length_between(cells.start[chosen], cells.end[chosen]),
        }
    )


def line_times(index: StackIndex, part: ThreadIdle, line: SourceLine) -> Intervals:
    """Return the `host` idle time that a part spends at a line."""
    frame = index.evidence.stacks["frame"].to_numpy()
    frames = index.evidence.frames
    same = (frames["file"] == line.file) & (frames["line"] == line.line)
    if not line.line:
        same &= frames["function"] == line.function
    is_line = np.append(same.to_numpy()[frame[index.own_nodes]], False)  # the last entry stands for no stack
    left, parts = part.host, [EMPTY]
    for all_cells in index.sources(part.thread):
        cells = all_cells.near(left)
        parts.append(intervals.intersect(left, cells.where(is_line[cells.stacks_in(part.until_launch)])))
        left = intervals.subtract(left, cells.all)
    return intervals.union(*(np.concatenate(sides) for sides in zip(*parts, strict=True)))


def measure_lines(index: StackIndex, stacks: IdleStacks) -> tuple[SourceLine, ...]:
    """Return the lines with the most idle time, each with the function of a library where most of it was spent."""
    if stacks.frame.is_empty():
        return ()
    evidence = index.evidence
    node = stacks.frame["stack"].to_numpy()
    frame = evidence.stacks["frame"].to_numpy()
    named = stacks.frame.with_columns(
        pl.Series("own", frame[index.own_nodes[node]]), pl.Series("inner", frame[node]), pl.Series("node", node)
    ).join(evidence.frames.with_row_index("own").cast({"own": pl.Int64}), on="own")
    by_inner = (
        named.sort("idle_ns", "node", descending=[True, False])
        .group_by("file", "line", "function", "own", "inner", maintain_order=True)
        .agg(pl.col("idle_ns", "host_ns", "samples").sum(), pl.col("node").first())
    )
    # A line may belong to several functions, such as a generator inside another; native code has functions alone.
    native = pl.when(pl.col("line") == 0).then("function").alias("native")
    lines = (
        by_inner.sort("idle_ns", "inner", descending=[True, False])
        .group_by("file", "line", native, maintain_order=True)
        .agg(pl.col("idle_ns", "host_ns", "samples").sum(), pl.col("function", "node").first())
        .sort("idle_ns", "file", "line", "function", descending=[True, False, False, False])
    )
    total, samples = int(lines["idle_ns"].sum()), int(lines["samples"].sum())
    return tuple(_line(evidence, row, total, 0 if stacks.exact else samples) for row in lines[:MAX_LINES].to_dicts())


def _line(evidence: HostEvidence, row: dict[str, int | str], total: int, samples: int) -> SourceLine:
    idle, node = int(row["idle_ns"]), int(row["node"])
    low, high = share_interval(idle / total, samples) if samples else (1.0, 0.0)
    return SourceLine(
        file=str(row["file"]),
        line=int(row["line"]),
        function=str(row["function"]),
        stack=_library_calls(evidence, node),
        idle_ns=idle,
        host_ns=int(row["host_ns"]),
        low_ns=min(int(low * total), idle),
        high_ns=max(int(high * total), idle),
        samples=int(row["samples"]),
        node=node,
    )


def _library_calls(evidence: HostEvidence, node: int) -> str:
    """Return the library functions between a stack and its line, the outermost first; at most MAX_CALLS of them."""
    calls = islice(takewhile(lambda frame: frame.library, evidence.callers(node)), MAX_CALLS)
    return CALLS.join(frame.text for frame in reversed(list(calls)))


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's confidence interval of a share that `count` samples show."""
    scale = 1 + Z * Z / count
    center = (share + Z * Z / (2 * count)) / scale
    half = Z * sqrt(share * (1 - share) / count + Z * Z / (4 * count * count)) / scale
    return max(center - half, 0.0), min(center + half, 1.0)
