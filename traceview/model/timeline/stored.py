"""The marks of a lane in files: blocks of marks and levels of them, written by part and read as one lane."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache, reduce
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from traceview.intervals import Intervals, Times
from traceview.model.timeline.marks import Marks, Merge, Numbers, concatenated, counted, used
from traceview.model.timeline.merging import MAX_SHIFT, GroupCounts, merged

BLOCK_MARKS = 1 << 16
START, LENGTH, NAME, LOOK = "start", "length", "name", "look"
SUM, DETAIL, SHARE = "sum ", "detail ", "share "  # prefixes of columns
COUNT, BUSY, TOP = "count", "busy", "top"  # columns of merged marks
MIN_MERGED = 8  # marks of a level for each mark of the next wider one
MIN_LEVEL_MARKS = 1024  # the lane of a part with fewer marks gets no levels: readers read all its marks
ROW = "<u4"  # the type of the rows of large numbers
LARGE_BYTES = 12  # bytes of a large number with its row
NARROW = {"": 0, "|u1": 0xFF, "<u2": 0xFFFF}  # types that may leave out large numbers, and the largest that they hold
NO_ROWS = np.empty(0, np.int64)
LEVEL_STEP = 2  # doublings between the widths of levels


class BlockColumn(NamedTuple):
    """How a column of whole numbers is stored: each number less `least` as `kind`, an unsigned NumPy type.

    `large` numbers do not fit into it: their rows and they themselves follow. An empty `kind` holds zeros alone. With
    `first`, the differences between successive numbers are stored, and the first number is `first`.
    """

    name: str
    kind: str
    least: int
    large: int
    first: int | None

    def size(self, count: int) -> int:
        """Return the bytes of `count` numbers."""
        return count * _width(self.kind) + self.large * LARGE_BYTES

    def values(self, stored: bytes, offset: int, count: int) -> Times:
        """Return the numbers, which begin at `offset`."""
        values = np.zeros(count, np.int64)
        if self.kind:
            values[:] = np.frombuffer(stored, self.kind, count, offset)
        rows = offset + count * _width(self.kind)
        at = np.frombuffer(stored, ROW, self.large, rows)
        values[at] = np.frombuffer(stored, np.int64, self.large, rows + at.nbytes)
        values += self.least
        if self.first is not None:
            values[:1] = self.first
            np.cumsum(values, out=values)
        return values


def _width(kind: str) -> int:
    return np.dtype(kind).itemsize if kind else 0


def _stored(name: str, values: Numbers, differences: bool) -> tuple[BlockColumn, bytes]:
    """Return a column as it is stored, and its bytes."""
    first = None
    if differences:
        values = values.astype(np.int64)  # differences of unsigned numbers are not negative
        first, values = int(values[0]), np.diff(values, prepend=values[:1])
    least, most = int(values.min()), int(values.max())
    if least == most:
        return BlockColumn(name, "", least, 0, first), b""
    values = values - least
    kind, sizes = np.min_scalar_type(most - least), {}
    sizes[kind.str] = len(values) * kind.itemsize
    for narrow, limit in NARROW.items():
        if _width(narrow) < kind.itemsize:
            sizes[narrow] = len(values) * _width(narrow) + int(np.count_nonzero(values > limit)) * LARGE_BYTES
    chosen = min(sizes, key=sizes.__getitem__)
    large = np.flatnonzero(values > NARROW[chosen]) if chosen in NARROW and chosen != kind.str else NO_ROWS
    parts = [values.astype(chosen).tobytes()] if chosen else []
    parts += [large.astype(ROW).tobytes(), values[large].astype(np.int64).tobytes()]
    return BlockColumn(name, chosen, least, len(large), first), b"".join(parts)


@dataclass(frozen=True, slots=True)
class MarkBlock:
    """Marks of a lane that follow each other, in a file. `columns` are those that are not 0 everywhere."""

    count: int
    start: int  # start of the first mark
    end: int  # the latest
    correlations: tuple[int, int]  # the smallest and the largest
    looks: tuple[int, ...]
    names: tuple[int, ...]  # the part's numbers
    name_counts: tuple[int, ...]  # marks with each of these names
    columns: tuple[BlockColumn, ...]
    file: Path
    offset: int
    size: int

    def read(self) -> dict[str, Times]:
        """Return the columns."""
        with self.file.open("rb") as file:
            stored = os.pread(file.fileno(), self.size, self.offset)
        values, offset = {}, 0
        for column in self.columns:
            values[column.name] = column.values(stored, offset, self.count)
            offset += column.size(self.count)
        return values


class LanePart(NamedTuple):
    """The marks of a lane in one part: their blocks, those of their levels by shift, and how they merge.

    Levels equal those of the whole capture, except in the bins at the borders of the part.
    """

    blocks: Sequence[MarkBlock]
    levels: Mapping[int, Sequence[MarkBlock]]
    counts: GroupCounts

    def at_most(self, shift: int) -> Sequence[MarkBlock]:
        """Return the blocks of the widest level with bins of at most 2^shift ns; without one, those of all marks."""
        return self.levels[max(own)] if (own := [level for level in self.levels if level <= shift]) else self.blocks


def write_lane(marks: Marks, zero: int, file: BinaryIO, path: Path) -> LanePart:
    """Append the marks of a lane and their levels to a file. There must be a mark. Bins begin at `zero`."""
    counts = GroupCounts.from_marks(marks, zero)
    left, levels = counts.by_shift(), {}
    blocks, looks = write_blocks(marks, file, path), marks.looks
    for shift in range(0, MAX_SHIFT, LEVEL_STEP):
        if len(marks) < MIN_LEVEL_MARKS:
            break
        if left[shift] * MIN_MERGED <= len(marks):
            marks = merged(marks, zero, shift, looks)
            levels[shift] = write_blocks(marks, file, path)
    return LanePart(blocks, levels, counts)


def write_blocks(marks: Marks, file: BinaryIO, path: Path) -> list[MarkBlock]:
    """Append marks to a file."""
    rows = (slice(first, first + BLOCK_MARKS) for first in range(0, len(marks), BLOCK_MARKS))
    return [_write_block(marks.take(some).without_zeros(), file, path) for some in rows]


def _write_block(marks: Marks, file: BinaryIO, path: Path) -> MarkBlock:
    columns = {
        START: marks.start,
        LENGTH: marks.end - marks.start,
        NAME: marks.name,
        LOOK: marks.look,
        **{SUM + key: column for key, column in marks.sums.items()},
        **{DETAIL + key: column for key, column in marks.details.items()},
    }
    if (merge := marks.merge) is not None:
        columns |= {COUNT: merge.count, BUSY: merge.busy, TOP: merge.top}
        columns |= {f"{SHARE}{look}": share for look, share in zip(merge.looks, merge.shares, strict=False)}
    # Merged marks have no correlation id.
    steps = (START,) if merge else (START, DETAIL + "correlation")
    stored = [_stored(name, column, name in steps) for name, column in columns.items()]
    offset = file.tell()
    file.writelines(values for _, values in stored)
    name_counts = counted(marks.name)
    names = np.flatnonzero(name_counts)
    ids = marks.details.get("correlation", np.zeros(1, np.int64))
    return MarkBlock(
        len(marks),
        int(marks.start[0]),
        int(marks.end.max()),
        (int(ids.min()), int(ids.max())),
        tuple(used(marks.look).tolist()),
        tuple(names.tolist()),
        tuple(name_counts[names].tolist()),
        tuple(column for column, _ in stored),
        path,
        offset,
        file.tell() - offset,
    )


PIECE_BLOCKS = 8  # blocks that a pass over a lane has in memory
CACHED_BLOCKS = 8  # blocks of a lane that a request reads with the cache
MAX_CACHED_BLOCKS = 48  # blocks of all lanes, 200 MB


class PartBlocks(NamedTuple):
    """The part of a lane from one part, and the page's number of each of the part's names and kernel shapes."""

    part: LanePart
    names: Numbers
    shapes: Numbers


class StoredMarks:
    """All marks of a lane, or a level of them, in the order of time. Few of them are in memory at once."""

    def __init__(self, parts: Sequence[PartBlocks], shift: int = -1) -> None:
        """Collect the marks of parts, in bins of at most 2^shift ns (see LanePart.at_most)."""
        self._parts = parts
        every = [block for part in parts for block in part.part.blocks]
        blocks = [(block, part) for part in parts for block in part.part.at_most(shift)]
        self._blocks = blocks
        self._count = np.array([block.count for block, _ in blocks], np.int64)
        self._start = np.array([block.start for block, _ in blocks], np.int64)
        self._end = np.array([block.end for block, _ in blocks], np.int64)
        self._reach = np.maximum.accumulate(self._end)
        self._ids = np.array([block.correlations for block, _ in blocks], np.int64).reshape(-1, 2)
        columns = sorted({column.name for block in every for column in block.columns})
        self._sums = [name for name in columns if name.startswith(SUM)]
        self._details = [name for name in columns if name.startswith(DETAIL)]
        self.looks: Times = np.array(sorted({look for block in every for look in block.looks}), np.int64)
        self.coarse = cache(self._at_most)

    def __len__(self) -> int:
        return int(self._count.sum())

    def _at_most(self, shift: int) -> StoredMarks:
        """Return the level of each part with the widest bins of at most 2^shift ns.

        Marks of different parts are not merged.
        """
        return StoredMarks(self._parts, shift)

    @cached_property
    def counts(self) -> GroupCounts:
        """How many marks are left in bins of any width."""
        return reduce(GroupCounts.joined, (part.part.counts for part in self._parts))

    def name_counts(self, names: int) -> Times:
        """Return how many marks each of `names` names has."""
        counts = np.zeros(names, np.int64)
        for block, part in self._blocks:
            np.add.at(counts, part.names[list(block.names)], block.name_counts)
        return counts

    @property
    def details(self) -> Mapping[str, object]:
        """The names of the details that any mark has."""
        return {name.removeprefix(DETAIL): name for name in self._details}

    def pieces(self) -> Iterator[Marks]:
        """Yield all marks, some blocks at a time."""
        for first in range(0, len(self._blocks), PIECE_BLOCKS):
            yield concatenated([self.read(at) for at in range(first, min(first + PIECE_BLOCKS, len(self._blocks)))])

    def between(self, start: int, end: int) -> Marks:
        """Return the marks that touch [start, end]."""
        pieces = list(self.pieces_between(start, end))
        return concatenated(pieces) if pieces else self._load(0).take(slice(0, 0))

    def _touching(self, start: int, end: int) -> list[int]:
        """Return the blocks with marks that may touch [start, end]."""
        first, last = np.searchsorted(self._reach, start), np.searchsorted(self._start, end, "right")
        places: list[int] = (first + np.flatnonzero(self._end[first:last] >= start)).tolist()
        return places

    def pieces_between(self, start: int, end: int) -> Iterator[Marks]:
        """Yield the marks that touch [start, end], some blocks at a time."""
        at, read = self._touching(start, end), self.read
        if len(at) <= CACHED_BLOCKS:
            read = self._load
        for first in range(0, len(at), PIECE_BLOCKS):
            yield concatenated([read(place) for place in at[first : first + PIECE_BLOCKS]]).between(start, end)

    def count_near(self, start: int, end: int) -> int:
        """Return the number of marks that `between` reads."""
        return int(self._count[self._touching(start, end)].sum())

    def count_starting(self, start: int, end: int, most: int) -> int:
        """Return how many marks start in [start, end); any number above `most` if there are more."""
        first, last = np.searchsorted(self._start, (start, end)).tolist()
        if (inner := int(self._count[first : max(first, last - 1)].sum())) > most:
            return inner
        return self._starting_before(last, end) - self._starting_before(first, start)

    def _starting_before(self, place: int, moment: int) -> int:
        if place == 0:
            return 0
        return int(self._count[: place - 1].sum() + np.searchsorted(self._load(place - 1).start, moment))

    def near(self, cover: Intervals, correlations: Times) -> Iterator[Marks]:
        """Yield at least the marks that touch `cover` or have one of the ascending `correlations`, in pieces."""
        touches = np.searchsorted(cover.end, self._start) < np.searchsorted(cover.start, self._end, "right")
        low, high = self._ids.T
        has = np.searchsorted(correlations, low) < np.searchsorted(correlations, high, "right")
        yield from (self._load(int(place)) for place in np.flatnonzero(touches | has))

    def without_zeros(self) -> StoredMarks:
        """Return the marks; blocks have no columns of zeros."""
        return self

    def take(self, rows: slice) -> Marks:
        """Return the marks of a range of rows."""
        before = np.cumsum(self._count) - self._count
        first = max(0, int(np.searchsorted(before, rows.start, "right")) - 1)
        last = max(first + 1, int(np.searchsorted(before, rows.stop, "left")))
        some = concatenated([self._load(place) for place in range(first, last)])
        return some.take(slice(rows.start - int(before[first]), rows.stop - int(before[first])))

    @property
    def name_count(self) -> int:
        """The number of distinct names."""
        return len({name for block, part in self._blocks for name in part.names[list(block.names)].tolist()})

    def _load(self, place: int) -> Marks:
        return _cached_block(self, place)

    def read(self, place: int) -> Marks:
        """Return the marks of a block."""
        block, part = self._blocks[place]
        columns, zeros = block.read(), np.zeros(block.count, np.int64)
        if (shape := columns.get(DETAIL + "shape")) is not None:
            columns[DETAIL + "shape"] = part.shapes[shape].astype(np.int64)
        start = columns[START]
        return Marks(
            start,
            start + columns[LENGTH],
            part.names[columns[NAME]],
            columns[LOOK].astype(np.uint8),
            {name.removeprefix(SUM): columns.get(name, zeros) for name in self._sums},
            {name.removeprefix(DETAIL): columns.get(name, zeros) for name in self._details},
            self._merge(columns, block.looks) if COUNT in columns else None,
        )

    def _merge(self, columns: Mapping[str, Times], looks: tuple[int, ...]) -> Merge:
        """Return the columns of merged marks; `looks` are those of their block."""
        busy = columns[BUSY]
        # If all marks of a part have the same look, the file stores no shares: they equal the busy time.
        known = columns if any(name.startswith(SHARE) for name in columns) else {f"{SHARE}{looks[0]}": busy}
        wanted = self.looks.tolist() if len(self.looks) > 1 else ()
        shares = (known.get(f"{SHARE}{look}", np.zeros_like(busy)) for look in wanted)
        return Merge(columns[COUNT], busy, columns[TOP], self.looks, tuple(shares))


@lru_cache(MAX_CACHED_BLOCKS)
def _cached_block(marks: StoredMarks, place: int) -> Marks:
    return marks.read(place)


AllMarks = Marks | StoredMarks
