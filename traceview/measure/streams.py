"""The work and the idle gaps of each stream of a device (docs/definitions.md "Identity" and "Idle gaps").

The idle gaps of a stream lie between its first and last operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Rows, Times
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, KERNEL, Activity
from traceview.measure.base import DeviceInput, Measure
from traceview.measure.gaps import IdleGaps, ThreadStates, attribute
from traceview.model.analysis import CAUSES
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


class _GapSums:
    """The number, the ns, and the ns by OTHERS and CAUSES of the gaps of each stream of a device.

    Work of the device's other streams comes first: other_compute, other_communication and other_copy (which includes
    memset).
    """

    def __init__(self, streams: int) -> None:
        self.count, self.total = np.zeros((2, streams), np.int64)
        self.others = np.zeros((len(OTHERS), streams), np.int64)
        self.causes = np.zeros((len(CAUSES), streams), np.int64)

    @classmethod
    def of_device(cls, given: DeviceInput, members: Sequence[tuple[int, Rows]]) -> _GapSums:
        """Measure the streams that have `members`, rows of the device's work."""
        context, sums = _StreamGapContext.build(given), cls(len(members))
        for owner, gaps, operation in _batches(given.trace, given.activity, members):
            sums.add(given.trace, context, owner, gaps, operation)
        return sums

    def add(self, trace: Trace, context: _StreamGapContext, owner: Rows, gaps: Intervals, operation: Rows) -> None:
        """Add gaps, with the number of the stream (ascending) and the operation that ends each."""
        _add_by_owner((self.count, self.total), owner, (np.ones(len(owner), np.int64), gaps.end - gaps.start))
        place = context.same_gaps(gaps, operation)
        same, rest = np.flatnonzero(place >= 0), np.flatnonzero(place < 0)
        _add_by_owner(self.causes, owner[same], (each[place[same]] for each in context.idle.causes))
        start, end = gaps.start[rest], gaps.end[rest]
        in_idle = attribute(trace, context.threads, start, end, operation[rest])
        compute, communication = (work.length_between(start, end) for work in (context.compute, context.communication))
        # A stream's gaps lie in the window, where the device is either busy or idle, and all idle time has a cause.
        copy = end - start - in_idle.sum(axis=0) - compute - communication
        _add_by_owner(self.causes, owner[rest], in_idle)
        _add_by_owner(self.others, owner[rest], (compute, communication, copy))

    def of_stream(self, number: int) -> dict[str, int]:
        """Return the ns by OTHERS and CAUSES of a stream."""
        ns = (*self.others[:, number].tolist(), *self.causes[:, number].tolist())
        return dict(zip((*OTHERS, *CAUSES), ns, strict=True))


def _add_by_owner(totals: Iterable[Times], owner: Rows, values: Iterable[Times]) -> None:
    """Add values to the totals of their owners, which ascend."""
    first = np.flatnonzero(np.diff(owner, prepend=-1))
    for total, each in zip(totals, values, strict=True):
        total[owner[first]] += np.add.reduceat(each, first)


def _batches(
    trace: Trace, device: Activity, members: Sequence[tuple[int, Rows]]
) -> Iterator[tuple[Rows, Intervals, Rows]]:
    """Yield the gaps of streams in batches: the number of the stream, the gap, and the operation that ends it.

    The gaps of all streams at once would need as much memory as the trace, and those of a stream alone may be few.
    """
    batch, held = list[tuple[Rows, Times, Times, Rows]](), 0
    for number, (stream, rows) in enumerate(members):
        for gaps, operation in _gaps_between(trace, device, stream, rows):
            batch.append((np.full(len(operation), number, np.int32), *gaps, operation))
            held += len(operation)
            if held >= intervals.BLOCK:
                yield _joined_batch(batch)
                batch, held = [], 0
    if batch:
        yield _joined_batch(batch)


def _joined_batch(batch: Sequence[tuple[Rows, Times, Times, Rows]]) -> tuple[Rows, Intervals, Rows]:
    owner, start, end, operation = (np.concatenate(column) for column in zip(*batch, strict=True))
    return owner, Intervals(start, end), operation


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
    members = list(intervals.rows_by_code(device.select(trace.operations["stream"].to_numpy())))
    gaps, named = _GapSums.of_device(given, members), trace.streams.rows(named=True)
    size = trace.operations["bytes"].to_numpy()
    uses = (
        StreamUse(
            stream=stream,
            id=named[stream]["stream_id"],
            process_id=named[stream]["process"],
            context_id=named[stream]["context"],
            label=named[stream]["label"],
            **stream_figures(device, rows, is_kernel),
            bytes=int(size[device.rows[rows[device.codes[rows] == COPY]]].sum()),
            gap_count=int(gaps.count[number]),
            gap_ns=int(gaps.total[number]),
            causes=gaps.of_stream(number),
        )
        for number, (stream, rows) in enumerate(members)
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
