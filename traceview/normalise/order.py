"""The order of all events: by (start, end), then by row. Merges the rows of several tables in this order."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import DTypeLike, NDArray

from traceview.intervals import Times, blocks

Part = NDArray[Any] | int  # the values of a table's rows, or the value of all its rows


class TimeOrder(NamedTuple):
    """Sorted times, and the row that each had before; `rows` is None if they were already sorted."""

    rows: NDArray[np.intp] | None
    start: Times
    end: Times


def sort_by_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame sorted by (start, end); rows equal in both keep their order."""
    order = time_order(frame["start"].to_numpy(), frame["end"].to_numpy())
    return frame if order.rows is None else frame[order.rows]


def time_order(start: Times, end: Times) -> TimeOrder:
    """Return the order by (start, end); rows equal in both keep their order."""
    if _is_sorted(start, end):
        return TimeOrder(None, start, end)
    # Exports are nearly sorted and ties are rare: a stable sort by start alone is fast and usually enough.
    rows = np.argsort(start, kind="stable")
    order = TimeOrder(rows, start[rows], end[rows])
    if _is_sorted(order.start, order.end):
        return order
    rows = np.lexsort((end, start))
    return TimeOrder(rows, start[rows], end[rows])


def _is_sorted(start: Times, end: Times) -> bool:
    for block in blocks(max(len(start) - 1, 0)):
        after = slice(block.start + 1, block.stop + 1)
        if (start[after] > start[block]).all():
            continue
        tie = start[after] == start[block]
        if not (tie | (start[after] > start[block])).all() or (end[after] < end[block])[tie].any():
            return False
    return True


class MergedEvents(NamedTuple):
    """The sorted times of several tables' rows; `places` are the new rows of each table's rows."""

    start: Times
    end: Times
    places: tuple[slice | NDArray[np.intp], ...]

    @classmethod
    def by_time(cls, starts: Sequence[Times], ends: Sequence[Times]) -> MergedEvents:
        """Sort rows by (start, end); rows equal in both keep the order of the tables and of their rows."""
        edges = np.cumsum([0, *(len(times) for times in starts)]).tolist()
        own = tuple(slice(first, last) for first, last in pairwise(edges))
        rows, start, end = time_order(np.concatenate(starts), np.concatenate(ends))
        if rows is None:
            return cls(start, end, own)
        place = np.empty(len(rows), np.intp)
        place[rows] = np.arange(len(rows))
        return cls(start, end, tuple(place[part] for part in own))

    def int32_column(self, parts: Sequence[Part]) -> pl.Expr:
        """Return one column of integers from those of each table; a literal if all rows have the same value."""
        first = parts[0]
        if isinstance(first, int) and all(isinstance(part, int) and part == first for part in parts):
            return pl.lit(first, pl.Int32)
        return pl.lit(pl.Series(self.array(parts, np.int32)))

    def array(self, parts: Sequence[Part], kind: DTypeLike) -> NDArray[Any]:
        """Return one array from the values of each table."""
        common = next((part for part in parts if isinstance(part, int)), None)
        out = np.empty(len(self.start), kind) if common is None else np.full(len(self.start), common, kind)
        for place, part in zip(self.places, parts, strict=True):
            if not (isinstance(part, int) and part == common):
                out[place] = part
        return out
