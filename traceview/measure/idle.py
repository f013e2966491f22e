"""Why a device or a stream did nothing: each ns of each gap gets exactly one cause (METRICS.md "Idle gaps")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.measure.activity import Activity
from traceview.measure.host import Host
from traceview.model import CAUSES, ROLES, Gaps, Trace

PROFILER, QUEUED, LAUNCH = (CAUSES.index(name) for name in ("profiler", "queued", "launch"))
HOST, UNKNOWN = CAUSES.index("host"), CAUSES.index("unknown")
ROLE_CAUSES = tuple(CAUSES.index(role) for role in ROLES)


class Idle(NamedTuple):
    """The gaps of one device, the operation that ends each, and the ns of each cause: (len(CAUSES), gaps)."""

    gaps: Intervals
    operation: Times
    causes: NDArray[np.int64]


def launching_calls(trace: Trace, operation: Times) -> Times:
    """Return the call (row of Trace.api) that launched each operation (row of Trace.operations); -1 for none."""
    calls = trace.operations["launch"].fill_null(-1).to_numpy()
    if len(calls) == 0:
        return np.full(len(operation), -1, np.int64)
    found: Times = np.where(operation < 0, -1, calls[np.maximum(operation, 0)])
    return found


def launching_threads(trace: Trace, of: Host, operation: Times) -> Times:
    """Return the thread (row of Trace.threads) that launched each operation; -1 for none."""
    return _where_known(of.thread, launching_calls(trace, operation), -1)


def _where_known(column: Times, call: Times, otherwise: int) -> Times:
    if len(column) == 0:
        return np.full(len(call), otherwise, np.int64)
    found: Times = np.where(call >= 0, column[np.maximum(call, 0)], otherwise)
    return found


def attribute(trace: Trace, of: Host, start: Times, end: Times, operation: Times) -> NDArray[np.int64]:
    """Split idle pieces [start, end), each ended by an operation (row, -1 for none), by cause.

    Returns an array of shape (len(CAUSES), pieces) in ns; a column adds up to the piece's length, or,
    where `of` was made by Host.inside, to the part of the piece inside that union. Pieces may
    overlap each other.
    """
    # A cause that nothing has is never written to, and so takes no memory.
    causes = np.zeros((len(CAUSES), len(start)), np.int64)
    call = launching_calls(trace, operation)
    for block in intervals.blocks(len(start)):
        found = _attributed(of, start[block], end[block], call[block])
        for row in np.flatnonzero(found.any(axis=1)):
            causes[row, block] = found[row]
    return causes


def _attributed(of: Host, start: Times, end: Times, call: Times) -> NDArray[np.int64]:
    thread = _where_known(of.thread, call, -1)
    known = thread >= 0
    call_start = np.where(known, np.clip(_where_known(of.start, call, 0), start, end), start)
    call_end = np.clip(_where_known(of.end, call, 0), call_start, end)
    free_start, free_call = of.unprofiled(start), of.unprofiled(call_start)
    free_return, free_end = of.unprofiled(call_end), of.unprofiled(end)
    causes = np.zeros((len(CAUSES), len(start)), np.int64)
    if len(of.overhead.starts):
        causes[PROFILER] = of.counted(end) - of.counted(start) - (free_end - free_start)
    causes[QUEUED] = free_end - free_return
    causes[LAUNCH] = free_return - free_call
    if not known.all():
        causes[UNKNOWN, ~known] = (free_end - free_start)[~known]
        causes[QUEUED, ~known] = causes[LAUNCH, ~known] = 0
    causes[HOST] = free_call - free_start
    waits = call_start > start
    for one in np.unique(thread[waits]):
        rows = np.flatnonzero(waits & (thread == one))
        for union, cause in zip(of.roles[int(one)], ROLE_CAUSES, strict=True):
            if len(union.start) == 0:
                continue
            held = intervals.covered(union, start[rows], call_start[rows])
            some = np.flatnonzero(held)
            causes[cause, rows[some]] = held[some]
            causes[HOST, rows[some]] -= held[some]
    return causes


def idle_of(trace: Trace, of: Host, device: Activity) -> Idle:
    """Find the gaps of one device and attribute them."""
    gaps = device.idle()
    operation = device.next_operation(gaps.end)
    return Idle(gaps, operation, attribute(trace, of, gaps.start, gaps.end, operation))


def device_gaps(trace: Trace, of: Host, idle: Idle) -> Gaps:
    """Return the gaps of one device as a frame and sums."""
    return gaps_of(idle, launching_threads(trace, of, idle.operation), {})


def stream_gaps(trace: Trace, of: Host, device: Activity, idle: Idle, members: Times) -> Gaps:
    """Return the gaps of one stream, between its own first and last operation.

    `of` is a Host inside the device's idle time, `idle` that idle time; `members` index
    `device.rows`. What another stream of the device did meanwhile comes first, in the columns
    other_compute, other_communication and other_copy (memset included).
    """
    start, end = device.start[members], device.end[members]
    own = intervals.union(start, end, ordered=True)
    gaps = intervals.complement(own, int(start[0]), int(end.max()))
    stream = trace.operations["stream"].to_numpy()
    operation = device.next_operation(gaps.end, stream[device.later] == stream[device.rows[members[0]]])
    compute = intervals.covered(device.compute, gaps.start, gaps.end)
    communication = intervals.covered(intervals.subtract(device.communication, device.compute), gaps.start, gaps.end)
    busy = intervals.covered(device.busy, gaps.start, gaps.end)
    others = {
        "other_compute": compute,
        "other_communication": communication,
        "other_copy": busy - compute - communication,
    }
    causes = _attribute_stream(trace, of, gaps, operation, idle)
    return gaps_of(Idle(gaps, operation, causes), launching_threads(trace, of, operation), others)


def _attribute_stream(trace: Trace, of: Host, gaps: Intervals, operation: Times, idle: Idle) -> NDArray[np.int64]:
    """Attribute a stream's gaps; those that are the device's own gaps were attributed with it."""
    if len(gaps.start) == 0 or len(idle.gaps.start) == 0:
        return attribute(trace, of, gaps.start, gaps.end, operation)
    place = np.minimum(np.searchsorted(idle.gaps.start, gaps.start), len(idle.gaps.start) - 1)
    same = (
        (idle.gaps.start[place] == gaps.start)
        & (idle.gaps.end[place] == gaps.end)
        & (idle.operation[place] == operation)
    )
    causes = np.zeros((len(CAUSES), len(place)), np.int64)
    for own, whole in zip(causes, idle.causes, strict=True):
        if whole.any():
            np.take(whole, place, out=own, mode="clip")
    rest = np.flatnonzero(~same)
    causes[:, rest] = attribute(trace, of, gaps.start[rest], gaps.end[rest], operation[rest])
    return causes


def gaps_of(idle: Idle, thread: Times, others: dict[str, Times]) -> Gaps:
    """Put gaps and their causes into a Gaps (see model.Gaps for the frame's columns)."""
    by_cause = others | {name: idle.causes[code] for code, name in enumerate(CAUSES)}
    sums = {name: int(values.sum()) for name, values in by_cause.items()}
    frame = pl.DataFrame(
        {
            "start": idle.gaps.start,
            "end": idle.gaps.end,
            "operation": idle.operation.astype(np.int32),
            "thread": thread.astype(np.int32),
        }
    ).with_columns(
        pl.when(pl.col("operation") >= 0).then("operation").alias("operation"),
        pl.when(pl.col("thread") >= 0).then("thread").alias("thread"),
        # A cause that nothing has is one zero, not a million.
        *(
            pl.Series(name, values) if sums[name] else pl.lit(0, pl.Int64).alias(name)
            for name, values in by_cause.items()
        ),
    )
    return Gaps(
        count=len(idle.gaps.start),
        total_ns=intervals.length(idle.gaps),
        causes=sums,
        frame=frame,
    )
