"""One order for all events: by (start, end), and by row where both are equal."""

from __future__ import annotations

import numpy as np
import polars as pl


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


def _ordered(start: np.typing.NDArray[np.int64], end: np.typing.NDArray[np.int64]) -> bool:
    later = start[1:] > start[:-1]
    return bool((later | ((start[1:] == start[:-1]) & (end[1:] >= end[:-1]))).all())
