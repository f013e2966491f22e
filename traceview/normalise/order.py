"""One order for all events: by (start, end), and by row where both are equal."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import blocks


def by_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame sorted by (start, end); rows equal in both keep their order."""
    order = order_by_time(frame["start"].to_numpy(), frame["end"].to_numpy())
    return frame if order is None else frame[order]


def order_by_time(start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.intp] | None:
    """Return the rows in order of (start, end), rows equal in both as they are; None where all are in order."""
    if _ordered(start, end):
        return None
    # Exports are nearly sorted, which the stable sort of one key is fast on; ties are rare.
    order = np.argsort(start, kind="stable")
    return order if _ordered(start[order], end[order]) else np.lexsort((end, start))


def _ordered(start: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
    for block in blocks(max(len(start) - 1, 0)):
        after = slice(block.start + 1, block.stop + 1)
        if (start[after] > start[block]).all():
            continue
        tie = start[after] == start[block]
        if not (tie | (start[after] > start[block])).all() or (end[after] < end[block])[tie].any():
            return False
    return True
