"""When a stream did nothing although it had been used and would be again (METRICS.md "Idle gaps")."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Coverage, Intervals, Times
from traceview.measure.activity import Activity
from traceview.measure.host import Host
from traceview.measure.idle import Idle, attribute
from traceview.measure.idle_host import IdleHost
from traceview.model import CAUSES, Gaps, Trace

Sums = NDArray[np.int64]


class OfDevice(NamedTuple):
    """What the gaps of all streams of a device are held against, made once."""

    idle: Idle
    host: IdleHost
    sums: Sums  # of each of CAUSES, over all gaps of the device
    compute: Coverage
    communication: Coverage  # with nothing computing

    @classmethod
    def of(cls, of: Host, device: Activity, idle: Idle) -> OfDevice:
        """Prepare a device, of which `idle` are the gaps."""
        return cls(
            idle,
            IdleHost.inside(of, idle.gaps),
            idle.causes.sum(axis=1),
            Coverage.of(device.compute),
            Coverage.of(intervals.subtract(device.communication, device.compute)),
        )


def stream_gaps(trace: Trace, device: Activity, against: OfDevice, members: Times) -> Gaps:
    """Return the gaps of one stream, between its own first and last operation, as sums alone.

    `members` index `device.rows`. What another stream of the device did meanwhile comes first: other_compute,
    other_communication and other_copy (memset included).
    """
    start, end = device.start[members], device.end[members]
    own, first = intervals.ordered_union(start, end)
    last = int(end.max())
    gaps, member = intervals.gaps_between(own, int(start[0]), last)
    stream = None
    if len(member) and member[-1] == len(first):
        of_stream = trace.operations["stream"].to_numpy()
        stream = of_stream[device.later] == of_stream[device.rows[members[0]]]
    operation = device.ending(device.rows[members[first]], member, last, stream)
    causes = _summed(trace, against, gaps, operation)
    return Gaps(len(gaps.start), intervals.length(gaps), causes, pl.DataFrame())


def _summed(trace: Trace, against: OfDevice, gaps: Intervals, operation: Times) -> dict[str, int]:
    """Attribute a stream's gaps; those that are the device's own gaps were attributed with it."""
    idle = against.idle
    place = idle.ended_by(operation, len(trace.operations))
    own = place >= 0
    own &= idle.gaps.start[place] == gaps.start if len(idle.gaps.start) else False
    own &= idle.gaps.end[place] == gaps.end if len(idle.gaps.start) else False
    rest = np.flatnonzero(~own)
    start, end, operation = gaps.start[rest], gaps.end[rest], operation[rest]
    compute, communication, still = (
        int(union.between(start, end).sum()) for union in (against.compute, against.communication, against.host.idle)
    )
    busy = int((end - start).sum()) - still  # a stream's gaps lie in the window, where a device is busy or idle
    others = {
        "other_compute": compute,
        "other_communication": communication,
        "other_copy": busy - compute - communication,
    }
    causes = _sums_of(against, place[own]) + attribute(trace, against.host, start, end, operation).sum(axis=1)
    return others | dict(zip(CAUSES, causes.tolist(), strict=True))


def _sums_of(against: OfDevice, gaps: NDArray[np.int32]) -> Sums:
    """Add up the causes of some gaps of the device: of all, less those that are not asked for, where that is less."""
    causes = against.idle.causes
    if 2 * len(gaps) < causes.shape[1]:
        return np.array([int(of[gaps].sum()) for of in causes])
    left_out = np.ones(causes.shape[1], np.bool_)
    left_out[gaps] = False
    rows = np.flatnonzero(left_out)
    return np.array([total - int(of[rows].sum()) for total, of in zip(against.sums.tolist(), causes, strict=True)])
