"""What each stream of a device did (METRICS.md "Identity" and "Idle gaps")."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION, COMPUTE, Activity
from traceview.measure.host import Host
from traceview.measure.idle import Idle, stream_gaps
from traceview.model import CLASSES, SOURCES, StreamUse, Trace

COPY = CLASSES.index("copy")
KERNEL = SOURCES.index("kernel")
SIDE_BY_SIDE = 2


def measure_streams(trace: Trace, of: Host, device: Activity, idle: Idle) -> tuple[StreamUse, ...]:
    """Return one StreamUse for each stream that worked in the window, by (process, context, stream id)."""
    stream = trace.operations["stream"].to_numpy()[device.rows]
    inside = of.inside(idle.gaps)

    def measure(index: int) -> StreamUse:
        return _measure_stream(trace, inside, device, idle, index, np.flatnonzero(stream == index))

    # NumPy lets go of the interpreter in its searches and sorts, which is most of this.
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        uses = pool.map(measure, np.unique(stream).tolist())
        return tuple(sorted(uses, key=lambda use: (use.process_id, use.context_id, use.id)))


def _measure_stream(trace: Trace, of: Host, device: Activity, idle: Idle, index: int, members: Times) -> StreamUse:
    start, end, codes = device.start[members], device.end[members], device.codes[members]
    rows = device.rows[members]
    source = trace.operations["source"].to_physical().to_numpy()[rows]
    copies = codes == COPY

    def busy(chosen: np.typing.NDArray[np.bool_]) -> int:
        return intervals.length(intervals.union(start[chosen], end[chosen], ordered=True))

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
        busy_ns=busy(np.ones(len(members), np.bool_)),
        compute_ns=busy(codes == COMPUTE),
        communication_ns=busy(codes == COMMUNICATION),
        copy_ns=busy(copies),
        gaps=stream_gaps(trace, of, device, idle, members),
    )
