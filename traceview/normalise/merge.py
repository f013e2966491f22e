"""Rows of several tables in one order: each column is made once, with every row at its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import DTypeLike, NDArray

from traceview.intervals import Times
from traceview.normalise.order import order_by_time

Part = NDArray[Any] | int  # values of a table's rows, or the one that all of them have


@dataclass(frozen=True, slots=True)
class Together:
    """The times of all tables' rows, in order, and where the rows of each table go."""

    start: Times
    end: Times
    places: tuple[slice | NDArray[np.intp], ...]

    @classmethod
    def by_time(cls, starts: Sequence[Times], ends: Sequence[Times]) -> Together:
        """Order rows by (start, end); rows equal in both stay in the order of the tables and of their rows."""
        edges = np.cumsum([0, *(len(one) for one in starts)]).tolist()
        own = tuple(slice(first, last) for first, last in pairwise(edges))
        rows, start, end = order_by_time(np.concatenate(starts), np.concatenate(ends))
        if rows is None:
            return cls(start, end, own)
        place = np.empty(len(rows), np.intp)
        place[rows] = np.arange(len(rows))
        return cls(start, end, tuple(place[one] for one in own))

    def whole(self, parts: Sequence[Part]) -> pl.Expr:
        """Return one column of whole numbers; where all rows have the same one, that stands for all."""
        first = parts[0]
        if isinstance(first, int) and all(isinstance(part, int) and part == first for part in parts):
            return pl.lit(first, pl.Int32)
        return pl.lit(pl.Series(self.column(parts, np.int32)))

    def column(self, parts: Sequence[Part], kind: DTypeLike) -> NDArray[Any]:
        """Return one column of what each table has there."""
        common = next((part for part in parts if isinstance(part, int)), None)
        whole = np.empty(len(self.start), kind) if common is None else np.full(len(self.start), common, kind)
        for place, part in zip(self.places, parts, strict=True):
            if not (isinstance(part, int) and part == common):
                whole[place] = part
        return whole
