"""The marks of a row of the timeline as columns, and the names of all marks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.frozen import frozen
from traceview.intervals import Times, blocks, is_sorted
from traceview.report.timeline.columns import Columns, Packed

MAX_NAME_LENGTH = 400
NEAR = 1024
Numbers = NDArray[np.integer]
Rows = Numbers | slice
ALL = slice(None)


@frozen
class Merge:
    """Columns of marks that stand for several events each.

    `count` is the number of events, `busy` their total ns and `top` the ns of the longest, which names the mark.
    `shares` has one column of ns per class in `looks`; it is empty where the row has one class.
    """

    count: Times
    busy: Times
    top: Times
    looks: Times
    shares: tuple[Times, ...] = ()

    def take(self, rows: Rows) -> Merge:
        """Return the columns of some of the marks."""
        count, busy, top, *shares = (column[rows] for column in (self.count, self.busy, self.top, *self.shares))
        return Merge(count, busy, top, self.looks, tuple(shares))


@frozen
class Marks:
    """Columns of equal length: ns on the capture's clock, the name's number, the class's number.

    Small numbers have small types, because a capture has millions of marks. Starts ascend. Columns in `sums` add up
    when marks are merged (bytes, ns of a cause). Columns in `details` apply to single events (correlation id).
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
        """Return some of the marks, in the order of `rows`."""
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
        """Return the marks without columns of zeros."""
        return replace(
            self,
            sums={key: column for key, column in self.sums.items() if has_nonzero(column)},
            details={key: column for key, column in self.details.items() if has_nonzero(column)},
        )

    def write(self, columns: Columns, zero: int) -> dict[str, Packed | int]:
        """Write the columns to a buffer; return their places. Times count from `zero`."""
        length = self.end - self.start
        places: dict[str, Packed | int] = {
            "n": len(self),
            "start": columns.add_ascending(self.start - zero),
            "length": columns.add(length),
            "name": columns.add(self.name),
            "look": columns.add(self.look),
        }
        for key, column in self.sums.items():
            if has_nonzero(column):
                places[key] = columns.add(column)
        for key, detail in self.details.items():
            if has_nonzero(detail):
                places[key] = columns.add_steps(detail)
        if self.merge is not None:
            places["count"] = columns.add(self.merge.count - 1)
            places["busy"] = columns.add_signed(length - self.merge.busy)
        return places


def joined(parts: Sequence[Marks]) -> Marks:
    """Concatenate parts of one row's merged marks."""
    if len(parts) == 1:
        return parts[0]
    merges = [part.merge for part in parts if part.merge is not None]
    columns = zip(*((merge.count, merge.busy, merge.top, *merge.shares) for merge in merges), strict=True)
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


def has_nonzero(column: Numbers) -> bool:
    """Return whether any number is not 0. The first numbers usually decide."""
    return bool(column[:NEAR].any() or column.any())


def reach(end: Times) -> Times:
    """Return the latest end up to each mark; ascending ends are returned unchanged."""
    return end if is_sorted(end) else np.maximum.accumulate(end)


def counted(numbers: Numbers, least: int = 0) -> Times:
    """Return how often each number from 0 occurs, for at least `least` numbers.

    The function counts block by block, because np.bincount copies other types to 64 bits first.
    """
    count = np.zeros(max(least, int(numbers.max()) + 1 if len(numbers) else 0), np.int64)
    for block in blocks(len(numbers)):
        count += np.bincount(numbers[block], minlength=len(count))
    return count


def used(numbers: Numbers) -> Times:
    """Return the distinct small numbers, ascending."""
    if len(numbers) and (number := int(numbers.min())) == int(numbers.max()):
        return np.array([number], np.int64)
    return np.flatnonzero(counted(numbers))


@dataclass(slots=True)
class Names:
    """The names of the timeline, each with a number."""

    texts: list[str] = field(default_factory=list)
    _known: dict[str, int] = field(default_factory=dict)

    def number(self, text: str) -> int:
        """Return the number of a name; a name above MAX_NAME_LENGTH is cut."""
        if len(text) > MAX_NAME_LENGTH:
            text = text[: MAX_NAME_LENGTH - 1] + "…"
        if text not in self._known:
            self._known[text] = len(self.texts)
            self.texts.append(text)
        return self._known[text]

    def column(self, names: pl.Series) -> NameColumn:
        """Give a number to every name in a column of categories."""
        codes = names.to_physical().to_numpy()
        texts = _categories(names)
        lookup = np.zeros(max(len(texts), 1), np.int32)
        for code in np.flatnonzero(counted(codes)).tolist():
            lookup[code] = self.number(texts[code])
        return NameColumn(codes, lookup)


@frozen
class NameColumn:
    """A column of categories, and the name's number of each category."""

    codes: Numbers
    lookup: NDArray[np.int32]

    def numbers(self, rows: Rows = ALL) -> NDArray[np.int32]:
        """Return the numbers of the names of some rows."""
        numbers: NDArray[np.int32] = self.lookup[self.codes[rows]]
        return numbers


def _categories(names: pl.Series) -> list[str]:
    kind = names.dtype
    return kind.categories.to_list() if isinstance(kind, pl.Enum) else []
