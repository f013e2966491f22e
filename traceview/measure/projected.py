"""Where each NVTX range lies on a GPU: from the first start to the last end of the work launched inside it."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.measure.activity import within
from traceview.measure.projection import Projection, project
from traceview.model import PROJECTED, Trace


def measure_projected(trace: Trace, projection: Projection | None = None) -> pl.DataFrame:
    """Return one row for each range and device that it has work on, as PROJECTED says, by device and start.

    Work belongs to ranges as in METRICS.md "NVTX projected on the GPU". In a narrowed trace only the work that
    touches the window counts. `projection` is the trace's own, where it is known already.
    """
    projection = projection or project(trace)
    operations = trace.operations.select("device", "start", "end")
    stretch = projection.each(projection.stretch)
    chosen = stretch > 0
    if trace.window is not None:
        start, end = (operations[name].to_numpy() for name in ("start", "end"))
        chosen &= within(start, end, trace.window)
    rows = np.flatnonzero(chosen)
    if len(rows) == 0:
        return pl.DataFrame(schema=dict(PROJECTED))
    work = (
        operations[rows]
        .with_columns(pl.Series("stretch", stretch[rows]))
        .group_by("stretch", "device")
        .agg(pl.col("start").min(), pl.col("end").max(), pl.len().cast(pl.Int64).alias("operations"))
    )
    used = work["stretch"].unique().sort()
    index, owner = projection.stretches.open_ranges(used.to_numpy())
    pairs = pl.DataFrame({"stretch": used.to_numpy()[index], "range": owner.astype(np.int64)})
    return (
        pairs.join(work, on="stretch")
        .group_by("range", "device")
        .agg(pl.col("start").min(), pl.col("end").max(), pl.col("operations").sum())
        .select(list(PROJECTED))
        .sort("device", "start", "end", "range", descending=[False, False, True, False])
    )
