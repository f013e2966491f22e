"""The time of copies and communication that overlaps compute (docs/definitions.md "Overlap")."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION as COMMUNICATION_CODE
from traceview.measure.activity import COPY, Activity
from traceview.measure.base import Measure
from traceview.measure.queues import blocking_times
from traceview.model.columns import Table
from traceview.model.rows import CommunicationOverlap, CopyOverlap
from traceview.model.trace import KINDS, MEMORIES, Trace


class Copies(NamedTuple):
    """A device's copies: their ascending indices into its Activity, and each one's code of KINDS and of MEMORIES."""

    members: Times
    kind: NDArray[np.uint8]
    memory: NDArray[np.uint8]

    @classmethod
    def from_activity(cls, trace: Trace, work: Activity) -> Copies:
        """Find the copies of one device."""
        index = np.flatnonzero(work.codes == COPY)
        codes = trace.operations.select("kind", "memory")[work.rows[index]]
        return cls(index, codes["kind"].to_physical().to_numpy(), codes["memory"].to_physical().to_numpy())

    def select(self, kind: str, memory: str) -> Times:
        """Return the indices of the copies of one kind and memory."""
        chosen: Times = self.members[(self.kind == KINDS.index(kind)) & (self.memory == MEMORIES.index(memory))]
        return chosen

    def groups(self) -> Iterator[tuple[str, str, Times]]:
        """Yield each kind and memory that has copies, in the order of KINDS and MEMORIES, with the copies' indices."""
        pair = self.kind * np.uint8(len(MEMORIES)) + self.memory
        for code, rows in intervals.rows_by_code(pair):
            kind, memory = divmod(code, len(MEMORIES))
            yield KINDS[kind], MEMORIES[memory], self.members[rows]


def copy_overlaps(trace: Trace, work: Activity) -> tuple[CopyOverlap, ...]:
    """Return one row for each (kind, memory) pair that the device copied, in the order of KINDS and MEMORIES."""
    size = trace.operations["bytes"].to_numpy()
    rows = []
    for kind, memory, members in Copies.from_activity(trace, work).groups():
        union = intervals.union(work.start[members], work.end[members], ordered=True)
        busy = intervals.length(union)
        overlapped = intervals.overlap_length(union, work.compute)
        rows.append(
            CopyOverlap(
                kind=kind,
                memory=memory,
                count=len(members),
                bytes=int(size[work.rows[members]].sum()),
                busy_ns=busy,
                overlapped_ns=overlapped,
                exposed_ns=busy - overlapped,
            )
        )
    return tuple(rows)


def communication_overlap(trace: Trace, work: Activity) -> CommunicationOverlap:
    """Measure the device's communication kernels against its compute."""
    busy = intervals.length(work.communication)
    overlapped = intervals.overlap_length(work.communication, work.compute)
    return CommunicationOverlap(
        count=int(np.count_nonzero(work.codes == COMMUNICATION_CODE)),
        busy_ns=busy,
        overlapped_ns=overlapped,
        exposed_ns=busy - overlapped,
        blocking_ns=intervals.length(blocking_times(trace, work)),
    )


COPIES = Measure(
    Table(
        name="copies",
        title="Copies",
        note="Hidden: the part of the copying time in which compute runs.",
        row_type=CopyOverlap,
        shown=("label", "count", "bytes", "bandwidth", "busy_ns", "hidden", "exposed_ns"),
    ),
    lambda given: copy_overlaps(given.trace, given.activity),
)
COMMUNICATION = Measure(
    Table(
        name="communication",
        title="Communication",
        row_type=CommunicationOverlap,
        shown=("count", "busy_ns", "hidden", "exposed_ns", "blocking_ns"),
        single=True,
    ),
    lambda given: (communication_overlap(given.trace, given.activity),),
)
