"""Rows of several tables in one order: each column is made once, with every row at its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from traceview.normalise.order import order_by_time

Part = NDArray[Any] | int  # values of a table's rows, or the one that all of them have


@dataclass(frozen=True, slots=True)
class Together:
    """How many rows there are of all tables, and where the rows of each go."""

    rows: int
    places: tuple[slice | NDArray[np.intp], ...]

    @classmethod
    def by_time(cls, starts: Sequence[NDArray[np.int64]], ends: Sequence[NDArray[np.int64]]) -> Together:
        """Order rows by (start, end); rows equal in both stay in the order of the tables and of their rows."""
        edges = np.cumsum([0, *(len(one) for one in starts)]).tolist()
        own = tuple(slice(first, last) for first, last in pairwise(edges))
        order = order_by_time(np.concatenate(starts), np.concatenate(ends))
        if order is None:
            return cls(edges[-1], own)
        place = np.empty(len(order), np.intp)
        place[order] = np.arange(len(order))
        return cls(edges[-1], tuple(place[one] for one in own))

    def column(self, parts: Sequence[Part], kind: DTypeLike) -> NDArray[Any]:
        """Return one column of what each table has there."""
        common = next((part for part in parts if isinstance(part, int)), None)
        whole = np.empty(self.rows, kind) if common is None else np.full(self.rows, common, kind)
        for place, part in zip(self.places, parts, strict=True):
            if not (isinstance(part, int) and part == common):
                whole[place] = part
        return whole
