"""Which lane of its track an event goes to: viewers draw only what nests, and drop or bend the rest."""

from __future__ import annotations

import numpy as np

from traceview.intervals import Times


def flat(start: Times, end: Times, group: Times) -> Times:
    """Return a lane for each event so that those of one group and lane never overlap: as few lanes as can be.

    Events that overlap nothing get lane 0; so do events of no length, which nest in whatever is around them.
    """
    lanes = np.zeros(len(start), np.int64)
    long = np.flatnonzero(end > start)
    rows = long[np.lexsort((start[long], group[long]))]
    lanes[rows] = _coloured(*_one_line(start[rows], end[rows], group[rows]))
    return lanes


def _one_line(start: Times, end: Times, group: Times) -> tuple[Times, Times]:
    """Return ranks for times, such that each group lies after the one before it on one line."""
    count = len(start)
    times = np.concatenate([start, end])
    groups = np.concatenate([group, group])
    # What ends at a moment makes room for what starts then.
    is_start = np.repeat([1, 0], count)
    order = np.lexsort((is_start, times, groups))
    rank = np.empty(2 * count, np.int64)
    rank[order] = np.arange(2 * count)
    return rank[:count], rank[count:]


def _coloured(start: Times, end: Times) -> Times:
    """Colour events with distinct times, in order of start: one takes the lane that has been free for longest.

    Events that overlap each other, directly or through others, are a cluster; each begins anew with lane 0.
    """
    count = len(start)
    if count == 0:
        return np.empty(0, np.int64)
    place = np.arange(count)
    reach = np.maximum.accumulate(end)
    first = np.append(True, start[1:] > reach[:-1])
    cluster = np.cumsum(first) - 1
    begin = np.flatnonzero(first)[cluster]
    by_end = np.argsort(end, kind="stable")
    depth = place + 1 - np.searchsorted(end[by_end], start)
    deepest = np.maximum.accumulate(depth + cluster * (count + 1)) - cluster * (count + 1)
    opens = np.append(True, deepest[1:] > deepest[:-1]) | first
    # All that ended before a cluster began are before it in by_end too, so its ends count from there.
    source = np.where(opens, place, by_end[np.minimum(begin + (place - begin) - deepest, count - 1)])
    while not np.array_equal(source, source[source]):
        source = source[source]
    lanes: Times = (deepest - 1)[source]
    return lanes


def crossing(start: Times, end: Times, group: Times) -> Times:
    """Return the rows of events that begin inside another of their group and end after it: without them, all nest."""
    order = np.lexsort((-end, start, group))
    begins, ends = _dense(start[order], end[order], group[order])
    by_end = np.argsort(ends, kind="stable")
    ordered = ends[by_end]
    # Of those that end inside an event, one that comes before it began before it.
    low, high = np.searchsorted(ordered, begins, side="right"), np.searchsorted(ordered, ends, side="left")
    asked = np.flatnonzero(high > low)
    earliest = -_largest(-by_end, low[asked], high[asked])
    found: Times = np.sort(order[asked[earliest < asked]])
    return found


def _dense(start: Times, end: Times, group: Times) -> tuple[Times, Times]:
    """Return ranks for times, equal where the times are, such that each group lies after the one before it."""
    count = len(start)
    times, groups = np.concatenate([start, end]), np.concatenate([group, group])
    order = np.lexsort((times, groups))
    times, groups = times[order], groups[order]
    new = np.append(False, (times[1:] != times[:-1]) | (groups[1:] != groups[:-1])) if count else np.empty(0, np.bool_)
    rank = np.empty(2 * count, np.int64)
    rank[order] = np.cumsum(new)
    return rank[:count], rank[count:]


def _largest(values: Times, low: Times, high: Times) -> Times:
    """Return the largest of values[low:high] for each query, none of which is empty."""
    found = np.empty(len(low), np.int64)
    if len(low) == 0:
        return found
    # A stretch is two, perhaps overlapping, whose length is a power of two.
    power = np.frexp((high - low).astype(np.float64))[1] - 1
    table, width = values, 1
    for level in range(int(power.max()) + 1):
        rows = np.flatnonzero(power == level)
        found[rows] = np.maximum(table[low[rows]], table[high[rows] - width])
        if width < len(table):
            table = np.maximum(table[:-width], table[width:])
        width *= 2
    return found
