"""The marks of a lane of the timeline as columns, and the names of all marks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import EMPTY, Times, blocks
from traceview.model.frozen import dataclass
from traceview.model.trace import enum_texts
from traceview.report.columns import Columns, Packed

MAX_NAME_LENGTH = 400
NEAR = 1024
Numbers = NDArray[np.integer]
Rows = Numbers | slice
ALL = slice(None)


@dataclass(frozen=True, slots=True)
class Merge:
    """Columns of marks that stand for several events each.

    `count` is the number of events, `busy` their total ns and `top` the ns of the longest, which names the mark.
    `shares` has one column of ns per class in `looks`; it is empty where the lane has one class.
    """

    looks: Times
    count: Times
    busy: Times
    top: Times
    shares: tuple[Times, ...] = ()


@dataclass(frozen=True)
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

    def columns(self) -> list[NDArray[Any]]:
        """Return all columns, in the order of the attributes."""
        merge = self.merge
        more = () if merge is None else (merge.count, merge.busy, merge.top, *merge.shares)
        return [self.start, self.end, self.name, self.look, *self.sums.values(), *self.details.values(), *more]

    def with_columns(self, columns: Iterable[NDArray[Any]]) -> Marks:
        """Return marks of the same kind with other columns, in the order of `columns()`."""
        values = iter(columns)
        start, end, name, look = islice(values, 4)
        sums, details = (dict(zip(known, values, strict=False)) for known in (self.sums, self.details))
        if self.merge is None:
            return Marks(start, end, name, look, sums, details)
        count, busy, top, *shares = values
        return Marks(start, end, name, look, sums, details, Merge(self.merge.looks, count, busy, top, tuple(shares)))

    def take(self, rows: Rows) -> Marks:
        """Return some of the marks, in the order of `rows`."""
        return self.with_columns(column[rows] for column in self.columns())

    @cached_property
    def looks(self) -> Times:
        """The distinct looks of the events, ascending."""
        return used(self.look) if self.merge is None else self.merge.looks

    @cached_property
    def name_counts(self) -> Times:
        """How many marks have each name, by the name's number."""
        return counted(self.name)

    def without_zeros(self) -> Marks:
        """Return the marks without columns of zeros."""
        sums = {key: column for key, column in self.sums.items() if has_nonzero(column)}
        details = {key: column for key, column in self.details.items() if has_nonzero(column)}
        return replace(self, sums=sums, details=details)

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
        marks = self.without_zeros()
        places |= {key: columns.add(column) for key, column in sorted(marks.sums.items())}
        places |= {key: columns.add_steps(column) for key, column in sorted(marks.details.items())}
        if self.merge is not None:
            places["count"] = columns.add(self.merge.count - 1)
            places["busy"] = columns.add_signed(length - self.merge.busy)
        return places


NO_MARKS = Marks(EMPTY.start, EMPTY.end, EMPTY.start, EMPTY.start)


def concatenated(pieces: Sequence[Marks]) -> Marks:
    """Return the marks of several pieces of a lane, which have the same columns."""
    if len(pieces) == 1:
        return pieces[0]
    return pieces[0].with_columns(map(np.concatenate, zip(*(piece.columns() for piece in pieces), strict=True)))


def has_nonzero(column: Numbers) -> bool:
    """Return whether any number is not 0. The first numbers usually decide."""
    return bool(column[:NEAR].any() or column.any())


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

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Names:
        """Number names in alphabetical order."""
        names = cls()
        for text in sorted(set(map(_shortened, texts))):
            names.number(text)
        return names

    def number(self, text: str) -> int:
        """Return the number of a name; a name above MAX_NAME_LENGTH is cut."""
        text = _shortened(text)
        if text not in self._known:
            self._known[text] = len(self.texts)
            self.texts.append(text)
        return self._known[text]

    def numbers(self, names: pl.Series) -> NDArray[np.int32]:
        """Return the number of each name in a column of categories."""
        codes, lookup = names.to_physical().to_numpy(), np.zeros(len(enum_texts(names)), np.int32)
        lookup[used(codes)] = [self.number(text) for text in used_texts(names)]
        numbers: NDArray[np.int32] = lookup[codes]
        return numbers


def used_texts(names: pl.Series) -> list[str]:
    """Return the distinct texts of a column of categories, in the order of their codes."""
    return enum_texts(names).gather(used(names.to_physical().to_numpy())).to_list()


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_NAME_LENGTH else text[: MAX_NAME_LENGTH - 1] + "…"
