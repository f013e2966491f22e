"""What each stream of a device did (METRICS.md "Identity" and "Idle gaps")."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE, Activity
from traceview.measure.host import Host
from traceview.measure.idle import Idle
from traceview.measure.stream_gaps import OfDevice, stream_gaps
from traceview.model import CLASSES, SOURCES, StreamUse, Trace

COPY = CLASSES.index("copy")
KERNEL = SOURCES.index("kernel")
SIDE_BY_SIDE = 2


def measure_streams(trace: Trace, of: Host, device: Activity, idle: Idle) -> tuple[StreamUse, ...]:
    """Return one StreamUse for each stream that worked in the window, by (process, context, stream id)."""
    stream = trace.operations["stream"].to_numpy()[device.rows]
    against = OfDevice.of(of, device, idle)

    def measure(index: int) -> StreamUse:
        return _measure_stream(trace, device, against, index, np.flatnonzero(stream == index))

    # NumPy lets go of the interpreter in its searches and sorts, which is most of this.
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        uses = pool.map(measure, np.flatnonzero(np.bincount(stream)).tolist())
        return tuple(sorted(uses, key=lambda use: (use.process_id, use.context_id, use.id)))


def _measure_stream(trace: Trace, device: Activity, against: OfDevice, index: int, members: Times) -> StreamUse:
    rows = device.rows[members]
    codes = device.codes[members]
    source = trace.operations["source"].to_physical().to_numpy()[rows]
    copies = codes == COPY
    row = trace.streams.row(index, named=True)
    return StreamUse(
        stream=index,
        id=row["stream_id"],
        process_id=row["process"],
        context_id=row["context"],
        label=row["label"],
        kernel_count=int(np.count_nonzero(source == KERNEL)),
        copy_count=int(np.count_nonzero(copies)),
        operation_count=len(members),
        bytes=int(trace.operations["bytes"].to_numpy()[rows[copies]].sum()),
        busy_ns=_busy(device.start[members], device.end[members]),
        compute_ns=_busy_in(device, members, codes, COMPUTE),
        communication_ns=_busy_in(device, members, codes, COMMUNICATION),
        copy_ns=_busy_in(device, members, codes, COPY),
        gaps=stream_gaps(trace, device, against, members),
    )


def _busy_in(device: Activity, members: Times, codes: NDArray[np.uint8], code: int) -> int:
    chosen = members[codes == code]
    return _busy(device.start[chosen], device.end[chosen])


def _busy(start: Times, end: Times) -> int:
    """Return the length of the union of operations in order of start, which on one stream seldom overlap."""
    if (start[1:] >= end[:-1]).all():
        return int((end - start).sum())
    return intervals.length(intervals.union(start, end, ordered=True))
