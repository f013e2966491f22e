"""The source lines where host threads were while a GPU was idle (docs/definitions.md)."""

from __future__ import annotations

from collections.abc import Iterable
from math import sqrt
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Coverage, Intervals
from traceview.measure.host.idle_pieces import ThreadIdle
from traceview.measure.host.stack_cells import StackCells, StackIndex
from traceview.model.rows import CALLS, SourceLine, place_text
from traceview.model.stacks import HostEvidence

MAX_LINES = 200
MAX_CALLS = 12
Z = 1.96  # of the confidence interval of 95%


class IdleStacks(NamedTuple):
    """For each stack that was seen in idle time: ns of idle time, ns of it with the cause `host`, and samples."""

    frame: pl.DataFrame
    exact: bool


def idle_stacks(index: StackIndex, idle: Iterable[ThreadIdle]) -> IdleStacks:
    """Return the stacks of idle time. Each nanosecond belongs to one stack or to none."""
    rows, exact = [], True
    for part in idle:
        left = part.until_launch
        for cells in index.sources(part.thread):
            if len(left.start) == 0:
                break
            rows.append(_stacks_in(cells, left, part))
            exact &= cells.exact
            left = intervals.subtract(left, cells.where(np.ones(len(cells.start), np.bool_)))
    schema = {"stack": pl.Int32, "idle_ns": pl.Int64, "host_ns": pl.Int64, "samples": pl.Int64}
    frame = pl.concat(rows) if rows else pl.DataFrame(schema=schema)
    return IdleStacks(frame.group_by("stack").sum().sort("stack"), exact)


def _stacks_in(all_cells: StackCells, left: Intervals, part: ThreadIdle) -> pl.DataFrame:
    cells = all_cells.near(left)
    inside = Coverage.from_union(left).length_between(cells.start, cells.end)
    stack = cells.stacks_in(part.until_launch)
    chosen = np.flatnonzero((inside > 0) & (stack >= 0))
    own = Coverage.from_union(intervals.intersect(left, part.host))
    return (
        pl.DataFrame(
            {
                "stack": stack[chosen],
                "idle_ns": inside[chosen],
                "host_ns": own.length_between(cells.start[chosen], cells.end[chosen]),
            }
        )
        .group_by("stack")
        .agg(pl.col("idle_ns", "host_ns").sum(), pl.len().cast(pl.Int64).alias("samples"))
    )


def measure_lines(evidence: HostEvidence, stacks: IdleStacks) -> tuple[SourceLine, ...]:
    """Return the lines with the most idle time, each with the function of a library where most of it was spent."""
    if stacks.frame.is_empty():
        return ()
    node = stacks.frame["stack"].to_numpy()
    frame = evidence.stacks["frame"].to_numpy()
    named = stacks.frame.with_columns(
        pl.Series("own", frame[own_nodes(evidence)[node]]), pl.Series("inner", frame[node]), pl.Series("node", node)
    ).join(evidence.frames.with_row_index("own").cast({"own": pl.Int64}), on="own")
    by_inner = named.group_by("file", "line", "function", "own", "inner").agg(
        pl.col("idle_ns", "host_ns", "samples").sum(), pl.col("node").min()
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
    idle = int(row["idle_ns"])
    low, high = share_interval(idle / total, samples) if samples else (1.0, 0.0)
    return SourceLine(
        file=str(row["file"]),
        line=int(row["line"]),
        function=str(row["function"]),
        stack=_library_calls(evidence, int(row["node"])),
        idle_ns=idle,
        host_ns=int(row["host_ns"]),
        low_ns=min(int(low * total), idle),
        high_ns=max(int(high * total), idle),
        samples=int(row["samples"]),
    )


def _library_calls(evidence: HostEvidence, node: int) -> str:
    """Return the library functions between a stack and its line, the outermost first; at most MAX_CALLS of them."""
    calls: list[str] = []
    while node >= 0 and len(calls) < MAX_CALLS:
        parent, frame = evidence.stacks.row(node)
        function, file, line, library = evidence.frames.row(frame)
        if not library:
            break
        place = place_text(file, line)
        calls.append(f"{function} ({place})" if place else function)
        node = parent
    return CALLS.join(reversed(calls))


def share_interval(share: float, count: int) -> tuple[float, float]:
    """Return Wilson's confidence interval of a share that `count` samples show."""
    scale = 1 + Z * Z / count
    center = (share + Z * Z / (2 * count)) / scale
    half = Z * sqrt(share * (1 - share) / count + Z * Z / (4 * count * count)) / scale
    return max(center - half, 0.0), min(center + half, 1.0)


def own_nodes(evidence: HostEvidence) -> NDArray[np.int64]:
    """Return for each stack its innermost node of the program's own code; the stack itself if it has none."""
    parent, frame = evidence.stacks["parent"].to_numpy(), evidence.stacks["frame"].to_numpy()
    library = evidence.frames["library"].to_numpy()[frame]
    node = np.arange(len(parent))
    while (outward := library[node] & (parent[node] >= 0)).any():
        node = np.where(outward, parent[node], node)
    return np.where(library[node], np.arange(len(parent)), node)
