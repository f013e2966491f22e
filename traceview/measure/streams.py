"""What each stream of a device did (METRICS.md "Identity" and "Idle gaps")."""

from __future__ import annotations

from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Rows
from traceview.measure.activity import COMMUNICATION, COMPUTE, COPY, KERNEL, Activity
from traceview.measure.base import DeviceInput, DeviceMeasure
from traceview.measure.gaps.streams import OfDevice, stream_gaps
from traceview.model.analysis import StreamUse
from traceview.model.columns import Table
from traceview.model.trace import Trace

SIDE_BY_SIDE = 2


def stream_uses(given: DeviceInput) -> tuple[StreamUse, ...]:
    """Return one row for each stream that worked in the window, by (process, context, stream id)."""
    trace, device = given.trace, given.activity
    stream = device.of(trace.operations["stream"].to_numpy())
    is_kernel = device.of(trace.operations["source"].to_physical().to_numpy()) == KERNEL
    against = OfDevice.of(trace, given.threads, device, given.idle)

    # NumPy lets go of the interpreter in its searches and sorts, which is most of this. One stream may have nearly
    # all the gaps, so that these are shared out too; to their own threads, since those of streams wait for them.
    with ThreadPoolExecutor(SIDE_BY_SIDE) as gaps, ThreadPoolExecutor(SIDE_BY_SIDE) as pool:

        def measure(index: int) -> StreamUse:
            members = intervals.rows_where(stream == index)
            return _measure_stream(trace, device, against, index, members, is_kernel, gaps)

        uses = pool.map(measure, np.flatnonzero(np.bincount(stream)).tolist())
        return tuple(sorted(uses, key=lambda use: (use.process_id, use.context_id, use.id)))


def _measure_stream(
    trace: Trace,
    device: Activity,
    against: OfDevice,
    index: int,
    members: Rows,
    is_kernel: NDArray[np.bool_],
    pool: Executor,
) -> StreamUse:
    codes = device.codes[members]
    copies = device.rows[members[codes == COPY]]
    row = trace.streams.row(index, named=True)

    gaps = stream_gaps(trace, device, against, members, pool)

    def busy(chosen: Rows) -> int:
        return intervals.united_length(device.start, device.end, chosen)

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
