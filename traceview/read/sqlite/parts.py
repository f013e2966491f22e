"""Integer columns of a table as frames: of all rows, or of the rows in some of the table's parts.

`store_parts` writes a compact copy of the rows, for a file that is read several times and does not fit into memory. It
stores each column as the differences between its rows, in the narrowest type.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, distinct_rows
from traceview.read.raw import SHAPE
from traceview.read.sqlite_pages import ALL_ROWS, IntegerColumn, RowIds, TableDecoder

PAGES_PER_PART = 256


class DecodedFrames(NamedTuple):
    """A table's integer columns, nulls kept. The column SHAPE, if there is one, has each row's row in `groups`."""

    columns: pl.DataFrame
    groups: pl.DataFrame | None


def decoded_frames(decoder: TableDecoder, rows: RowIds = ALL_ROWS) -> DecodedFrames | None:
    """Return a table's integer columns; None if SQLite must read them."""
    decoded = decoder.decode(rows)
    if decoded is None:
        return None
    frame = pl.DataFrame([_series(name, column) for name, column in decoded.columns.items()])
    if not decoded.groups:
        return DecodedFrames(frame, None)
    groups = pl.DataFrame([_series(name, column) for name, column in decoded.groups.items()])
    return DecodedFrames(frame.with_columns(pl.Series(SHAPE, decoded.group_rows)), groups)


def _series(name: str, column: IntegerColumn) -> pl.Series:
    series = pl.Series(name, column.values)
    return series if column.null is None or not column.null.any() else series.set(pl.Series(column.null), None)


class PartedTable(NamedTuple):
    """A table that is read in parts: adjoining ranges of row ids, each on the same number of pages."""

    decoder: TableDecoder
    parts: tuple[RowIds, ...]

    @classmethod
    def build(cls, decoder: TableDecoder, pages_per_part: int) -> PartedTable | None:
        """Find the parts of a table; None if SQLite must read it."""
        parts = decoder.row_ranges(pages_per_part)
        return None if parts is None else cls(decoder, tuple(parts))

    def with_columns(self, columns: Sequence[str]) -> PartedTable:
        """Return the table with only these of its columns."""
        return self._replace(decoder=self.decoder._replace(columns=tuple(columns), grouped=()))

    def no_rows(self, *, grouped: bool = True) -> pl.DataFrame:
        """Return a frame without rows, and with the table's columns: as in the table, or as `read` returns them."""
        shapes = self.decoder.grouped if grouped else (SHAPE,) * bool(self.decoder.grouped)
        return pl.DataFrame(schema=dict.fromkeys((*self.decoder.columns, *shapes), pl.Int64))

    def read(self, first: int, stop: int) -> DecodedFrames:
        """Read the parts from `first` to before `stop`. Raises PartError if a page differs from what build saw."""
        frames = decoded_frames(self.decoder, RowIds(self.parts[first].after, self.parts[stop - 1].last))
        if frames is None:
            raise PartError
        return frames


class PartError(Exception):
    """SQLite must read this table, which cannot be read in parts."""


LIMITS = {kind: np.iinfo(kind) for kind in ("i1", "i2", "i4")}


class StoredColumn(NamedTuple):
    """A part of a column: the type of the differences between its rows, None if they are all 0, and its first value."""

    kind: str | None
    first: int
    has_nulls: bool


class StoredPart(NamedTuple):
    """A part: its file and offset there, its number of rows, and its columns. `group` is the number of its StoredGroup.

    A column with nulls has a byte for each row, 1 for null, and 0 in place of nulls. The differences follow.
    """

    file: str
    offset: int
    rows: int
    columns: tuple[StoredColumn, ...]
    group: int = 0


