"""The marks of a row of the timeline as columns, the names of all marks, and how a page stores columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import EMPTY, Intervals, Times, blocks, is_sorted

MAX_NAME_LENGTH = 400
NEAR = 1024
Numbers = NDArray[np.integer]
Rows = Numbers | slice
ALL = slice(None)


@dataclass(frozen=True, slots=True)
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

    @classmethod
    def from_events(cls, marks: Marks, looks: Times) -> Merge:
        """Return the columns of marks that stand for one event each."""
        length = marks.end - marks.start
        shares = (np.where(marks.look == look, length, 0) for look in looks) if len(looks) > 1 else ()
        return cls(np.ones(len(marks), np.int64), length, length, looks, tuple(shares))

    def take(self, rows: Rows) -> Merge:
        """Return the columns of some of the marks."""
        count, busy, top, *shares = (column[rows] for column in (self.count, self.busy, self.top, *self.shares))
        return Merge(count, busy, top, self.looks, tuple(shares))


@dataclass(frozen=True, slots=True)
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
    _derived: dict[str, Times] = field(default_factory=dict)

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

    @property
    def looks(self) -> Times:
        """The distinct looks, ascending."""
        return used(self.look) if self.merge is None else self.merge.looks

    def coarse(self, _shift: int) -> Marks:
        """Return the marks. Marks in a file have levels: this is the widest with bins of at most 2^shift ns."""
        return self

    def name_counts(self, names: int) -> Times:
        """Return how many marks each of `names` names has."""
        return counted(self.name, names)

    def pieces(self) -> Iterator[Marks]:
        """Yield all marks. Marks in a file come in several pieces."""
        yield self

    def between(self, start: int, end: int) -> Marks:
        """Return the marks that touch [start, end], in ns on the capture's clock."""
        if "reach" not in self._derived:
            self._derived["reach"] = reach(self.end)
        first = int(np.searchsorted(self._derived["reach"], start, side="left"))
        last = int(np.searchsorted(self.start, end, side="right"))
        return self.take(slice(first, max(first, last)))

    @property
    def name_count(self) -> int:
        """The number of distinct names."""
        return len(used(self.name))

    def pieces_between(self, start: int, end: int) -> Iterator[Marks]:
        """Yield the marks that touch [start, end]. Marks in a file come in several pieces."""
        yield self.between(start, end)

    def count_near(self, start: int, end: int) -> int:
        """Return the number of marks that `between` reads."""
        return int(np.searchsorted(self.start, end, "right") - np.searchsorted(self.start, start))

    def count_starting(self, start: int, end: int, _most: int) -> int:
        """Return how many marks start in [start, end); any number above `most` if there are more."""
        return int(np.searchsorted(self.start, end) - np.searchsorted(self.start, start))

    def near(self, _cover: Intervals, _correlations: Times) -> Iterator[Marks]:
        """Yield at least the marks that touch `cover` or have one of the ascending `correlations`, in pieces."""
        yield self

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
        # In order of their keys: a file's columns have another order than those in memory.
        for key, column in sorted(self.sums.items()):
            if has_nonzero(column):
                places[key] = columns.add(column)
        for key, detail in sorted(self.details.items()):
            if has_nonzero(detail):
                places[key] = columns.add_steps(detail)
        if self.merge is not None:
            places["count"] = columns.add(self.merge.count - 1)
            places["busy"] = columns.add_signed(length - self.merge.busy)
        return places


NO_MARKS = Marks(EMPTY.start, EMPTY.end, EMPTY.start, EMPTY.start)


def concatenated(parts: Sequence[Marks]) -> Marks:
    """Concatenate parts of a lane. All have the same columns; single events become merged marks beside merged marks."""
    if len(parts) == 1:
        return parts[0]
    looks = next((part.merge.looks for part in parts if part.merge is not None), None)
    merge = None
    if looks is not None:
        merges = [part.merge or Merge.from_events(part, looks) for part in parts]
        columns = zip(*((merge.count, merge.busy, merge.top, *merge.shares) for merge in merges), strict=True)
        count, busy, top, *shares = (np.concatenate(column) for column in columns)
        merge = Merge(count, busy, top, looks, tuple(shares))
    return Marks(
        np.concatenate([part.start for part in parts]),
        np.concatenate([part.end for part in parts]),
        np.concatenate([part.name for part in parts]),
        np.concatenate([part.look for part in parts]),
        {key: np.concatenate([part.sums[key] for part in parts]) for key in parts[0].sums},
        {key: np.concatenate([part.details[key] for part in parts]) for key in parts[0].details},
        merge,
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

    @classmethod
    def from_texts(cls, texts: Iterable[str]) -> Names:
        """Number names in alphabetical order, so that their numbers do not depend on the order of events."""
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

    def column(self, names: pl.Series) -> NameColumn:
        """Give a number to every name in a column of categories."""
        texts = _categories(names)
        lookup = np.zeros(max(len(texts), 1), np.int32)
        for code, text in _used_categories(names):
            lookup[code] = self.number(text)
        return NameColumn(names.to_physical().to_numpy(), lookup)


class NameColumn(NamedTuple):
    """A column of categories, and the name's number of each category."""

    codes: Numbers
    lookup: NDArray[np.int32]

    def numbers(self, rows: Rows = ALL) -> NDArray[np.int32]:
        """Return the numbers of the names of some rows."""
        numbers: NDArray[np.int32] = self.lookup[self.codes[rows]]
        return numbers


def used_texts(names: pl.Series) -> list[str]:
    """Return the distinct texts of a column of categories."""
    return [text for _, text in _used_categories(names)]


def _used_categories(names: pl.Series) -> Iterator[tuple[int, str]]:
    texts = _categories(names)
    return ((code, texts[code]) for code in np.flatnonzero(counted(names.to_physical().to_numpy())).tolist())


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_NAME_LENGTH else text[: MAX_NAME_LENGTH - 1] + "…"


def _categories(names: pl.Series) -> list[str]:
    kind = names.dtype
    return kind.categories.to_list() if isinstance(kind, pl.Enum) else []


Packed = list[int]  # [offset in bytes, bytes of each number]


@dataclass(slots=True)
class Columns:
    """A buffer of columns. Each column stores all lowest bytes, then all second bytes, and so on.

    Bytes of the same order are alike, so this layout packs smaller and faster than whole numbers.
    """

    _parts: list[bytes] = field(default_factory=list)
    size: int = 0

    def add(self, values: NDArray[np.integer]) -> Packed:
        """Append whole numbers from 0 to 2^53 with the bytes that the largest needs; return their place."""
        top = int(values.max()) if len(values) else 0
        count = max(1, -(-top.bit_length() // 8))
        place = self.size
        width = 1 << (count - 1).bit_length()
        bytes_of = np.ascontiguousarray(values, f"<u{width}").view(np.uint8).reshape(-1, width)
        self._parts.extend(bytes_of[:, order].tobytes() for order in range(count))
        self.size += len(values) * count
        return [place, count]

    def add_ascending(self, values: Times) -> Packed:
        """Append ascending numbers as differences, which pack better."""
        return self.add(np.diff(values, prepend=np.int64(0)))

    def add_steps(self, values: NDArray[np.integer]) -> Packed:
        """Append numbers in any order as signed differences."""
        return self.add_signed(np.diff(values, prepend=np.int64(0)))

    def add_signed(self, values: Times) -> Packed:
        """Append signed numbers in zigzag form: 0 -1 1 -2 2 become 0 1 2 3 4."""
        return self.add((values << 1) ^ (values >> 63))

    def raw(self) -> bytes:
        """Return the buffer."""
        return b"".join(self._parts)
