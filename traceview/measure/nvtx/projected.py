"""Where each NVTX range lies on a GPU: from the first start to the last end of the work launched inside it."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.intervals import distinct
from traceview.measure.activity import within
from traceview.measure.nvtx.projection import Projection, project
from traceview.model.trace import PROJECTED, Trace


def measure_projected(trace: Trace, projection: Projection | None = None) -> pl.DataFrame:
    """Return one row for each range and device that it has work on, as PROJECTED says, by device and start.

    Work belongs to ranges as in METRICS.md "NVTX projected on the GPU". In a narrowed trace only the work that
    touches the window counts. `projection` is the trace's own, where it is known already.
    """
    projection = projection or project(trace)
    work = _of_runs(trace, projection)
    if work.is_empty():
        return pl.DataFrame(schema=dict(PROJECTED))
    together = (pl.col("start").min(), pl.col("end").max(), pl.col("operations").sum())
    work = work.group_by("stretch", "device").agg(*together)
    used = work["stretch"].unique().sort()
    index, owner = projection.stretches.open_ranges(used.to_numpy())
    pairs = pl.DataFrame({"stretch": used.to_numpy()[index], "range": owner.astype(np.int64)})
    return (
        pairs.join(work, on="stretch")
        .group_by("range", "device")
        .agg(*together)
        .select(list(PROJECTED))
        .sort("device", "start", "end", "range", descending=[False, False, True, False])
    )


def _of_runs(trace: Trace, projection: Projection) -> pl.DataFrame:
    """Return the work of each run that belongs to a range: stretch, device, first start, last end, operations.

    Where a run goes over from one device to another, another begins.
    """
    device, start, end = (trace.operations[name].to_numpy() for name in ("device", "start", "end"))
    begin = projection.begin
    if trace.window is not None:
        inside = np.flatnonzero(within(start, end, trace.window))
        device, start, end = device[inside], start[inside], end[inside]
        begin = np.searchsorted(inside, begin)
    first = distinct(np.concatenate([begin, np.flatnonzero(device[1:] != device[:-1]) + 1]))
    first = first[first < len(start)]
    # Of runs that begin at one place, all but the last have nothing inside the window.
    stretch = projection.stretch[np.searchsorted(begin, first, side="right") - 1]
    if len(first) == 0 or not stretch.any():
        return pl.DataFrame(schema={"stretch": pl.Int64})
    found = pl.DataFrame(
        {
            "stretch": stretch,
            "device": device[first],
            "start": start[first],
            "end": np.maximum.reduceat(end, first),
            "operations": np.diff(first, append=len(start)),
        }
    )
    return found.filter(pl.col("stretch") > 0)
