"""The marks of one row of the timeline, and how they are written into the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.report.html.columns import Columns, Packed

LONGEST_NAME = 400


@dataclass(frozen=True, slots=True)
class Marks:
    """Columns of equal length: ns on the capture's clock, the name's number, the class's number.

    Starts ascend. `sums` are further columns that add up when marks are merged (bytes, ns of a cause);
    `details` hold for a single event alone (its correlation id).
    """

    start: Times
    end: Times
    name: Times
    look: Times
    sums: Mapping[str, Times] = field(default_factory=dict)
    details: Mapping[str, Times] = field(default_factory=dict)
    count: Times | None = None  # events in each mark, where marks were merged
    busy: Times | None = None  # ns of those events

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Marks:
        """Return some of the marks, in the order of `rows`."""
        return Marks(
            self.start[rows],
            self.end[rows],
            self.name[rows],
            self.look[rows],
            {key: column[rows] for key, column in self.sums.items()},
            {key: column[rows] for key, column in self.details.items()},
        )

    def write(self, columns: Columns, zero: int) -> dict[str, Packed | int]:
        """Put the columns into the page's buffer; return where each lies. Times count from `zero`."""
        places: dict[str, Packed | int] = {
            "n": len(self.start),
            "start": columns.add_ascending(self.start - zero),
            "length": columns.add(self.end - self.start),
            "name": columns.add(self.name),
            "look": columns.add(self.look),
        }
        extra = {**self.sums, **self.details}
        if self.count is not None and self.busy is not None:
            extra.update(count=self.count, busy=self.busy)
        for key, column in extra.items():
            if column.any():
                places[key] = columns.add(column)
        return places


@dataclass(slots=True)
class Names:
    """Every name that the timeline shows, once."""

    texts: list[str] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Return the number of a name, new or known; an endless name is cut."""
        if len(text) > LONGEST_NAME:
            text = text[: LONGEST_NAME - 1] + "…"
        if text not in self._known:
            self._known[text] = len(self.texts)
            self.texts.append(text)
        return self._known[text]

    def numbers(self, names: pl.Series) -> Times:
        """Return the numbers of a column of categories."""
        codes = names.to_physical().to_numpy()
        texts = _categories(names)
        lookup: Times = np.zeros(max(len(texts), 1), np.int64)
        for code in np.unique(codes):
            lookup[code] = self.number(texts[code])
        numbers: Times = lookup[codes]
        return numbers


def _categories(names: pl.Series) -> list[str]:
    kind = names.dtype
    return kind.categories.to_list() if isinstance(kind, pl.Enum) else []
