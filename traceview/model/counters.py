"""Quantities over time, such as the memory in use: each is a row of the timeline."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from traceview.frozen import frozen
from traceview.intervals import Times

MAX_STEPS = 4096  # steps of a row; the page holds the rows of counters whole


@frozen
class CounterSeries:
    """A quantity over time. `value[i]` holds from `start[i]` (ns on the capture's clock, ascending) to the next start.

    `unit` is "bytes", "%", "W", "" or another short word. `device` is a row of Trace.devices; None is the machine.
    """

    name: str
    unit: str
    start: Times
    value: NDArray[np.integer | np.floating]
    device: int | None = None


Counters = Callable[[], tuple[CounterSeries, ...]]


@frozen
class CounterSteps:
    """A counter from `start` to `end` (ns): its time-weighted mean, lowest and highest value in each step."""

    start: Times
    end: Times
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def counter_steps(counter: CounterSeries, first: int, last: int) -> CounterSteps:
    """Return a counter inside [first, last) in at most MAX_STEPS steps, which are its own if they are few enough."""
    start, value = counter.start, np.asarray(counter.value, np.float64)
    end = np.append(start[1:], last)
    kept = np.flatnonzero(np.minimum(end, last) > np.maximum(start, first))
    start, end, value = np.maximum(start[kept], first), np.minimum(end[kept], last), value[kept]
    if len(start) <= MAX_STEPS:
        return CounterSteps(start, end, value, value, value)
    edges = np.linspace(int(start[0]), last, MAX_STEPS + 1).astype(np.int64)
    area = np.append(0.0, np.cumsum(value * (end - start)))
    at = np.searchsorted(start, edges, "right") - 1
    before = area[at] + value[at] * (edges - start[at])
    # The value at the start of a bin counts as well: insert it as a step of its own.
    cuts = np.unique(np.concatenate([start, edges[:-1]]))
    values = value[np.searchsorted(start, cuts, "right") - 1]
    places = np.searchsorted(cuts, edges[:-1])
    mean = np.diff(before) / np.diff(edges)
    return CounterSteps(
        edges[:-1], edges[1:], mean, np.minimum.reduceat(values, places), np.maximum.reduceat(values, places)
    )
