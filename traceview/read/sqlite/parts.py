"""Integer columns of a table as frames: of all rows, or of the rows in some of the table's parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from traceview.frozen import frozen
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


@frozen
class PartedTable:
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
        return replace(self, decoder=replace(self.decoder, columns=tuple(columns), grouped=()))

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
