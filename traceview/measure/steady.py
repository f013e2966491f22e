"""A device in its steady part (docs/definitions.md "The steady part")."""

from __future__ import annotations

import numpy as np

from traceview import intervals
from traceview.measure.activity import COPY, Activity
from traceview.model.analysis import Gaps, SteadyUse
from traceview.model.trace import KINDS, Trace


def measure_steady(trace: Trace, work: Activity, gaps: Gaps) -> SteadyUse:
    """Measure a device's steady part from its work and idle gaps inside it."""
    busy = intervals.length(work.busy)
    communication = intervals.length(work.communication)
    return SteadyUse(
        window=work.window,
        busy_ns=busy,
        compute_ns=intervals.length(work.compute),
        communication_ns=communication,
        exposed_h2d_ns=_exposed_copies(trace, work, "h2d"),
        exposed_d2h_ns=_exposed_copies(trace, work, "d2h"),
        exposed_communication_ns=communication - intervals.overlap_length(work.communication, work.compute),
        idle_ns=work.window.length - busy,
        gaps=gaps,
    )


def _exposed_copies(trace: Trace, work: Activity, kind: str) -> int:
    """Return the time with a copy of this kind and without compute."""
    copies = np.flatnonzero(work.codes == COPY)
    chosen = copies[trace.operations["kind"].to_physical().to_numpy()[work.rows[copies]] == KINDS.index(kind)]
    union = intervals.union(work.start[chosen], work.end[chosen], ordered=True)
    return intervals.length(union) - intervals.overlap_length(union, work.compute)
