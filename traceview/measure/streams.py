"""What each stream of a device did (docs/definitions.md "Identity" and "Idle gaps")."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Rows
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, KERNEL, Activity
from traceview.measure.base import DeviceInput, DeviceMeasure
from traceview.measure.gaps.streams import StreamGapContext, stream_gaps
from traceview.model.columns import Table
from traceview.model.rows import StreamUse
from traceview.model.trace import Trace

POOL_THREADS = 2


def stream_uses(given: DeviceInput) -> tuple[StreamUse, ...]:
    """Return one row for each stream that worked in the window, by (process, context, stream id)."""
    trace, device = given.trace, given.activity
    stream = device.select(trace.operations["stream"].to_numpy())
    is_kernel = device.select(trace.operations["source"].to_physical().to_numpy()) == KERNEL
    context = StreamGapContext.build(trace, given.threads, device, given.idle)

    # NumPy releases the interpreter lock in searches and sorts, which take most of the time. One stream may have nearly
    # all gaps, so gaps are shared out too. They need a pool of their own: threads of the stream pool wait for them.
    with ThreadPoolExecutor(POOL_THREADS) as gap_pool, ThreadPoolExecutor(POOL_THREADS) as stream_pool:

        def measure(index: int) -> StreamUse:
            members = intervals.rows_where(stream == index)
            return _measure_stream(trace, device, context, index, members, is_kernel, gap_pool)

        uses = stream_pool.map(measure, np.flatnonzero(np.bincount(stream)).tolist())
        return tuple(sorted(uses, key=lambda use: (use.process_id, use.context_id, use.id)))


def _measure_stream(
    trace: Trace,
    device: Activity,
    context: StreamGapContext,
    index: int,
    members: Rows,
    is_kernel: NDArray[np.bool_],
    pool: Executor,
) -> StreamUse:
    codes = device.codes[members]
    copies = device.rows[members[codes == COPY]]
    row = trace.streams.row(index, named=True)
    gaps = stream_gaps(trace, device, context, members, pool)

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
)
