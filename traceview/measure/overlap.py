"""How much of the copies and of the communication hid behind compute (METRICS.md "Overlap")."""

from __future__ import annotations

import numpy as np

from traceview import intervals
from traceview.measure.activity import COMMUNICATION as COMMUNICATION_CODE
from traceview.measure.activity import Activity
from traceview.measure.base import DeviceMeasure
from traceview.measure.copies import Copies
from traceview.model.analysis import CommunicationOverlap, CopyOverlap
from traceview.model.columns import Table
from traceview.model.trace import Trace


def copy_overlaps(trace: Trace, of: Activity) -> tuple[CopyOverlap, ...]:
    """Return one row for each (kind, memory) pair that the device copied, in the order of KINDS and MEMORIES."""
    size = trace.operations["bytes"].to_numpy()
    found = []
    for kind, memory, members in Copies.of(trace, of).by_pair():
        union = intervals.union(of.start[members], of.end[members], ordered=True)
        busy = intervals.length(union)
        overlapped = intervals.overlap(union, of.compute)
        found.append(
            CopyOverlap(
                kind=kind,
                memory=memory,
                count=len(members),
                bytes=int(size[of.rows[members]].sum()),
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
        count=int(np.count_nonzero(of.codes == COMMUNICATION_CODE)),
        busy_ns=busy,
        overlapped_ns=overlapped,
        exposed_ns=busy - overlapped,
    )


COPIES = DeviceMeasure(
    Table(
        name="copies",
        title="Copies",
        note="Hidden: the part of their time in which compute runs.",
        row_type=CopyOverlap,
        shown=("label", "count", "bytes", "bandwidth", "busy_ns", "hidden", "exposed_ns"),
    ),
    lambda given: copy_overlaps(given.trace, given.activity),
)
COMMUNICATION = DeviceMeasure(
    Table(
        name="communication",
        title="Communication",
        row_type=CommunicationOverlap,
        shown=("count", "busy_ns", "hidden", "exposed_ns"),
        single=True,
    ),
    lambda given: (communication_overlap(given.activity),),
)
