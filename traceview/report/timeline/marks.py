"""The marks of one row of the timeline, and how they are written into the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, blocks, is_sorted
from traceview.report.timeline.columns import Columns, Packed

LONGEST_NAME = 400
NEAR = 1024
Numbers = NDArray[np.integer]
Rows = Numbers | slice
ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Merge:
    """What is known of marks that stand for several events each.

    `count` events, `busy` ns in them all, `top` ns in the longest, whose name the mark has. `shares` has the
    ns of each class in `looks`, one column a class, or is empty where the row has one class alone.
    """

    count: Times
    busy: Times
    top: Times
    looks: Times
    shares: tuple[Times, ...] = ()

    def take(self, rows: Rows) -> Merge:
        """Return what is known of some of the marks."""
        count, busy, top, *shares = (column[rows] for column in (self.count, self.busy, self.top, *self.shares))
        return Merge(count, busy, top, self.looks, tuple(shares))


@dataclass(frozen=True, slots=True)
class Marks:
    """Columns of equal length: ns on the capture's clock, the name's number, the class's number.

    Numbers that are small come in few bytes, because a capture has millions of them. Starts ascend. `sums` are
    further columns that add up when marks are merged (bytes, ns of a cause); `details` hold for a single event
    alone (its correlation id).
    """

    start: Times
    end: Times
    name: Numbers
    look: Numbers
    sums: Mapping[str, Times] = field(default_factory=dict)
    details: Mapping[str, Numbers] = field(default_factory=dict)
    merge: Merge | None = None

    def __len__(self) -> int:
        return len(self.start)

    def take(self, rows: Rows) -> Marks:
        """Return some of the marks, in the order of `rows`; all of them, in order, as they are."""
        if isinstance(rows, slice) and rows == ALL:
            return self
        return Marks(
            self.start[rows],
            self.end[rows],
            self.name[rows],
            self.look[rows],
            {key: column[rows] for key, column in self.sums.items()},
            {key: column[rows] for key, column in self.details.items()},
            self.merge.take(rows) if self.merge is not None else None,
        )

    def without_zeros(self) -> Marks:
        """Return the marks without columns that say nothing."""
        return replace(
            self,
            sums={key: column for key, column in self.sums.items() if anything(column)},
            details={key: column for key, column in self.details.items() if anything(column)},
        )

    def write(self, columns: Columns, zero: int) -> dict[str, Packed | int]:
        """Put the columns into a buffer; return where each lies. Times count from `zero`."""
        length = self.end - self.start
        places: dict[str, Packed | int] = {
            "n": len(self),
            "start": columns.add_ascending(self.start - zero),
            "length": columns.add(length),
            "name": columns.add(self.name),
            "look": columns.add(self.look),
        }
        for key, column in self.sums.items():
            if anything(column):
                places[key] = columns.add(column)
        for key, detail in self.details.items():
            if anything(detail):
                places[key] = columns.add_steps(detail)
        if self.merge is not None:
            places["count"] = columns.add(self.merge.count - 1)
            places["busy"] = columns.add_signed(length - self.merge.busy)
        return places


def joined(parts: Sequence[Marks]) -> Marks:
    """Return merged marks of one row, part after part."""
    if len(parts) == 1:
        return parts[0]
    merges = [part.merge for part in parts if part.merge is not None]
    columns = zip(*((one.count, one.busy, one.top, *one.shares) for one in merges), strict=True)
    count, busy, top, *shares = (np.concatenate(column) for column in columns)
    return Marks(
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.end for part in parts]),
        np.concatenate([part.name for part in parts]),
        np.concatenate([part.look for part in parts]),
        {key: np.concatenate([part.sums[key] for part in parts]) for key in parts[0].sums},
        {key: np.concatenate([part.details[key] for part in parts]) for key in parts[0].details},
        Merge(count, busy, top, merges[0].looks, tuple(shares)),
    )


def anything(column: Numbers) -> bool:
    """Is anything not 0? Mostly something is, near the front."""
    return bool(column[:NEAR].any() or column.any())


def reach(end: Times) -> Times:
    """Return the latest end so far; where marks are disjoint that is each mark's own, and nothing is made."""
    return end if is_sorted(end) else np.maximum.accumulate(end)


def counted(numbers: Numbers, least: int = 0) -> Times:
    """Return how often each small number occurs, from 0 to the largest, or to `least` - 1 where that is more.

    Block by block, since NumPy counts numbers of 64 bits alone and copies all others first.
    """
    count = np.zeros(max(least, int(numbers.max()) + 1 if len(numbers) else 0), np.int64)
    for block in blocks(len(numbers)):
        count += np.bincount(numbers[block], minlength=len(count))
    return count


def used(numbers: Numbers) -> Times:
    """Return which small numbers there are, ascending."""
    if len(numbers) and (one := int(numbers.min())) == int(numbers.max()):
        return np.array([one], np.int64)
    return np.flatnonzero(counted(numbers))


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

    def column(self, names: pl.Series) -> NameColumn:
        """Give every name of a column of categories a number."""
        codes = names.to_physical().to_numpy()
        texts = _categories(names)
        lookup = np.zeros(max(len(texts), 1), np.int32)
        for code in np.flatnonzero(counted(codes)).tolist():
            lookup[code] = self.number(texts[code])
        return NameColumn(codes, lookup)


@dataclass(frozen=True, slots=True)
class NameColumn:
    """A column of categories, and the number of each category that it has."""

    codes: Numbers
    lookup: NDArray[np.int32]

    def numbers(self, rows: Rows = ALL) -> NDArray[np.int32]:
        """Return the numbers of the names of some rows."""
        numbers: NDArray[np.int32] = self.lookup[self.codes[rows]]
        return numbers


def _categories(names: pl.Series) -> list[str]:
    kind = names.dtype
    return kind.categories.to_list() if isinstance(kind, pl.Enum) else []
