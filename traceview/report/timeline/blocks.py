"""The marks of a lane of one slice in a file: blocks of marks, and levels of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from traceview.intervals import Times
from traceview.report.timeline.marks import Marks, Numbers, counted, used
from traceview.report.timeline.merging import MAX_SHIFT, GroupCounts, merged

BLOCK_MARKS = 1 << 16
START, LENGTH, NAME, LOOK = "start", "length", "name", "look"
SUM, DETAIL, SHARE = "sum ", "detail ", "share "  # prefixes of columns
COUNT, BUSY, TOP = "count", "busy", "top"  # columns of merged marks
MIN_MERGED = 8  # marks of a level for each mark of the next wider one
MIN_LEVEL_MARKS = 1024  # the lane of a slice with fewer marks gets no levels: readers read all its marks
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
    names: tuple[int, ...]  # the slice's numbers
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


@dataclass(frozen=True, slots=True)
class LanePart:
    """The marks of a lane in one slice: their blocks, those of their levels by shift, and how they merge.

    Levels equal those of the whole capture, except in the bins at the borders of the slice.
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
