"""GPU work whose launch the capture does not hold (METRICS.md, head; a capture may be a slice)."""

from __future__ import annotations

import polars as pl

from traceview.model.analysis import Unmatched
from traceview.model.trace import Trace


def count_unmatched(trace: Trace) -> Unmatched:
    """Count operations that should have a launch and have none; correlation id 0 never had one."""
    without = trace.operations.lazy().filter(pl.col("launch").is_null() & (pl.col("correlation") != 0))
    lost = without.select("source").collect()
    counts = dict(lost["source"].cast(pl.String).value_counts().iter_rows())
    return Unmatched(
        kernels=counts.get("kernel", 0),
        copies=counts.get("memcpy", 0),
        memsets=counts.get("memset", 0),
        graphs=counts.get("graph", 0),
    )
