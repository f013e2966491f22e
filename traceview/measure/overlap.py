"""How much of the copies and of the communication hid behind compute (METRICS.md "Overlap")."""

from __future__ import annotations

import numpy as np

from traceview import intervals
from traceview.measure.activity import COMMUNICATION, COPY, Activity
from traceview.model import KINDS, MEMORIES, CommunicationOverlap, CopyOverlap, Trace


def copy_overlaps(trace: Trace, of: Activity) -> tuple[CopyOverlap, ...]:
    """Return one row for each (kind, memory) pair that the device copied, in the order of KINDS and MEMORIES."""
    copies = np.flatnonzero(of.codes == COPY)
    if len(copies) == 0:
        return ()
    chosen = trace.operations.select("kind", "memory", "bytes")[of.rows[copies]]
    kinds = chosen["kind"].to_physical().to_numpy().astype(np.int64)
    memories = chosen["memory"].to_physical().to_numpy().astype(np.int64)
    size = chosen["bytes"].to_numpy()
    pair = kinds * len(MEMORIES) + memories
    found = []
    for code in np.flatnonzero(np.bincount(pair)).tolist():
        members = np.flatnonzero(pair == code)
        start, end = of.start[copies[members]], of.end[copies[members]]
        union = intervals.union(start, end, ordered=True)
        busy = intervals.length(union)
        overlapped = intervals.overlap(union, of.compute)
        kind, memory = divmod(code, len(MEMORIES))
        found.append(
            CopyOverlap(
                kind=KINDS[kind],
                memory=MEMORIES[memory],
                count=len(start),
                bytes=int(size[members].sum()),
                busy_ns=busy,
                overlapped_ns=overlapped,
                exposed_ns=busy - overlapped,
            )
        )
    return tuple(found)


def communication_overlap(of: Activity) -> CommunicationOverlap:
    """Measure the device's communication kernels against its compute."""
    busy = intervals.length(of.communication)
    overlapped = intervals.overlap(of.communication, of.compute)
    return CommunicationOverlap(
        count=int(np.count_nonzero(of.codes == COMMUNICATION)),
        busy_ns=busy,
        overlapped_ns=overlapped,
        exposed_ns=busy - overlapped,
    )
