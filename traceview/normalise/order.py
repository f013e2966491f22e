"""One order for all events: by (start, end), and by row where both are equal."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, blocks


class Order(NamedTuple):
    """Events in order: where each row of theirs was before, None where all were in order, and their times."""

    rows: NDArray[np.intp] | None
    start: Times
    end: Times


def by_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame sorted by (start, end); rows equal in both keep their order."""
    order = order_by_time(frame["start"].to_numpy(), frame["end"].to_numpy())
    return frame if order.rows is None else frame[order.rows]


def order_by_time(start: Times, end: Times) -> Order:
    """Return the order by (start, end); rows equal in both keep theirs."""
    if _ordered(start, end):
        return Order(None, start, end)
    # Exports are nearly sorted, which the stable sort of one key is fast on; ties are rare.
    rows = np.argsort(start, kind="stable")
    found = Order(rows, start[rows], end[rows])
    if _ordered(found.start, found.end):
        return found
    rows = np.lexsort((end, start))
    return Order(rows, start[rows], end[rows])


def _ordered(start: Times, end: Times) -> bool:
    for block in blocks(max(len(start) - 1, 0)):
        after = slice(block.start + 1, block.stop + 1)
        if (start[after] > start[block]).all():
            continue
        tie = start[after] == start[block]
        if not (tie | (start[after] > start[block])).all() or (end[after] < end[block])[tie].any():
            return False
    return True
