"""The rows of a table in a compact copy, for a file that is read several times and does not fit into memory.

Each column is stored as the differences between its rows, in the narrowest type, and compressed. A copy takes about a
fifth of the space of the table in the file, and half the time to read.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.frozen import frozen
from traceview.intervals import Times
from traceview.read.raw import SHAPE
from traceview.read.sqlite.parts import DecodedFrames, PartedTable

NARROW = (np.int8, np.int16, np.int32)


class StoredPart(NamedTuple):
    """Where a part is: its file, offset and size there; its number of rows, and the first value of each column.

    `group` is the number of its StoredGroup.
    """

    file: str
    offset: int
    size: int
    rows: int
    first: tuple[int | None, ...]
    group: int = 0


@frozen
class StoredTable:
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
        every = pl.concat(frames)
        distinct = every.unique(maintain_order=True)
        rows = every.join(distinct.with_row_index("row"), on=every.columns, nulls_equal=True, maintain_order="left")
        edges = np.cumsum([len(frame) for frame in frames])[:-1]
        return cls(
            folder, columns, tuple(parts), distinct, tuple(np.split(rows["row"].cast(pl.Int64).to_numpy(), edges))
        )

    def no_rows(self) -> pl.DataFrame:
        """Return a frame with the table's columns and without rows."""
        return pl.DataFrame(schema=dict.fromkeys(self.columns, pl.Int64))

    def read(self, first: int, stop: int) -> DecodedFrames:
        """Read the parts from `first` to before `stop`."""
        parts = self.parts[first:stop]
        edges = np.cumsum([0, *(part.rows for part in parts)]).tolist()
        values = {name: np.empty(edges[-1], np.int64) for name in self.columns}
        nulls: dict[str, list[tuple[int, pl.Series]]] = {}
        for part, begin, end in zip(parts, edges, edges[1:], strict=False):
            with (self.folder / part.file).open("rb", buffering=0) as file:
                file.seek(part.offset)
                stored = pl.read_ipc(io.BytesIO(file.read(part.size)))
            for column, start in zip(stored, part.first, strict=True):
                if start is None:
                    nulls.setdefault(column.name, []).append((begin, column))
                else:
                    own = values[column.name][begin:end]
                    np.cumsum(column.to_numpy(), out=own)
                    own += start
                    if column.name == SHAPE:
                        own[:] = self.group_rows[part.group][own]
        frame = pl.DataFrame(values)
        for name, placed in nulls.items():
            frame = frame.with_columns(_with_nulls(frame[name], placed))
        return DecodedFrames(frame, self.groups)


def _with_nulls(column: pl.Series, placed: Sequence[tuple[int, pl.Series]]) -> pl.Series:
    """Return a column with the values and nulls of some of its parts, which begin at these rows."""
    pieces, done = [], 0
    for begin, values in placed:
        pieces += [column[done:begin], values.cast(pl.Int64)]
        done = begin + len(values)
    return pl.concat([*pieces, column[done:]]).alias(column.name)


class StoredGroup(NamedTuple):
    """Adjoining parts, and the groups that their column SHAPE refers to."""

    parts: list[StoredPart]
    groups: pl.DataFrame | None


def store_parts(path: Path, frames: DecodedFrames, edges: Times) -> StoredGroup:
    """Write adjoining parts to a new file; part i begins at row `edges[i]`."""
    parts: list[StoredPart] = []
    offset, ends = 0, [*edges[1:].tolist(), len(frames.columns)]
    with path.open("wb", buffering=0) as file:
        for begin, end in zip(edges.tolist(), ends, strict=True):
            columns, first = zip(*(_differences(column) for column in frames.columns[begin:end]), strict=True)
            packed = io.BytesIO()
            pl.DataFrame(columns).write_ipc(packed, compression="lz4")
            size = file.write(packed.getbuffer())
            parts.append(StoredPart(path.name, offset, size, end - begin, first))
            offset += size
    return StoredGroup(parts, frames.groups)


def _differences(column: pl.Series) -> tuple[pl.Series, int | None]:
    """Return the differences between rows and the first value; the column itself and None if it has nulls."""
    if column.null_count() or column.is_empty():
        return column, None
    values = column.to_numpy()
    steps: NDArray[np.int64] = np.diff(values, prepend=values[:1])
    low, high = steps.min(), steps.max()
    narrow = next((kind for kind in NARROW if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max), np.int64)
    return pl.Series(column.name, steps.astype(narrow)), int(values[0])
