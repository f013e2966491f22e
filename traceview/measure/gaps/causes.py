"""Why a device or a stream did nothing: each ns of each gap gets exactly one cause (METRICS.md "Idle gaps")."""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Intervals, Rows, Times
from traceview.measure.activity import Activity
from traceview.measure.host import Host, View
from traceview.model.analysis import CAUSES, Gaps
from traceview.model.trace import ROLES, Trace

PROFILER, QUEUED, LAUNCH = (CAUSES.index(name) for name in ("profiler", "queued", "launch"))
HOST, UNKNOWN = CAUSES.index("host"), CAUSES.index("unknown")
Some = TypeVar("Some", bound=np.signedinteger)
ROLE_CAUSES = tuple(CAUSES.index(role) for role in ROLES)


class Idle(NamedTuple):
    """The gaps of one device, the operation that ends each, and the ns of each cause: (len(CAUSES), gaps)."""

    gaps: Intervals
    operation: Rows
    causes: NDArray[np.int64]

    def ended_by(self, operations: int) -> Rows:
        """Return which gap each row of Trace.operations, of so many, ends; -1 for none, which the last entry is too."""
        place = np.full(operations + 1, -1, np.int32)
        place[self.operation] = np.arange(len(self.operation), dtype=np.int32)
        place[-1] = -1
        return place


class _Calls(NamedTuple):
    """The columns of Trace.api that say why a gap lasted, and which call launched each operation; -1 for none."""

    start: Times
    end: Times
    thread: NDArray[np.int16]
    launch: Rows

    @classmethod
    def of(cls, trace: Trace) -> _Calls:
        launch = trace.operations["launch"]
        known = (launch.fill_null(-1) if launch.null_count() else launch).to_numpy()
        start, end, thread = (trace.api[name].to_numpy() for name in ("start", "end", "thread"))
        return cls(start, end, thread, known)

    def launching(self, operation: Rows) -> Rows:
        return _where_known(self.launch, operation, -1)


def launching_threads(trace: Trace, operation: Rows) -> NDArray[np.int16]:
    """Return the thread (row of Trace.threads) that launched each operation (row, -1 for none); -1 for none."""
    calls = _Calls.of(trace)
    return _where_known(calls.thread, calls.launching(operation), -1)


def _where_known(column: NDArray[Some], row: Rows | Times, otherwise: int) -> NDArray[Some]:
    if len(column) == 0:
        return np.full(len(row), otherwise, column.dtype)
    found: NDArray[Some] = column[row]  # -1 is the last, and put right
    unknown = row < 0
    if unknown.any():
        found[unknown] = otherwise
    return found


def attribute(trace: Trace, of: View, start: Times, end: Times, operation: Rows) -> NDArray[np.int64]:
    """Split idle pieces [start, end), each ended by an operation (row, -1 for none), by cause.

    Returns an array of shape (len(CAUSES), pieces) in ns; a column adds up to the piece's length, or to the
    part of the piece that counts for `of`. Pieces may overlap each other.
    """
    # A cause that nothing has is never written to, and so takes no memory.
    causes = np.zeros((len(CAUSES), len(start)), np.int64)
    calls = _Calls.of(trace)
    for block in intervals.blocks(len(start)):
        call = calls.launching(operation[block]).astype(np.int64)
        _attribute(of, calls, start[block], end[block], call, causes[:, block])
    return causes


def _attribute(of: View, calls: _Calls, start: Times, end: Times, call: Times, causes: NDArray[np.int64]) -> None:
    thread = _where_known(calls.thread, call, -1)
    call_start = np.minimum(np.maximum(_where_known(calls.start, call, 0), start), end)
    unknown = np.flatnonzero(thread < 0)
    call_end = np.minimum(np.maximum(_where_known(calls.end, call, 0), call_start), end)
    call_start[unknown] = call_end[unknown] = start[unknown]
    began, called, returned, ended = (of.moments(at) for at in (start, call_start, call_end, end))
    np.subtract(ended.before, returned.before, out=causes[QUEUED])
    np.subtract(returned.before, called.before, out=causes[LAUNCH])
    np.subtract(called.before, began.before, out=causes[HOST])
    _take_profiled(of, (start, call_start, call_end, end), causes)
    if len(unknown):
        causes[UNKNOWN, unknown] = causes[QUEUED, unknown]
        causes[QUEUED, unknown] = 0
    waits = np.flatnonzero(call_start > start)
    waiting = thread[waits]
    for one in np.flatnonzero(np.bincount(waiting)).tolist():
        rows = waits[waiting == one]
        for role, some, held in of.roles(one, began.of(rows), called.of(rows)):
            causes[ROLE_CAUSES[role], rows[some]] = held
            causes[HOST, rows[some]] -= held


def _take_profiled(of: View, moments: tuple[Times, Times, Times, Times], causes: NDArray[np.int64]) -> None:
    """Take the profiler's part from what lies between each piece's start, its call, the call's return and the end."""
    rows = of.profiler.meeting(moments[0], moments[-1])
    if len(rows) == 0:
        return
    before = [of.profiled.before(at[rows]) for at in moments]
    causes[PROFILER, rows] = before[-1] - before[0]
    for cause, start, end in zip((HOST, LAUNCH, QUEUED), before, before[1:], strict=False):
        causes[cause, rows] -= end - start


def idle_of(trace: Trace, of: Host, device: Activity) -> Idle:
    """Find the gaps of one device and attribute them."""
    gaps, operation = device.idle()
    return Idle(gaps, operation, attribute(trace, of, gaps.start, gaps.end, operation))


def device_gaps(trace: Trace, of: Host, idle: Idle) -> Gaps:
    """Return the gaps of one device as a frame and sums."""
    return gaps_of(idle, launching_threads(trace, idle.operation))


def gaps_of(idle: Idle, thread: NDArray[np.int16]) -> Gaps:
    """Put gaps and their causes into a Gaps (see model.Gaps for the frame's columns)."""
    sums = {name: int(values.sum()) for name, values in zip(CAUSES, idle.causes, strict=True)}
    frame = pl.DataFrame(
        {
            "start": idle.gaps.start,
            "end": idle.gaps.end,
            "operation": _or_null(idle.operation),
            "thread": _or_null(thread),
        }
    ).with_columns(
        # A cause that nothing has is one zero, not a million.
        *(
            pl.Series(name, values) if sums[name] else pl.lit(0, pl.Int64).alias(name)
            for name, values in zip(CAUSES, idle.causes, strict=True)
        ),
    )
    return Gaps(
        count=len(idle.gaps.start),
        total_ns=intervals.length(idle.gaps),
        causes=sums,
        frame=frame,
    )


def _or_null(rows: NDArray[Some]) -> pl.Series:
    """Return rows as a column, null for -1; where all are known, no copy."""
    column = pl.Series(rows)
    return column.set(column < 0, None) if len(rows) and rows.min() < 0 else column
