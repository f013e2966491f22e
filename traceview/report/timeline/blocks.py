"""The marks of a lane of one slice in a file: blocks of marks, and levels of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import polars as pl

from traceview.frozen import frozen
from traceview.report.timeline.marks import Marks, counted, used
from traceview.report.timeline.merging import MAX_SHIFT, GroupCounts, merged

BLOCK_MARKS = 1 << 16
SUM, DETAIL, SHARE = "sum ", "detail ", "share "  # prefixes of columns
COUNT, BUSY, TOP = "count", "busy", "top"  # columns of merged marks
MIN_MERGED = 4  # marks of a level for each mark of the next wider one
MIN_LEVEL_MARKS = 1024  # a slice with fewer has no level: they are read as they are
LEVEL_STEP = 2  # doublings between the widths of levels


@frozen
class MarkBlock:
    """Marks of a lane that follow each other, in a file. `columns` are those that are not 0 everywhere."""

    count: int
    start: int  # start of the first mark
    end: int  # the latest
    correlations: tuple[int, int]  # the smallest and the largest
    looks: tuple[int, ...]
    names: tuple[int, ...]  # the slice's numbers
    name_counts: tuple[int, ...]  # marks with each of these names
    columns: tuple[str, ...]
    file: Path
    offset: int
    size: int


@frozen
class LanePart:
    """The marks of a lane in one slice: their blocks, those of their levels by shift, and how they merge.

    Levels are those of the whole capture, but for the bins at the slice's borders.
    """

    blocks: Sequence[MarkBlock]
    levels: Mapping[int, Sequence[MarkBlock]]
    counts: GroupCounts

    def at_most(self, shift: int) -> Sequence[MarkBlock]:
        """Return the blocks of the level with the widest bins of at most 2^shift ns; those of all marks if none is."""
        return self.levels[max(own)] if (own := [level for level in self.levels if level <= shift]) else self.blocks


def write_lane(marks: Marks, zero: int, file: BinaryIO, path: Path) -> LanePart:
    """Append the marks of a lane, of which there is at least one, to a file, and their levels in bins from `zero`."""
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
        "start": np.diff(marks.start, prepend=marks.start[0]),
        "length": marks.end - marks.start,
        "name": marks.name,
        "look": marks.look,
        **{SUM + key: column for key, column in marks.sums.items()},
        **{DETAIL + key: column for key, column in marks.details.items()},
    }
    if (merge := marks.merge) is not None:
        columns |= {COUNT: merge.count, BUSY: merge.busy, TOP: merge.top}
        columns |= {f"{SHARE}{look}": share for look, share in zip(merge.looks, merge.shares, strict=False)}
    names = used(marks.name)
    buffer, offset = BytesIO(), file.tell()
    small = [pl.Series(name, column).shrink_dtype() for name, column in columns.items()]
    pl.DataFrame(small).write_ipc_stream(buffer, compression="lz4")
    file.write(buffer.getbuffer())
    ids = marks.details.get("correlation", np.zeros(1, np.int64))
    return MarkBlock(
        len(marks),
        int(marks.start[0]),
        int(marks.end.max()),
        (int(ids.min()), int(ids.max())),
        tuple(used(marks.look).tolist()),
        tuple(names.tolist()),
        tuple(counted(marks.name)[names].tolist()),
        tuple(columns),
        path,
        offset,
        file.tell() - offset,
    )
