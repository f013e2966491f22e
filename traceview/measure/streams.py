"""The work and the idle gaps of each stream of a device (docs/definitions.md "Identity" and "Idle gaps").

The idle gaps of a stream lie between its first and last operation.
"""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Rows
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, KERNEL, Activity
from traceview.measure.base import DeviceInput, Measure
from traceview.measure.gaps import IdleGaps, ThreadStates, attribute
from traceview.model.analysis import CAUSES, Gaps
from traceview.model.columns import Table
from traceview.model.rows import StreamUse
from traceview.model.trace import Trace

OTHERS = ("other_compute", "other_communication", "other_copy")


class _StreamGapContext(NamedTuple):
    """Data of a device that the gaps of all its streams need, computed once."""

    idle: IdleGaps
    threads: ThreadStates  # in the device's idle gaps
    compute: Coverage
    communication: Coverage  # without compute at the same time

    @classmethod
    def build(cls, given: DeviceInput) -> _StreamGapContext:
        """Prepare a device."""
        trace, device, idle = given.trace, given.activity, given.idle
        own = trace.threads["process"].is_in(trace.devices["processes"][device.device].to_list())
        return cls(
            idle,
            given.threads.during(idle.gaps, frozenset(own.arg_true().to_list())),
            Coverage.from_union(device.compute),
            Coverage.from_union(intervals.subtract(device.communication, device.compute)),
        )

    def same_gaps(self, gaps: Intervals, operation: Rows) -> Rows:
        """Return the gap of the device that equals each gap of a stream, -1 for none."""
        idle = self.idle
        if not len(idle.operation):
            return np.full(len(operation), -1, np.int32)
        place = np.minimum(np.searchsorted(idle.gaps.start, gaps.start), len(idle.operation) - 1).astype(np.int32)
        same = (idle.gaps.start[place] == gaps.start) & (idle.gaps.end[place] == gaps.end)
        return np.where(same & (idle.operation[place] == operation), place, np.int32(-1))


def _stream_gaps(trace: Trace, device: Activity, context: _StreamGapContext, stream: int, members: Rows) -> Gaps:
    """Return the gaps of one stream as sums, without a frame. `members` index `device.rows`.

    Work of the device's other streams comes first: other_compute, other_communication and other_copy (which includes
    memset).
    """
    causes, others, count, total = np.zeros(len(CAUSES), np.int64), np.zeros(len(OTHERS), np.int64), 0, 0
    for gaps, operation in _gaps_between(trace, device, stream, members):
        count, total = count + len(operation), total + intervals.length(gaps)
        place = context.same_gaps(gaps, operation)
        same, rest = place[place >= 0], np.flatnonzero(place < 0)
        start, end = gaps.start[rest], gaps.end[rest]
        in_idle = attribute(trace, context.threads, start, end, operation[rest]).sum(axis=1)
        works = context.compute, context.communication
        compute, communication = (int(work.length_between(start, end).sum()) for work in works)
        # A stream's gaps lie in the window, where the device is either busy or idle, and all idle time has a cause.
        busy = int((end - start).sum()) - int(in_idle.sum())
        causes += in_idle + np.array([each[same].sum() for each in context.idle.causes])
        others += (compute, communication, busy - compute - communication)
    sums = dict(zip((*OTHERS, *CAUSES), (*others.tolist(), *causes.tolist()), strict=True))
    return Gaps(count, total, sums, pl.DataFrame())


def _gaps_between(trace: Trace, device: Activity, stream: int, members: Rows) -> Iterator[tuple[Intervals, Rows]]:
    """Yield blocks of a stream's gaps, and the operation (row of Trace.operations, -1 for none) that ends each."""
    last = reach = int(device.start[members[0]])
    for block in intervals.blocks(len(members)):
        some = members[block].astype(np.intp)  # arrays are indexed by this type without a copy of it
        start, end = device.start[some], device.end[some]
        last = max(last, int(end.max()))
        if not (has_length := end > start).all():  # work without length neither splits nor ends a gap
            some, start, end = some[has_length], start[has_length], end[has_length]
        until = np.maximum.accumulate(np.append(reach, end))
        at, reach = np.flatnonzero(start > until[:-1]), int(until[-1])
        yield Intervals(until[at], start[at]), device.rows[some[at]]
    if last > reach:  # the last work has no length
        edge = Intervals(np.array([reach], np.int64), np.array([last], np.int64))
        same_stream = trace.operations["stream"].to_numpy()[device.nonempty_rows] == stream
        yield edge, device.next_operation(edge.end, same_stream)


def stream_uses(given: DeviceInput) -> tuple[StreamUse, ...]:
    """Return one row for each stream that worked in the window, by (process, context, stream id)."""
    trace, device = given.trace, given.activity
    is_kernel = device.select(trace.operations["source"].to_physical().to_numpy()) == KERNEL
    context = _StreamGapContext.build(given)
    # Streams are measured one at a time: in parallel, each would need as much memory.
    uses = (
        _measure_stream(trace, device, context, stream, members, is_kernel)
        for stream, members in intervals.rows_by_code(device.select(trace.operations["stream"].to_numpy()))
    )
    return tuple(sorted(uses, key=attrgetter("process_id", "context_id", "id")))


def stream_figures(work: Activity, members: Rows, is_kernel: NDArray[np.bool_]) -> dict[str, Any]:
    """Return the numbers of kernels, copies and operations of a stream, and its ns: busy, and by class."""
    codes = work.codes[members]
    classes = {"compute_ns": COMPUTE, "communication_ns": COMMUNICATION, "copy_ns": COPY}
    chosen = {"busy_ns": members, **{name: members[codes == code] for name, code in classes.items()}}
    return {
        "kernel_count": int(np.count_nonzero(is_kernel[members])),
        "copy_count": int(np.count_nonzero(codes == COPY)),
        "operation_count": len(members),
        **{name: intervals.union_length(work.start, work.end, rows) for name, rows in chosen.items()},
    }


def _measure_stream(
    trace: Trace,
    device: Activity,
    context: _StreamGapContext,
    index: int,
    members: Rows,
    is_kernel: NDArray[np.bool_],
) -> StreamUse:
    copies = device.rows[members[device.codes[members] == COPY]]
    row = trace.streams.row(index, named=True)
    gaps = _stream_gaps(trace, device, context, index, members)
    return StreamUse(
        stream=index,
        id=row["stream_id"],
        process_id=row["process"],
        context_id=row["context"],
        label=row["label"],
        **stream_figures(device, members, is_kernel),
        bytes=int(trace.operations["bytes"].to_numpy()[copies].sum()),
        gap_count=gaps.count,
        gap_ns=gaps.total_ns,
        causes=gaps.causes,
    )


STREAMS = Measure(
    Table(
        name="streams",
        title="Streams",
        row_type=StreamUse,
        shown=(
            "label",
            "process_id",
            "kernel_count",
            "copy_count",
            "busy_ns",
            "compute_ns",
            "communication_ns",
            "copy_ns",
            "gap_count",
            "gap_ns",
        ),
    ),
    stream_uses,
    "window",
)
