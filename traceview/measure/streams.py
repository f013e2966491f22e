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
from traceview.measure.base import DeviceInput, DeviceMeasure
from traceview.measure.gaps import IdleGaps, ThreadStates, attribute
from traceview.model.analysis import CAUSES, Gaps
from traceview.model.columns import Table
from traceview.model.rows import StreamUse
from traceview.model.trace import Trace, Window

OTHERS = ("other_compute", "other_communication", "other_copy")
STREAM_ORDER = attrgetter("process_id", "context_id", "id")


class _StreamGapContext(NamedTuple):
    """Data of a device that the gaps of all its streams need, computed once."""

    idle: IdleGaps
    threads: ThreadStates  # in the device's idle gaps
    compute: Coverage
    communication: Coverage  # without compute at the same time
    gap_ended_by: Rows  # see IdleGaps

    @classmethod
    def build(cls, trace: Trace, threads: ThreadStates, device: Activity, idle: IdleGaps) -> _StreamGapContext:
        """Prepare a device whose idle gaps are `idle`."""
        own = trace.threads["process"].is_in(trace.devices["processes"][device.device].to_list())
        return cls(
            idle,
            threads.during(idle.gaps, frozenset(own.arg_true().to_list())),
            Coverage.from_union(device.compute),
            Coverage.from_union(intervals.subtract(device.communication, device.compute)),
            idle.gap_ended_by(len(trace.operations)),
        )


def _stream_gaps(
    trace: Trace, device: Activity, context: _StreamGapContext, stream: int, members: Rows, extent: Window | None
) -> Gaps:
    """Return the gaps of one stream as sums, without a frame. `members` index `device.rows`.

    A gap that lasts beyond the device's window, but not beyond the `extent` of the stream, has its length inside the
    window and is not counted.

    Work of the device's other streams comes first: other_compute, other_communication and other_copy (which includes
    memset).
    """
    same_stream = trace.operations["stream"].to_numpy()[device.nonempty_rows] == stream
    idle, is_device_gap = context.idle.gaps, np.zeros(len(context.idle.gaps.start), np.bool_)
    causes, others, count, total = np.zeros(len(CAUSES), np.int64), np.zeros(len(OTHERS), np.int64), 0, 0
    for gaps, operation in _gaps_between(device, members, same_stream, extent and extent.within(device.window)):
        count, total = count + len(operation), total + intervals.length(gaps)
        place = context.gap_ended_by[operation]
        # A gap that equals one of the device has its causes.
        same = place >= 0
        if len(idle.start):
            same &= (idle.start[place] == gaps.start) & (idle.end[place] == gaps.end)
        is_device_gap[place[same]] = True
        rest = np.flatnonzero(~same)
        start, end = gaps.start[rest], gaps.end[rest]
        in_idle = attribute(trace, context.threads, start, end, operation[rest]).sum(axis=1)
        works = context.compute, context.communication
        compute, communication = (int(work.length_between(start, end).sum()) for work in works)
        # A stream's gaps lie in the window, where the device is either busy or idle, and all idle time has a cause.
        busy = int((end - start).sum()) - int(in_idle.sum())
        causes += in_idle
        others += (compute, communication, busy - compute - communication)
    causes += _sum_causes(context.idle.causes, is_device_gap)
    sums = dict(zip((*OTHERS, *CAUSES), (*others.tolist(), *causes.tolist()), strict=True))
    if extent is not None:
        reach = int(device.end[members].max(initial=extent.start))
        count -= device.gap_continues(reach, extent, same_stream)
    return Gaps(count, total, sums, pl.DataFrame())


def _gaps_between(
    device: Activity, members: Rows, same_stream: NDArray[np.bool_], window: Window | None
) -> Iterator[tuple[Intervals, Rows]]:
    """Yield blocks of a stream's gaps, and the operation (row of Trace.operations, -1 for none) that ends each.

    Gaps outside the stream's operations reach to the edges of `window`.
    """
    reach = window.start if window else int(device.start[members[0]])
    last = window.end if window else reach
    for block in intervals.blocks(len(members)):
        some = members[block].astype(np.intp)  # arrays are indexed by this type without a copy of it
        start, end = device.start[some], device.end[some]
        last = max(last, int(end.max()))
        if not (has_length := end > start).all():  # work without length neither splits nor ends a gap
            some, start, end = some[has_length], start[has_length], end[has_length]
        until = np.maximum.accumulate(np.append(reach, end))
        at, reach = np.flatnonzero(start > until[:-1]), int(until[-1])
        yield Intervals(until[at], start[at]), device.rows[some[at]]
    if last > reach:
        edge = Intervals(np.array([reach], np.int64), np.array([last], np.int64))
        yield edge, device.next_operation(edge.end, same_stream)


def _sum_causes(causes: NDArray[np.int64], chosen: NDArray[np.bool_]) -> list[int]:
    """Add up the causes of the chosen gaps. Where most are chosen, subtract the others from the total."""
    total = np.zeros(len(causes), np.int64)
    for block in intervals.blocks(len(chosen)):
        part, inside = causes[:, block], chosen[block]
        most = 2 * np.count_nonzero(inside) > len(inside)
        few = part[:, np.flatnonzero(inside != most)].sum(axis=1)
        total += part.sum(axis=1) - few if most else few
    return total.tolist()


def stream_uses(given: DeviceInput) -> tuple[StreamUse, ...]:
    """Return one row for each stream that worked in the window, by (process, context, stream id)."""
    trace, device = given.trace, given.activity
    stream = device.select(trace.operations["stream"].to_numpy())
    is_kernel = device.select(trace.operations["source"].to_physical().to_numpy()) == KERNEL
    context = _StreamGapContext.build(trace, given.threads, device, given.idle)
    extents = given.extents

    def measure(index: int) -> StreamUse:
        members = intervals.rows_where(stream == index)
        return _measure_stream(trace, device, context, index, members, is_kernel, extents.get(index))

    # Streams are measured one at a time: in parallel, each would need as much memory.
    return tuple(sorted(map(measure, _streams_with_work_or_gaps(trace, given, stream)), key=STREAM_ORDER))


def _streams_with_work_or_gaps(trace: Trace, given: DeviceInput, stream: NDArray[np.int16]) -> list[int]:
    """Return the streams of the device's operations, and those that have a gap from edge to edge of its window."""
    window, of_device = given.activity.window, trace.streams["device"] == given.activity.device
    across = {
        index
        for index, extent in given.extents.items()
        if of_device[index] and extent.start < window.end and extent.end > window.start
    }
    return sorted(across | set(np.flatnonzero(np.bincount(stream)).tolist()))


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
    extent: Window | None,
) -> StreamUse:
    copies = device.rows[members[device.codes[members] == COPY]]
    row = trace.streams.row(index, named=True)
    gaps = _stream_gaps(trace, device, context, index, members, extent)
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


STREAMS = DeviceMeasure(
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
    order=STREAM_ORDER,
)
