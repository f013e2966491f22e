"""The GPU work of groups of NVTX ranges: how much, from when to when, and how long at least one of it ran."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import BEFORE_ALL, Times, consecutive, distinct
from traceview.measure.activity import KERNEL, within
from traceview.measure.groups import Unions, batches
from traceview.measure.nvtx.projection import Projection
from traceview.model.trace import Trace


class GroupWork(NamedTuple):
    """One value a group, 0 where it has no work; times in ns (METRICS.md "NVTX projected on the GPU")."""

    busy: Times
    span: Times
    span_each: Times
    kernels: Times
    operations: Times
    via: Times


def work_of_groups(trace: Trace, projection: Projection, group: Times, groups: int) -> GroupWork:
    """Measure the work of the trace's window that belongs to each of `groups` groups; `group` is that of each range."""
    work, stretches = _Work.of(trace, projection), len(projection.stretches.first)
    crowded = np.flatnonzero(work.crowded())
    each = _each_stretch(trace, work, crowded, stretches)
    used = np.flatnonzero(each.operations[1:]) + 1
    index, owner = projection.stretches.open_ranges(used)
    low, high = _ends(owner, each.first[used[index]], each.last[used[index]], len(group))
    # Of ranges inside others of their group, the work is the group's but once.
    of, stretch = np.divmod(distinct(group[owner] * stretches + used[index]), stretches)
    first, last = _ends(of, each.first[stretch], each.last[stretch], groups)
    kernels, operations, via, alone = (_sums(of, values[stretch], groups) for values in each[2:])
    return GroupWork(
        busy=alone + _busy(work, crowded, of, stretch, groups),
        span=np.maximum(last - first, 0),
        span_each=_sums(group, np.maximum(high - low, 0), groups),
        kernels=kernels,
        operations=operations,
        via=via,
    )


class _Work(NamedTuple):
    """All operations, clipped to the window, and runs of them as in Projection, of stretch 0 outside of the window."""

    start: Times
    end: Times
    begin: Times
    stretch: Times
    via: NDArray[np.bool_]

    @classmethod
    def of(cls, trace: Trace, projection: Projection) -> _Work:
        start, end = trace.operations["start"].to_numpy(), trace.operations["end"].to_numpy()
        begin, stretch, via, window = projection.begin, projection.stretch, projection.via_process, trace.window
        if window is None:
            return cls(start, end, begin, stretch, via)
        inside = within(start, end, window)
        cut = distinct(np.append(begin, np.flatnonzero(inside[1:] != inside[:-1]) + 1))
        run = np.searchsorted(begin, cut, side="right") - 1
        start, end = (np.clip(times, window.start, window.end) for times in (start, end))
        return cls(start, end, cut, np.where(inside[cut], stretch[run], 0), via[run])

    def crowded(self) -> NDArray[np.bool_]:
        """Say which operations share time with another one."""
        meets = self.start[1:] < np.maximum.accumulate(self.end)[:-1]
        found = np.zeros(len(self.start), np.bool_)
        found[1:] = meets
        found[:-1] |= meets
        return found


class _EachStretch(NamedTuple):
    """One value for each of Stretches: first start, last end, counts, and the ns in which one operation ran alone."""

    first: Times
    last: Times
    kernels: Times
    operations: Times
    via: Times
    alone: Times


def _each_stretch(trace: Trace, work: _Work, crowded: Times, stretches: int) -> _EachStretch:
    if len(work.begin) == 0:
        return _EachStretch(*np.zeros((6, stretches), np.int64))
    alone = work.end - work.start
    alone[crowded] = 0
    kernel = trace.operations["source"].to_physical().to_numpy() == KERNEL
    operations = np.diff(work.begin, append=len(alone))
    # A run has one sum: operations of a stretch mostly follow each other.
    sums = (
        np.add.reduceat(kernel, work.begin, dtype=np.int64),
        operations,
        operations * work.via,
        np.add.reduceat(alone, work.begin),
    )
    ends = _ends(work.stretch, work.start[work.begin], np.maximum.reduceat(work.end, work.begin), stretches)
    return _EachStretch(*ends, *(_sums(work.stretch, values, stretches) for values in sums))


def _ends(owner: Times, first: Times, last: Times, count: int) -> tuple[Times, Times]:
    """Return each owner's first start and last end; of none, a start that comes after the end."""
    low, high = np.full(count, -BEFORE_ALL), np.full(count, BEFORE_ALL)
    np.minimum.at(low, owner, first)
    np.maximum.at(high, owner, last)
    return low, high


def _sums(owner: Times, values: Times, count: int) -> Times:
    found = np.zeros(count, np.int64)
    np.add.at(found, owner, values)
    return found


def _busy(work: _Work, crowded: Times, group: Times, stretch: Times, groups: int) -> Times:
    """Return how long at least one of each group's crowded operations ran.

    `group` and `stretch` are pairs, ascending, of a group and one of its stretches.
    """
    of = np.repeat(work.stretch, np.diff(work.begin, append=len(work.start)))[crowded]
    order = np.argsort(of, kind="stable")
    ordered = of[order]
    first = np.searchsorted(ordered, stretch, side="left")
    count = np.searchsorted(ordered, stretch, side="right") - first
    unions = Unions.of(work.start[crowded], work.end[crowded])
    busy = np.zeros(groups, np.int64)
    # All pairs of (group, operation) at once would be many times the operations, where ranges nest.
    for rows in batches(group, count):
        low, high = int(group[rows][0]), int(group[rows][-1]) + 1
        owner, place = np.repeat(group[rows] - low, count[rows]), consecutive(first[rows], count[rows])
        busy[low:high] = unions.lengths(owner, order[place], high - low)
    return busy
