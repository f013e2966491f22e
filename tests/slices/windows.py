"""Slices of a complete trace for tests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from traceview.model.trace import Trace, Window
from traceview.slices.plan import quiet_moments
from traceview.slices.slice import FIRST, LAST, Slice


def quiet_slices(trace: Trace, count: int) -> list[Slice]:
    """Cut a trace into at most `count` slices of about equal numbers of operations, at quiet moments."""
    start, quiet = trace.operations["start"].to_numpy(), quiet_moments(trace)[1:]
    place = np.searchsorted(quiet, start[np.arange(1, count) * len(start) // count])
    borders = np.unique(quiet[place[place < len(quiet)]]).tolist()
    return [Slice(trace.with_window(Window(*edges))) for edges in pairwise([FIRST, *borders, LAST])]
