"""The host's part of the graph: calls on their threads, hand-overs between threads, waits for the GPU."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import Intervals, Times, covered_length, union
from traceview.model.trace import ROLES, Trace
from traceview.whatif.constants import ASYNC_CALL, SYNC_RETURN
from traceview.whatif.graph import CALL, GAP, WAIT, Calls, Codes, Edges, Operations
from traceview.whatif.select import Selection

LOADING = r"(?i)data|load|batch|fetch|dataset|collate|next"
BACKWARD = r"(?i)backward"
HANDED = 50_000  # ns: a thread that is silent for longer while another of its process calls waits for it
SLACK = 1_000  # ns by which the clocks of host and GPU may differ


def calls_of(trace: Trace, at: Selection, begin: int, end: int) -> Calls:
    """Return the calls of the model in [begin, end) that launch, synchronize, hold or wait; outermost ones only."""
    inside = (pl.col("process") == at.process) & (pl.col("start") >= begin) & (pl.col("start") < end)
    frame = trace.api.with_row_index("row").filter(inside)
    launches = np.zeros(len(trace.api), np.bool_)
    launches[trace.operations["launch"].drop_nulls().to_numpy()] = True
    role = frame["role"].to_physical()
    frame = frame.filter(
        role.is_in([ROLES.index("sync"), ROLES.index("blocking_copy")])
        | pl.Series(launches[frame["row"].to_numpy()])
        | frame["name"].cast(pl.String).str.contains("StreamWaitEvent")
    )
    frame = frame.filter(pl.col("end") >= pl.col("end").cum_max().over("thread")).sort("start", "row")
    start, stop, thread = (frame[name].to_numpy().astype(np.int64) for name in ("start", "end", "thread"))
    codes = frame["role"].to_physical().to_numpy()
    iteration = np.searchsorted(at.edges[:-1], start, side="right") - 1
    before = _before(start, stop, thread)[1]
    return Calls(
        frame["row"].to_numpy().astype(np.int64),
        start,
        stop,
        thread,
        iteration,
        codes == ROLES.index("sync"),
        codes == ROLES.index("blocking_copy"),
        covered_length(_ranges(trace, at, LOADING), np.minimum(before, start), start),
        (thread != at.thread) | (covered_length(_ranges(trace, at, BACKWARD), start, start + 1) > 0),
    )


def _ranges(trace: Trace, at: Selection, name: str) -> Intervals:
    ranges = trace.ranges.filter((pl.col("thread") == at.thread) & pl.col("name").cast(pl.String).str.contains(name))
    return union(ranges["start"].to_numpy(), ranges["end"].to_numpy())


def _before(start: Times, end: Times, thread: Codes) -> tuple[Codes, Times]:
    """Return the call that each one follows (-1: none), and when that one returned.

    It is the one before on its thread; or, after a long silence there, the last one of another thread that
    began meanwhile: autograd's, for the thread that waits for the backward pass, and the other way round.
    """
    count = len(start)
    own = np.full(count, -1, np.int64)
    for one in np.unique(thread):
        rows = np.flatnonzero(thread == one)
        own[rows[1:]] = rows[:-1]
    returned = np.where(own >= 0, end[own], start)
    ordered = np.argsort(end, kind="stable")
    last = np.searchsorted(end[ordered], start, side="right") - 1
    other = np.where(last >= 0, ordered[last], -1)
    silent = (own < 0) | (start - returned > HANDED)
    handed = silent & (other >= 0) & (thread[other] != thread) & ((own < 0) | (start[other] >= returned))
    found = np.where(handed, other, own)
    return found, np.where(found >= 0, end[found], start)


def host_edges(trace: Trace, calls: Calls, operations: Operations) -> tuple[Edges, Codes]:
    """Return the edges into calls, and the calls that nothing comes before."""
    rows = np.arange(len(calls.row))
    before, returned = _before(calls.start, calls.end, calls.thread)
    follows = before >= 0
    base = 2 * len(rows)
    target, tail = _awaited(trace, calls, operations)
    waits = target >= 0
    own = calls.end - calls.start
    held = waits & (tail < own)
    least = np.where(calls.blocking, ASYNC_CALL, SYNC_RETURN)
    tail = np.where(waits & ~held, np.minimum(tail, least), tail)
    none = np.zeros(0, np.int64)
    edges = Edges(none, none, none, none)
    edges = edges.plus(2 * before[follows] + 1, 2 * rows[follows], (calls.start - returned)[follows], GAP)
    edges = edges.plus(2 * rows, 2 * rows + 1, np.where(held, np.minimum(own, least), own), CALL)
    edges = edges.plus(base + 2 * target[waits] + 1, 2 * rows[waits] + 1, tail[waits], WAIT)
    return edges, rows[~follows]


def _awaited(trace: Trace, calls: Calls, operations: Operations) -> tuple[Codes, Times]:
    """Return the operation that each call waits for (-1: none), and the ns from its end to the call's return."""
    target = np.full(len(calls.row), -1, np.int64)
    mine = np.flatnonzero(operations.call >= 0)
    holding = mine[calls.blocking[operations.call[mine]]]
    target[operations.call[holding]] = holding
    stream_of = _stream_of(trace, calls)
    launched = np.where(operations.call >= 0, calls.start[operations.call], operations.start)
    for stream in np.unique(stream_of[calls.sync]):
        rows = np.flatnonzero(calls.sync & (stream_of == stream))
        chosen = np.arange(len(operations.row))
        if stream >= 0:
            chosen = chosen[operations.stream == stream]
        chosen = chosen[np.argsort(operations.end[chosen], kind="stable")]
        at = np.searchsorted(operations.end[chosen], calls.end[rows] + SLACK, side="right") - 1
        sound = at >= 0
        found = chosen[at[sound]]
        early = launched[found] <= calls.start[rows[sound]]
        target[rows[sound][early]] = found[early]
    known = np.where(target >= 0, operations.end[target], 0) if len(operations.end) else target
    return target, calls.end - known


def _stream_of(trace: Trace, calls: Calls) -> Codes:
    """Return the row of Trace.streams that each call synchronizes; -1 for the device, or unknown."""
    streams = trace.streams.with_row_index("stream").select("stream", "stream_id", "process", "context")
    found = (
        trace.stream_events.filter(pl.col("kind").cast(pl.String) == "synchronize")
        .drop_nulls("launch")
        .join(streams, on=["stream_id", "process", "context"])
        .unique("launch")
    )
    lookup = dict(zip(found["launch"].to_list(), found["stream"].to_list(), strict=True))
    return np.array([lookup.get(row, -1) for row in calls.row.tolist()], np.int64)
