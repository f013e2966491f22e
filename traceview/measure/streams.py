"""The work and the idle gaps of each stream of a device (docs/definitions.md "Identity" and "Idle gaps").

The idle gaps of a stream lie between its first and last operation.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from operator import attrgetter
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Coverage, Rows, Times
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, KERNEL, Activity
from traceview.measure.base import DeviceInput, DeviceMeasure
from traceview.measure.gaps import IdleGaps, ThreadStates, attribute
from traceview.measure.shared_work import measuring_threads
from traceview.model.analysis import CAUSES, Gaps
from traceview.model.columns import Table
from traceview.model.rows import StreamUse
from traceview.model.trace import Trace, Window

OTHERS = ("other_compute", "other_communication", "other_copy")
BLOCK = 1 << 16  # operations of a stream in a block; all at once would need more memory than the device's own gaps
MAX_PENDING = 2  # blocks that wait while others are measured

Result = TypeVar("Result")
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
        own = trace.threads["process"].is_in(trace.devices["processes"][device.device])
        return cls(
            idle,
            threads.during(idle.gaps, frozenset(own.arg_true().to_list())),
            Coverage.from_union(device.compute),
            Coverage.from_union(intervals.subtract(device.communication, device.compute)),
            idle.gap_ended_by(len(trace.operations)),
        )


class _GapBlock(NamedTuple):
    """Some gaps of a stream, in order, and the operation (row of Trace.operations, -1 for none) that ends each."""

    start: Times
    end: Times
    operation: Rows


def _map_in_pool(
    pool: Executor, measure: Callable[[_GapBlock], Result], blocks: Iterator[_GapBlock]
) -> Iterator[Result]:
    """Yield `measure` of each block in order, with at most MAX_PENDING blocks waiting in memory."""
    pending: deque[Future[Result]] = deque()
    for block in blocks:
        pending.append(pool.submit(measure, block))
        if len(pending) > MAX_PENDING:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()


def _stream_gaps(
    trace: Trace,
    device: Activity,
    context: _StreamGapContext,
    stream: int,
    members: Rows,
    extent: Window | None,
    pool: Executor,
) -> Gaps:
    """Return the gaps of one stream as sums, without a frame. `members` index `device.rows`.

    A gap that lasts beyond the device's window, but not beyond the `extent` of the stream, has its length inside the
    window and is not counted.

    Work of the device's other streams comes first: other_compute, other_communication and other_copy (which includes
    memset). `pool` measures blocks of gaps while others are built.
    """
    count, total, window = 0, 0, None
    if extent is not None:
        window, reach = extent.within(device.window), int(device.end[members].max(initial=extent.start))
        same_stream = trace.operations["stream"].to_numpy()[device.nonempty_rows] == stream
        count -= device.gap_continues(reach, extent, same_stream)
    sums = dict.fromkeys((*OTHERS, *CAUSES), 0)
    is_device_gap = np.zeros(len(context.idle.gaps.start), np.bool_)

    def measure(gaps: _GapBlock) -> tuple[int, int, dict[str, int]]:
        parts = _attribute_stream_gaps(trace, context, gaps, is_device_gap)
        return len(gaps.start), int((gaps.end - gaps.start).sum()), parts

    for some, length, parts in _map_in_pool(pool, measure, _gap_blocks(trace, device, stream, members, window)):
        count, total = count + some, total + length
        for name, value in parts.items():
            sums[name] += value
    for name, value in zip(CAUSES, _sum_causes(context.idle.causes, is_device_gap), strict=True):
        sums[name] += value
    return Gaps(count, total, sums, pl.DataFrame())


def _gap_blocks(
    trace: Trace, device: Activity, stream: int, members: Rows, window: Window | None
) -> Iterator[_GapBlock]:
    """Yield a stream's gaps in blocks. A gap lies between the largest end so far and the next start.

    Gaps outside the stream's operations reach to the edges of `window`.
    """
    reach = window.start if window else int(device.start[members[0]])
    last = window.end if window else reach
    for first in range(0, len(members), BLOCK):
        some = members[first : first + BLOCK].astype(np.intp)
        last = max(last, int(device.end[some].max()))
        some = some[device.end[some] > device.start[some]]  # an operation without length neither splits nor ends a gap
        if len(some) == 0:
            continue
        start = device.start[some]
        before = np.maximum.accumulate(np.concatenate([np.array([reach], np.int64), device.end[some]]))
        reach = int(before[-1])
        at = np.flatnonzero(start > before[:-1])
        yield _GapBlock(before[at], start[at], device.rows[some[at]])
    if last > reach:
        same_stream = trace.operations["stream"].to_numpy()[device.nonempty_rows] == stream
        end = np.array([last], np.int64)
        yield _GapBlock(np.array([reach], np.int64), end, device.next_operation(end, same_stream))


def _attribute_stream_gaps(
    trace: Trace, context: _StreamGapContext, gaps: _GapBlock, is_device_gap: NDArray[np.bool_]
) -> dict[str, int]:
    """Return the ns of each cause. Gaps that equal a gap of the device are left out, and marked in `is_device_gap`."""
    idle = context.idle.gaps
    place = context.gap_ended_by[gaps.operation]
    same = place >= 0
    if len(idle.start):
        same &= (idle.start[place] == gaps.start) & (idle.end[place] == gaps.end)
    is_device_gap[place[same]] = True
    rest = np.flatnonzero(~same)
    start, end, operation = gaps.start[rest], gaps.end[rest], gaps.operation[rest]
    compute, communication = (
        int(union.length_between(start, end).sum()) for union in (context.compute, context.communication)
    )
    causes = attribute(trace, context.threads, start, end, operation).sum(axis=1).tolist()
    # A stream's gaps lie in the window, where the device is either busy or idle, and all idle time has a cause.
    busy = int((end - start).sum()) - sum(causes)
    others = (compute, communication, busy - compute - communication)
    return dict(zip((*OTHERS, *CAUSES), (*others, *causes), strict=True))


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

    # NumPy releases the interpreter lock in searches and sorts, which take most of the time. One stream may have nearly
    # all gaps, so its gaps are measured in parallel too, in a separate pool: threads of the stream pool wait for it.
    with measuring_threads(len(stream)) as gap_pool, measuring_threads(len(stream)) as stream_pool:

        def measure(index: int) -> StreamUse:
            members = intervals.rows_where(stream == index)
            return _measure_stream(trace, device, context, index, members, is_kernel, extents.get(index), gap_pool)

        uses = stream_pool.map(measure, _streams_with_work_or_gaps(trace, given, stream))
        return tuple(sorted(uses, key=STREAM_ORDER))


def _streams_with_work_or_gaps(trace: Trace, given: DeviceInput, stream: NDArray[np.int16]) -> list[int]:
    """Return the streams of the device's operations, and those that have a gap from edge to edge of its window."""
    window, of_device = given.activity.window, trace.streams["device"] == given.activity.device
    across = {
        index
        for index, extent in given.extents.items()
        if of_device[index] and extent.start < window.end and extent.end > window.start
    }
    return sorted(across | set(np.flatnonzero(np.bincount(stream)).tolist()))


def _measure_stream(
    trace: Trace,
    device: Activity,
    context: _StreamGapContext,
    index: int,
    members: Rows,
    is_kernel: NDArray[np.bool_],
    extent: Window | None,
    pool: Executor,
) -> StreamUse:
    codes = device.codes[members]
    copies = device.rows[members[codes == COPY]]
    row = trace.streams.row(index, named=True)
    gaps = _stream_gaps(trace, device, context, index, members, extent, pool)

    def busy(chosen: Rows) -> int:
        return intervals.union_length(device.start, device.end, chosen)

    return StreamUse(
        stream=index,
        id=row["stream_id"],
        process_id=row["process"],
        context_id=row["context"],
        label=row["label"],
        kernel_count=int(np.count_nonzero(is_kernel[members])),
        copy_count=len(copies),
        operation_count=len(members),
        bytes=int(trace.operations["bytes"].to_numpy()[copies].sum()),
        busy_ns=busy(members),
        compute_ns=busy(members[codes == COMPUTE]),
        communication_ns=busy(members[codes == COMMUNICATION]),
        copy_ns=busy(members[codes == COPY]),
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
