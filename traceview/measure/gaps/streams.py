"""When a stream did nothing although it had been used and would be again (METRICS.md "Idle gaps")."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Coverage, Rows, Times
from traceview.measure.activity import Activity
from traceview.measure.gaps.causes import Idle, attribute
from traceview.measure.gaps.host_totals import IdleHost
from traceview.measure.host import Host
from traceview.model.analysis import CAUSES, Gaps
from traceview.model.trace import Trace

OTHERS = ("other_compute", "other_communication", "other_copy")
AT_ONCE = 1 << 16  # operations of a stream; all at once would take more memory than the device's own gaps
WAITING = 2  # of those, while others are measured

Found = TypeVar("Found")


class OfDevice(NamedTuple):
    """What the gaps of all streams of a device are held against, made once."""

    idle: Idle
    host: IdleHost
    compute: Coverage
    communication: Coverage  # with nothing computing
    ended_by: Rows  # see Idle

    @classmethod
    def of(cls, trace: Trace, of: Host, device: Activity, idle: Idle) -> OfDevice:
        """Prepare a device, of which `idle` are the gaps."""
        return cls(
            idle,
            IdleHost.inside(of, idle.gaps),
            Coverage.of(device.compute),
            Coverage.of(intervals.subtract(device.communication, device.compute)),
            idle.ended_by(len(trace.operations)),
        )


def _few_at_once(pool: Executor, measure: Callable[[_Gaps], Found], several: Iterator[_Gaps]) -> Iterator[Found]:
    """Yield what is measured of each in turn; not all of them are made, and held, before the first is measured."""
    under_way: deque[Future[Found]] = deque()
    for one in several:
        under_way.append(pool.submit(measure, one))
        if len(under_way) > WAITING:
            yield under_way.popleft().result()
    while under_way:
        yield under_way.popleft().result()


class _Gaps(NamedTuple):
    """Some gaps of a stream, in order, and the operation (row of Trace.operations, -1 for none) that ends each."""

    start: Times
    end: Times
    operation: Rows


def stream_gaps(trace: Trace, device: Activity, against: OfDevice, members: Rows, pool: Executor) -> Gaps:
    """Return the gaps of one stream, between its own first and last operation, as sums alone.

    `members` index `device.rows`. What another stream of the device did meanwhile comes first: other_compute,
    other_communication and other_copy (memset included). `pool` measures some gaps while others are found.
    """
    count, total = 0, 0
    sums = dict.fromkeys((*OTHERS, *CAUSES), 0)
    own = np.zeros(len(against.idle.gaps.start), np.bool_)

    def measured(gaps: _Gaps) -> tuple[int, int, dict[str, int]]:
        found = _of_the_stream(trace, against, gaps, own)
        return len(gaps.start), int((gaps.end - gaps.start).sum()), found

    for some, length, parts in _few_at_once(pool, measured, _gaps(trace, device, members)):
        count, total = count + some, total + length
        for name, value in parts.items():
            sums[name] += value
    for name, value in zip(CAUSES, _sums(against.idle.causes, own), strict=True):
        sums[name] += value
    return Gaps(count, total, sums, pl.DataFrame())


def _gaps(trace: Trace, device: Activity, members: Rows) -> Iterator[_Gaps]:
    """Yield a stream's gaps some at a time: a gap lies between the furthest end so far and the next start."""
    reach = last = int(device.start[members[0]])
    for first in range(0, len(members), AT_ONCE):
        some = members[first : first + AT_ONCE].astype(np.intp)
        last = max(last, int(device.end[some].max()))
        some = some[device.end[some] > device.start[some]]  # one of no length neither splits a gap nor ends one
        if len(some) == 0:
            continue
        start = device.start[some]
        before = np.maximum.accumulate(np.concatenate([np.array([reach], np.int64), device.end[some]]))
        reach = int(before[-1])
        at = np.flatnonzero(start > before[:-1])
        yield _Gaps(before[at], start[at], device.rows[some[at]])
    if last > reach:
        stream = trace.operations["stream"].to_numpy()
        of_stream = stream[device.later] == stream[device.rows[members[0]]]
        end = np.array([last], np.int64)
        yield _Gaps(np.array([reach], np.int64), end, device.next_operation(end, of_stream))


def _of_the_stream(trace: Trace, against: OfDevice, gaps: _Gaps, own: NDArray[np.bool_]) -> dict[str, int]:
    """Attribute gaps, and mark in `own` those that are the device's own: they were attributed with it."""
    idle = against.idle.gaps
    place = against.ended_by[gaps.operation]
    same = place >= 0
    if len(idle.start):
        same &= (idle.start[place] == gaps.start) & (idle.end[place] == gaps.end)
    own[place[same]] = True
    rest = np.flatnonzero(~same)
    start, end, operation = gaps.start[rest], gaps.end[rest], gaps.operation[rest]
    compute, communication = (
        int(union.between(start, end).sum()) for union in (against.compute, against.communication)
    )
    causes = attribute(trace, against.host, start, end, operation).sum(axis=1).tolist()
    # A stream's gaps lie in the window, where a device is busy or idle, and its idle time has causes.
    busy = int((end - start).sum()) - sum(causes)
    others = (compute, communication, busy - compute - communication)
    return dict(zip((*OTHERS, *CAUSES), (*others, *causes), strict=True))


def _sums(causes: NDArray[np.int64], own: NDArray[np.bool_]) -> list[int]:
    """Add up the causes of some gaps: of all, less those that are not asked for, where they are fewer."""
    total = np.zeros(len(causes), np.int64)
    for block in intervals.blocks(len(own)):
        part, chosen = causes[:, block], own[block]
        most = 2 * np.count_nonzero(chosen) > len(chosen)
        few = part[:, np.flatnonzero(chosen != most)].sum(axis=1)
        total += part.sum(axis=1) - few if most else few
    return total.tolist()
