"""Parts of a complete trace for tests."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from traceview.engine.limited import quiet_moments
from traceview.engine.part import FIRST, LAST, PartTrace
from traceview.model.trace import Trace, Window


def quiet_parts(trace: Trace, count: int) -> list[PartTrace]:
    """Cut a trace into at most `count` parts of about equal numbers of operations, at quiet moments."""
    start, quiet = trace.operations["start"].to_numpy(), quiet_moments(trace)[1:]
    place = np.searchsorted(quiet, start[np.arange(1, count) * len(start) // count])
    borders = np.unique(quiet[place[place < len(quiet)]]).tolist()
    return [PartTrace(trace.with_window(Window(*edges))) for edges in pairwise([FIRST, *borders, LAST])]
