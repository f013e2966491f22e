"""One order for all events: by (start, end), and by row where both are equal."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import blocks


def by_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame sorted by (start, end); rows equal in both keep their order."""
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    if _ordered(start, end):
        return frame
    # Exports are nearly sorted, which the stable sort of one key is fast on; ties are rare.
    order = np.argsort(start, kind="stable")
    if not _ordered(start[order], end[order]):
        order = np.lexsort((end, start))
    return frame[order]


def _ordered(start: NDArray[np.int64], end: NDArray[np.int64]) -> bool:
    for block in blocks(max(len(start) - 1, 0)):
        after = slice(block.start + 1, block.stop + 1)
        if (start[after] > start[block]).all():
            continue
        tie = start[after] == start[block]
        if not (tie | (start[after] > start[block])).all() or (end[after] < end[block])[tie].any():
            return False
    return True
