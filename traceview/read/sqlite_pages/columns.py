"""Decoded integer columns of a table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview.read.sqlite_pages.pages import Numbers

Item = TypeVar("Item", bound=np.generic)


@dataclass(slots=True)
class IntegerColumn:
    """A decoded integer column; `null` marks its nulls, and is None while there are none."""

    values: Numbers
    null: NDArray[np.bool_] | None = None

    def null_flags(self) -> NDArray[np.bool_]:
        """Return the writable null marks, created on first use."""
        if self.null is None:
            self.null = np.zeros(len(self.values), np.bool_)
        return self.null

    def join_parts(self, parts: list[slice]) -> IntegerColumn:
        """Return ascending parts of the column as one column."""
        null = None if self.null is None else _join_parts(self.null, parts)
        return IntegerColumn(_join_parts(self.values, parts), null)


def _join_parts(values: NDArray[Item], parts: list[slice]) -> NDArray[Item]:
    return values[parts[0]] if len(parts) == 1 else np.concatenate([values[part] for part in parts])


@dataclass(slots=True)
class RowGroups:
    """Columns with few different rows, which are decoded once for each chunk of records that holds them.

    `places` are the columns. `rows` has for each record its row in the columns `values`, of which there are `count`.
    """

    places: tuple[int, ...]
    rows: Numbers
    values: list[dict[int, IntegerColumn]] = field(default_factory=list)
    count: int = 0

    def add(self, values: dict[int, IntegerColumn], group: Numbers, rows: slice) -> None:
        """Add the different rows of a chunk; `group` has for each of its records, in `rows`, the row in `values`."""
        self.rows[rows] = group
        self.rows[rows] += self.count
        self.values.append(values)
        self.count += len(next(iter(values.values())).values)

    def column(self, place: int) -> IntegerColumn:
        """Return one of the columns, over all chunks."""
        parts = [values[place] for values in self.values]
        null = np.concatenate([part.null_flags() for part in parts]) if any(p.null is not None for p in parts) else None
        return IntegerColumn(np.concatenate([part.values for part in parts]), null)
