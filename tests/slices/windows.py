"""Slices of a complete trace for tests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import BEFORE_ALL, Times
from traceview.model.trace import ROLES, Trace, Window


def quiet_slices(trace: Trace, count: int) -> list[Trace]:
    """Cut a trace into at most `count` slices, at starts of operations before which no GPU works and no call blocks."""
    start, end = (trace.operations[name].to_numpy() for name in ("start", "end"))
    reach = np.maximum.accumulate(np.append(BEFORE_ALL, end[:-1]))
    quiet = start[(reach <= start) & (np.diff(start, prepend=BEFORE_ALL) > 0) & ~_is_blocked(trace, start)][1:]
    place = np.searchsorted(quiet, start[np.arange(1, count) * len(start) // count])
    borders = np.unique(quiet[place[place < len(quiet)]]).tolist()
    edges = [BEFORE_ALL, *borders, -BEFORE_ALL]
    return [trace.with_window(Window(*pair)) for pair in pairwise(edges)]


def _is_blocked(trace: Trace, moments: Times) -> NDArray[np.bool_]:
    blocking = (trace.api["role"].to_physical() == ROLES.index("sync")).to_numpy() | trace.api["implicit"].to_numpy()
    start, end = (trace.api[name].to_numpy()[blocking] for name in ("start", "end"))
    reach = np.maximum.accumulate(np.append(BEFORE_ALL, end))
    blocked: NDArray[np.bool_] = reach[np.searchsorted(start, moments)] > moments
    return blocked
