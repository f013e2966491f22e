"""The initial accounts of a device: its exposed work by kind, and the compute time of each operation."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.measure.activity import COMPUTE, Activity
from traceview.measure.overlap import Copies
from traceview.model.trace import CLASSES

COMMUNICATION = "communication"
MEMSET = "memset"


def own_compute(work: Activity) -> Times:
    """Return the ns in which each operation computes while no earlier compute runs; the sum is the compute time."""
    own = np.zeros(len(work.codes), np.int64)
    rows = np.flatnonzero(work.codes == COMPUTE)
    own[rows] = intervals.own_lengths(work.start[rows], work.end[rows])
    return own


def copy_key(kind: str, memory: str) -> str:
    """Return the exposed account of one kind of copy: "h2d pageable"."""
    return f"{kind} {memory}"


def exposed_work(work: Activity, copies: Copies) -> dict[str, Intervals]:
    """Return when each kind of work runs while nothing computes, each ns once.

    If several kinds run at once, the ns belongs to the first of: communication, copies in the order of KINDS
    (h2d, d2h, ...) and MEMORIES, memset. The lengths add up to the device's busy time less its compute time.
    """
    exposed: dict[str, Intervals] = {}
    earlier = [work.compute]
    for key, members in _members_by_kind(work, copies):
        times = intervals.union(work.start[members], work.end[members], ordered=True)
        exposed[key] = times
        for other in earlier:
            exposed[key] = intervals.subtract(exposed[key], other)
        earlier.append(times)
    return exposed


def _members_by_kind(work: Activity, copies: Copies) -> Iterator[tuple[str, Times]]:
    yield COMMUNICATION, np.flatnonzero(work.codes == CLASSES.index("communication"))
    for kind, memory, members in copies.groups():
        yield copy_key(kind, memory), members
    yield MEMSET, np.flatnonzero(work.codes == CLASSES.index("memset"))