class StoredTable(NamedTuple):
    """A table whose parts were copied to `folder`; it is read as a PartedTable is.

    `groups` are those of all parts, each once, and `group_rows` has their rows for each StoredGroup.
    """

    folder: Path
    columns: tuple[str, ...]
    parts: tuple[StoredPart, ...]
    groups: pl.DataFrame | None
    group_rows: tuple[Times, ...]

    @classmethod
    def join(cls, folder: Path, table: PartedTable, stored: Sequence[StoredGroup]) -> StoredTable:
        """Return the table of StoredGroups that follow each other."""
        parts = [part._replace(group=number) for number, group in enumerate(stored) for part in group.parts]
        columns = tuple(table.no_rows(grouped=False).columns)
        frames = [group.groups for group in stored if group.groups is not None]
        if not frames:
            return cls(folder, columns, tuple(parts), None, ())
        distinct, rows = distinct_rows(frames)
        return cls(folder, columns, tuple(parts), distinct, tuple(rows))

    def no_rows(self) -> pl.DataFrame:
        """Return a frame with the table's columns and without rows."""
        return pl.DataFrame(schema=dict.fromkeys(self.columns, pl.Int64))

    def read(self, first: int, stop: int) -> DecodedFrames:
        """Read the parts from `first` to before `stop`."""
        parts = self.parts[first:stop]
        edges = np.cumsum([0, *(part.rows for part in parts)]).tolist()
        values = {name: np.empty(edges[-1], np.int64) for name in self.columns}
        nulls: dict[str, NDArray[np.bool_]] = {}
        for file, adjoining in itertools.groupby(zip(parts, edges, strict=False), key=lambda part: part[0].file):
            with (self.folder / file).open("rb", buffering=0) as content:
                for part, begin in adjoining:
                    rows = slice(begin, begin + part.rows)
                    content.seek(part.offset)
                    for name, column in zip(self.columns, part.columns, strict=True):
                        if column.has_nulls:
                            null = nulls.setdefault(name, np.zeros(edges[-1], np.bool_))
                            null[rows] = np.fromfile(content, np.bool_, part.rows)
                        own = values[name][rows]
                        if column.kind is None:
                            own[:] = column.first
                        else:
                            np.cumsum(np.fromfile(content, column.kind, part.rows), out=own)
                            own += column.first
                        if name == SHAPE:
                            own[:] = self.group_rows[part.group][own]
        frame = pl.DataFrame(values)
        missing = [frame[name].set(pl.Series(null), None) for name, null in nulls.items()]
        return DecodedFrames(frame.with_columns(missing), self.groups)


class StoredGroup(NamedTuple):
    """Adjoining parts, and the groups that their column SHAPE refers to."""

    parts: list[StoredPart]
    groups: pl.DataFrame | None


def store_parts(path: Path, frames: DecodedFrames, edges: Times) -> StoredGroup:
    """Write adjoining parts to a new file; part i begins at row `edges[i]`."""
    rows = [slice(*pair) for pair in pairwise([*edges.tolist(), len(frames.columns)])]
    columns = [list(_packed_parts(column, rows)) for column in frames.columns]
    parts: list[StoredPart] = []
    with path.open("wb", buffering=0) as file:
        for own, packed in zip(rows, zip(*columns, strict=True), strict=True):
            stored, content = zip(*packed, strict=True)
            parts.append(StoredPart(path.name, file.tell(), own.stop - own.start, stored))
            file.write(b"".join(content))
    return StoredGroup(parts, frames.groups)


def _packed_parts(column: pl.Series, parts: Sequence[slice]) -> Iterator[tuple[StoredColumn, bytes]]:
    """Yield how each part of a column is stored, and its bytes."""
    nulls = column.is_null().to_numpy() if column.null_count() else None
    values = (column if nulls is None else column.fill_null(0)).to_numpy()
    steps = np.zeros_like(values)
    np.subtract(values[1:], values[:-1], out=steps[1:])
    for rows in parts:
        own, mask = steps[rows], b"" if nulls is None else nulls[rows].tobytes()
        own[:1] = 0
        low, high = own.min(initial=0), own.max(initial=0)
        kind = next((kind for kind, range_ in LIMITS.items() if range_.min <= low and high <= range_.max), "i8")
        first = int(values[rows.start]) if len(own) else 0
        if low == high:
            yield StoredColumn(None, first, nulls is not None), mask
        else:
            yield StoredColumn(kind, first, nulls is not None), mask + own.astype(kind).tobytes()
