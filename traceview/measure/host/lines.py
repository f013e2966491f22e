"""The time of idle gaps for which a host thread is responsible, and its source lines in them (docs/definitions.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, takewhile
from math import sqrt
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import EMPTY, Coverage, Intervals
from traceview.measure.gaps import ThreadStates
from traceview.measure.host.stack_cells import StackCells, StackIndex, sampled_cells
from traceview.model.rows import CALLS, SourceLine
from traceview.model.stacks import HostEvidence
from traceview.model.trace import Trace

KEY = ("stack", "until")
MIN_SHARE = 0.05  # share of the unseen time until a line; a line with less does not begin it
MAX_LINES = 200
MAX_CALLS = 12
Z = 1.96  # normal quantile of the confidence interval of 95%


class ThreadIdle(NamedTuple):
    """Idle time of a device that ends with launches of one thread (row of Trace.threads).

    `until_launch` lasts to the return of the launch, without the profiler's overhead: the causes `launch`, `sync`,
    `blocking_copy`, `memory`, `api` and `host`. `host` has the cause `host` only.
    """

    thread: int
    until_launch: Intervals
    host: Intervals


def idle_by_thread(trace: Trace, states: ThreadStates, gaps: pl.DataFrame) -> Iterator[ThreadIdle]:
    """Yield the idle time of each launching thread; `gaps` has start, end, operation and thread (see Gaps.frame)."""
    ended = gaps.filter(pl.col("thread").is_not_null())
    if ended.is_empty():
        return
    call = trace.operations["launch"].gather(ended["operation"].to_numpy()).to_numpy()
    start, end, thread = (ended[name].to_numpy() for name in ("start", "end", "thread"))
    launched, returned = (np.clip(trace.api[name].to_numpy()[call], start, end) for name in ("start", "end"))
    profiler = states.profiler.union()
    for caller, own in intervals.rows_by_code(thread):
        before = intervals.union(start[own], launched[own], ordered=True)
        host = intervals.subtract(before, states.threads[caller].all.members_near(before))
        blamed = intervals.union(start[own], np.maximum(returned[own], launched[own]), ordered=True)
        yield ThreadIdle(caller, intervals.subtract(blamed, profiler), intervals.subtract(host, profiler))


class IdleStacks(NamedTuple):
    """For each stack that was seen in idle time: ns of idle time, ns of it with the cause `host`, and samples.

    Where a thread ran unseen, `stack` is the one before and `until` the one after; else `until` is -1.
    """

    frame: pl.DataFrame
    exact: bool


def idle_stacks(index: StackIndex, idle: Iterable[ThreadIdle]) -> IdleStacks:
    """Return the stacks of idle time; all unseen time until a line begins at one line."""
    cells, exact = idle_cells(index, idle)
    sums = cells.group_by(KEY).agg(
        pl.col("idle_ns", "host_ns").sum(),
        pl.len().cast(pl.Int64).alias("samples"),
        (pl.col("moment") - pl.col("since")).cast(pl.Float64).sum().alias("apart"),
    )
    by_begin = _nearest_before(index, sums)
    frame = by_begin.group_by(KEY).agg(pl.col("idle_ns", "host_ns", "samples").sum()).sort(KEY)
    return IdleStacks(frame, exact)


def idle_cells(index: StackIndex, idle: Iterable[ThreadIdle]) -> IdleStacks:
    """Return the idle time by stack, with its `moment` (when the sample was due) and no `samples`."""
    rows, exact = [], True
    for thread_idle in idle:
        left = thread_idle.until_launch
        for cells in index.sources(thread_idle.thread):
            if len(left.start) == 0:
                break
            near = cells.near(left)
            rows.append(_stacks_in(index, near, left, thread_idle))
            exact &= cells.exact
            left = intervals.subtract(left, near.all)
    schema = {
        "stack": pl.Int32,
        "until": pl.Int32,
        "since": pl.Int64,
        "moment": pl.Int64,
        "idle_ns": pl.Int64,
        "host_ns": pl.Int64,
    }
    return IdleStacks(pl.concat(rows) if rows else pl.DataFrame(schema=schema), exact)


def _nearest_before(index: StackIndex, sums: pl.DataFrame) -> pl.DataFrame:
    """Return the sums of KEY where all unseen time until a line begins at one line: the one seen last before it.

    `apart` is the time since then, summed over the samples. A line with little of the time does not count.
    """
    unseen = sums["until"].to_numpy() >= 0
    if not unseen.any():
        return sums
    end = pl.Series("end", np.where(unseen, index.own_frames[sums["until"].to_numpy()], -1))
    own = pl.Series("own", index.own_frames[sums["stack"].to_numpy()])
    sums = sums.with_columns(end, own)
    begins = (
        sums.filter(pl.col("end") >= 0)
        .group_by("end", "own", maintain_order=True)
        .agg(pl.col("idle_ns").sum(), pl.col("apart").sum() / pl.col("samples").sum(), pl.col("stack").min())
        .filter(pl.col("idle_ns") >= MIN_SHARE * pl.col("idle_ns").sum().over("end"))
        .sort("end", "apart", "stack")
        .unique("end", keep="first", maintain_order=True)
    )
    joined = sums.join(begins.select("end", pl.col("stack").alias("begin")), on="end", how="left")
    return joined.with_columns(pl.coalesce("begin", "stack").alias("stack")).drop("begin", "end", "own")


def _stacks_in(index: StackIndex, cells: StackCells, left: Intervals, thread_idle: ThreadIdle) -> pl.DataFrame:
    inside = Coverage.from_union(left).length_between(cells.start, cells.end)
    cells, inside = cells.select(np.flatnonzero(inside)), inside[inside > 0]
    stack, until = index.stacks_in(cells, thread_idle.until_launch)
    chosen = np.flatnonzero(stack >= 0)
    own = Coverage.from_union(intervals.intersect(left, thread_idle.host))
    return pl.DataFrame(
        {
            "stack": stack[chosen],
            "until": until[chosen],
            "since": cells.since[chosen],
            "moment": cells.moment[chosen],
            "idle_ns": inside[chosen],
            "host_ns": own.length_between(cells.start[chosen], cells.end[chosen]),
        }
    )


def line_times(index: StackIndex, thread_idle: ThreadIdle, line: SourceLine) -> Intervals:
    """Return the `host` idle time that a thread spends at a line."""
    frames = index.evidence.frames
    same = (frames["file"] == line.file) & (frames["line"] == line.line)
    if not line.line:
        same &= frames["function"] == line.function
    ends = (frames["file"] + ":" + frames["line"].cast(pl.String)) == line.until
    # The last entry stands for no stack.
    is_line, is_end = (
        np.append(which.to_numpy()[index.own_frames], none) for which, none in ((same, False), (ends, not line.until))
    )
    left, pieces = thread_idle.host, [EMPTY]
    for all_cells in index.sources(thread_idle.thread):
        cells = all_cells.near(left)
        stack, until = index.stacks_in(cells, thread_idle.until_launch)
        chosen = is_end[until] & (is_line[stack] | (until >= 0))
        pieces.append(intervals.intersect(left, cells.where(chosen)))
        left = intervals.subtract(left, cells.all)
    return intervals.union(*(np.concatenate(sides) for sides in zip(*pieces, strict=True)))


def measure_lines(index: StackIndex, stacks: IdleStacks) -> tuple[SourceLine, ...]:
    """Return the lines with the most idle time, each with the function of a library where most of it was spent.

    One row has all beyond MAX_LINES.
    """
    if stacks.frame.is_empty():
        return ()
    evidence = index.evidence
    node, until = (stacks.frame[name].to_numpy() for name in KEY)
    own, inner = index.own_frames, evidence.stacks["frame"].to_numpy()[node]
    frames = evidence.frames.with_row_index("own").cast({"own": pl.Int64})
    end = pl.when(pl.col("line") > 0).then(pl.format("{}:{}", "file", "line")).otherwise("function")
    ends = frames.select(pl.col("own").alias("end"), end.alias("until"))
    named = (
        pl.DataFrame({"own": own[node], "inner": inner, "node": node, "end": np.where(until < 0, -1, own[until])})
        .hstack(stacks.frame.drop(KEY))
        .join(frames, on="own")
        .join(ends, on="end", how="left")
        .with_columns(pl.col("until").fill_null(""))
    )
    by_inner = (
        named.sort("idle_ns", "node", descending=[True, False])
        .group_by("file", "line", "function", "own", "inner", "until", maintain_order=True)
        .agg(pl.col("idle_ns", "host_ns", "samples").sum(), pl.col("node").first())
    )
    # A line may belong to several functions, such as a generator inside another; native code has functions alone.
    native = pl.when(pl.col("line") == 0).then("function").alias("native")
    lines = (
        by_inner.sort("idle_ns", "inner", descending=[True, False])
        .group_by("file", "line", native, "until", maintain_order=True)
        .agg(pl.col("idle_ns", "host_ns", "samples").sum(), pl.col("function", "node").first())
        .sort("idle_ns", "file", "line", "function", "until", descending=[True, False, False, False, False])
    )
    total, samples = int(lines["idle_ns"].sum()), int(lines["samples"].sum())
    rows, others = lines[:MAX_LINES].to_dicts(), lines[MAX_LINES:]
    if len(others):
        sums = others.select(pl.col("idle_ns", "host_ns", "samples").sum()).row(0, named=True)
        name = f"({len(others)} other lines)"
        rows.append({"file": "", "line": 0, "function": name, "until": "", "node": -1, **sums})
    return tuple(_line(evidence, row, total, 0 if stacks.exact else samples) for row in rows)


def _line(evidence: HostEvidence, row: dict[str, int | str], total: int, samples: int) -> SourceLine:
    idle, node = int(row["idle_ns"]), int(row["node"])
    low, high = share_interval(idle / total, samples) if samples else (1.0, 0.0)
    return SourceLine(
        file=str(row["file"]),
        line=int(row["line"]),
        function=str(row["function"]),
        until=str(row["until"]),
        stack="" if row["until"] or node < 0 else _library_calls(evidence, node),
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


FIGURES = ("idle_ns", "idle_samples", "thread_ns", "thread_samples")


class StackTimes(NamedTuple):
    """The time of each stack that occurs.

    `frame` has the row of the stack in HostEvidence.stacks (`stack`, ascending) and FIGURES: the idle time of GPUs with
    the launching thread, or the thread that waits for it, in this stack, and the time of all Python threads. If `exact`
    is false, the times come from samples.
    """

    frame: pl.DataFrame
    exact: bool


def stack_times(index: StackIndex, idle_time: IdleStacks, windows: Intervals) -> StackTimes:
    """Return the time of each stack, that of threads inside `windows`.

    Native stacks have idle time only: those outside it are not read (normalise/stacks.py).
    """
    seen = idle_time.frame.filter(pl.col("until") < 0)
    named = seen.select("stack", "idle_ns", pl.col("samples").alias("idle_samples"))
    both = named.join(_thread_times(index, windows), on="stack", how="full", coalesce=True)
    return StackTimes(both.fill_null(0).select("stack", *FIGURES).sort("stack"), idle_time.exact)


def _thread_times(index: StackIndex, windows: Intervals) -> pl.DataFrame:
    covered = Coverage.from_union(windows)
    samples = index.evidence.samples.filter(pl.col("python_thread").is_not_null())
    rows = []
    for _, own in samples.group_by("python_thread", maintain_order=True):
        cells = sampled_cells(own)
        inside = covered.length_between(cells.start, cells.end)
        chosen = np.flatnonzero((inside > 0) & (cells.stack >= 0))
        rows.append(pl.DataFrame({"stack": cells.stack[chosen], "thread_ns": inside[chosen]}))
    schema = {"stack": pl.Int32, "thread_ns": pl.Int64}
    frame = pl.concat(rows) if rows else pl.DataFrame(schema=schema)
    return frame.group_by("stack").agg(pl.col("thread_ns").sum(), pl.len().cast(pl.Int64).alias("thread_samples"))
