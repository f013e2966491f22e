"""The work of a device in its window or in its steady part (docs/definitions.md "The steady part")."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from traceview import intervals
from traceview.measure.activity import KERNEL, Activity
from traceview.measure.gaps.causes import attribute
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.overlap import Copies
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.columns import Table
from traceview.model.devices import CAUSES, DevicePart, Gaps
from traceview.model.rows import CopyOverlap
from traceview.model.trace import KINDS, Trace, Window


def steady_window(iterations: Iterations | NotMeasured, window: Window) -> Window:
    """Return the steady part of a device's window; it is empty if the device works only before or after it."""
    if isinstance(iterations, NotMeasured):
        return window
    start = min(max(iterations.steady.start, window.start), window.end)
    return Window(start, min(max(iterations.steady.end, start), window.end))


def measure_part(trace: Trace, work: Activity, gaps: Gaps, tables: Mapping[str, Table]) -> DevicePart:
    """Combine what is measured for a window, or a part of it, with the lengths of its work."""
    busy, copies = intervals.length(work.busy), tables["copies"].rows
    source = work.select(trace.operations["source"].to_physical().to_numpy())
    return DevicePart(
        window=work.window,
        kernel_count=int(np.count_nonzero(source == KERNEL)),
        busy_ns=busy,
        compute_ns=intervals.length(work.compute),
        communication_ns=intervals.length(work.communication),
        exposed_h2d_ns=_exposed_copies(trace, work, copies, "h2d"),
        exposed_d2h_ns=_exposed_copies(trace, work, copies, "d2h"),
        idle_ns=work.window.length - busy,
        gaps=gaps,
        tables=tables,
    )


def _exposed_copies(trace: Trace, work: Activity, overlaps: Sequence[CopyOverlap], kind: str) -> int:
    """Return the time with a copy of this kind and without compute."""
    exposed = [overlap.exposed_ns for overlap in overlaps if overlap.kind == kind]
    if len(exposed) < 2:
        return sum(exposed)
    # Copies from two kinds of memory may run at the same time.
    copies = Copies.from_activity(trace, work)
    chosen = copies.members[copies.kind == KINDS.index(kind)]
    union = intervals.union(work.start[chosen], work.end[chosen], ordered=True)
    return intervals.length(union) - intervals.overlap_length(union, work.compute)


def clip_gaps(trace: Trace, threads: ThreadStates, gaps: Gaps, window: Window) -> Gaps:
    """Return the gaps inside a window. A gap at its border is cut, and its part inside gets its causes again."""
    start, end = gaps.frame["start"].to_numpy(), gaps.frame["end"].to_numpy()
    first = int(np.searchsorted(end, window.start, side="right"))
    last = int(np.searchsorted(start, window.end, side="left")) if window.length else first
    frame = gaps.frame[first : max(last, first)]
    if len(frame) and (start[first] < window.start or end[last - 1] > window.end):
        ends = _cut_to(trace, threads, frame[[0, -1]] if len(frame) > 1 else frame, window)
        frame = pl.concat([ends[:1], frame[1:-1], ends[1:]])
    return Gaps(
        count=len(frame),
        total_ns=int((frame["end"] - frame["start"]).sum()),
        causes={cause: int(frame[cause].sum()) if gaps.causes[cause] else 0 for cause in CAUSES},
        frame=frame,
    )


def _cut_to(trace: Trace, threads: ThreadStates, gaps: pl.DataFrame, window: Window) -> pl.DataFrame:
    start = np.maximum(gaps["start"].to_numpy(), window.start)
    end = np.minimum(gaps["end"].to_numpy(), window.end)
    causes = attribute(trace, threads, start, end, gaps["operation"].fill_null(-1).to_numpy())
    columns = {"start": start, "end": end} | dict(zip(CAUSES, causes, strict=True))
    return gaps.with_columns(pl.Series(name, values) for name, values in columns.items())
