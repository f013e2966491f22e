"""Leaves out invalid rows and counts them in the notes; refuses captures with impossible amounts of data.

Events are ordered by (start, end), then by row. The rows of several tables merge in this order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import DTypeLike, NDArray

from traceview.errors import DamagedExportError
from traceview.intervals import Times, blocks
from traceview.model.times import MAX_DISTANCE
from traceview.read import raw
from traceview.read.source import MAX_NAME

RowValues = NDArray[Any] | int  # the values of a table's rows, or the value of all its rows


class TimeOrder(NamedTuple):
    """Sorted times, and the row that each had before; `rows` is None if they were already sorted."""

    rows: NDArray[np.intp] | None
    start: Times
    end: Times


def sort_by_time(frame: pl.DataFrame) -> pl.DataFrame:
    """Return a frame sorted by (start, end); rows equal in both keep their order."""
    order = time_order(frame["start"].to_numpy(), frame["end"].to_numpy())
    return frame if order.rows is None else frame[order.rows]


def time_order(start: Times, end: Times) -> TimeOrder:
    """Return the order by (start, end); rows equal in both keep their order."""
    if _is_sorted(start, end):
        return TimeOrder(None, start, end)
    # Exports are nearly sorted and ties are rare: a stable sort by start alone is fast and usually enough.
    rows = np.argsort(start, kind="stable")
    order = TimeOrder(rows, start[rows], end[rows])
    if _is_sorted(order.start, order.end):
        return order
    rows = np.lexsort((end, start))
    return TimeOrder(rows, start[rows], end[rows])


def _is_sorted(start: Times, end: Times) -> bool:
    for block in blocks(max(len(start) - 1, 0)):
        after = slice(block.start + 1, block.stop + 1)
        if (start[after] > start[block]).all():
            continue
        tie = start[after] == start[block]
        if not (tie | (start[after] > start[block])).all() or (end[after] < end[block])[tie].any():
            return False
    return True


class MergedEvents(NamedTuple):
    """The sorted times of several tables' rows; `places` are the new rows of each table's rows."""

    start: Times
    end: Times
    places: tuple[slice | NDArray[np.intp], ...]

    @classmethod
    def by_time(cls, starts: Sequence[Times], ends: Sequence[Times]) -> MergedEvents:
        """Sort rows by (start, end); rows equal in both keep the order of the tables and of their rows."""
        edges = np.cumsum([0, *(len(times) for times in starts)]).tolist()
        own = tuple(slice(first, last) for first, last in pairwise(edges))
        rows, start, end = time_order(np.concatenate(starts), np.concatenate(ends))
        if rows is None:
            return cls(start, end, own)
        place = np.empty(len(rows), np.intp)
        place[rows] = np.arange(len(rows))
        return cls(start, end, tuple(place[table] for table in own))

    def int32_column(self, columns: Sequence[RowValues]) -> pl.Expr:
        """Return one column of integers from those of each table; a literal if all rows have the same value."""
        first = columns[0]
        if isinstance(first, int) and all(isinstance(column, int) and column == first for column in columns):
            return pl.lit(first, pl.Int32)
        return pl.lit(pl.Series(self.array(columns, np.int32)))

    def array(self, columns: Sequence[RowValues], kind: DTypeLike) -> NDArray[Any]:
        """Return one array from the values of each table."""
        common = next((column for column in columns if isinstance(column, int)), None)
        out = np.empty(len(self.start), kind) if common is None else np.full(len(self.start), common, kind)
        for place, column in zip(self.places, columns, strict=True):
            if not (isinstance(column, int) and column == common):
                out[place] = column
        return out


# Twice this time fits into 64 bits. `nsys export --ts-normalize=true` counts from 1970: about 2^60.6 ns.
MAX_TIME = (1 << 62) - 1
TOO_FAR = "more than thirteen days away from the others"
MAX_OPEN_RANGES = 128  # per thread; a program that pushes and never pops reaches any number
# The largest plausible value of a column, and its name in notes. CUPTI's correlation ids have 32 bits.
MAX_VALUES = {"bytes": (1 << 50, "number of bytes"), "correlationId": ((1 << 32) - 1, "correlation id")}
MAX_COUNTS = {"GPUs": 1024, "streams": 8192, "threads": 8192, "processes": 1024}


class Problems(NamedTuple):
    """Notes that every report shows; normalising appends to them."""

    lines: list[str]


class Extent(NamedTuple):
    """The first and the last start of a table's rows, and their last end, in ns."""

    first: int
    last: int
    end: int


def refuse_too_many(file: str, counts: Mapping[str, int]) -> None:
    """Refuse more GPUs, streams, threads or processes than any machine has. Raises DamagedExportError."""
    for what, count in counts.items():
        if count > MAX_COUNTS[what]:
            raise DamagedExportError(
                f"{file}: has {count} {what}, more than {MAX_COUNTS[what]}, so its ids are damaged; "
                "export it again: nsys export --type sqlite REPORT.nsys-rep"
            )


def valid_tables(tables: Mapping[str, pl.DataFrame], problems: Problems) -> dict[str, pl.DataFrame]:
    """Return all tables without the rows whose times, values or nesting cannot be right, and with bounded texts."""
    extents = {name: extent for name in raw.ESSENTIAL if name in tables and (extent := _valid_extent(tables[name]))}
    timed = {
        name: frame if name in extents else _without_other_types(name, frame, problems)
        for name, frame in tables.items()
    }
    valid = {
        name: _valid_times(name, frame, problems) if name in raw.ESSENTIAL and name not in extents else frame
        for name, frame in timed.items()
    }
    near = _near_rows(valid, extents, problems)
    return {name: _plausible_rows(name, frame, problems) for name, frame in near.items()}


def refuse_invalid_work(
    file: str, tables: Mapping[str, pl.DataFrame], valid: Mapping[str, pl.DataFrame], problems: Problems
) -> None:
    """Refuse a capture that has GPU work, but none with valid times. Raises DamagedExportError."""
    work = [name for name in raw.GPU_WORK if name in tables and not tables[name].is_empty()]
    if work and all(valid[name].is_empty() for name in work):
        reasons = "; ".join(line for line in problems.lines if any(f" of {name} left out: " in line for name in work))
        raise DamagedExportError(
            f"{file}: all GPU work is invalid: {reasons}; export it again: nsys export --type sqlite REPORT.nsys-rep"
        )


def _without_other_types(table: str, frame: pl.DataFrame, problems: Problems) -> pl.DataFrame:
    """Leave out the rows with a time of another type. NVTX events that are not ranges need no times."""
    for column in (name for name in raw.TIMES if name in frame.columns):
        if (frame[column] == raw.NOT_A_TIME).any():
            valid = pl.col(column).ne_missing(raw.NOT_A_TIME)
            if table == raw.NVTX:
                valid |= ~pl.col("eventType").is_in(raw.RANGE_TYPES)
            reason = f"their {column!r} is a text, a real number or too large, not whole nanoseconds"
            frame = _keep_valid(table, frame, valid, reason, problems)
    return frame


def _valid_times(table: str, frame: pl.DataFrame, problems: Problems) -> pl.DataFrame:
    """Keep the rows with a valid start and an end that is not before it.

    A range may lack its end, because the capture may have ended first. NVTX events that are not ranges (marks, domains)
    need no times.
    """
    start, end = pl.col("start"), pl.col("end")
    valid = start.is_between(-MAX_TIME, MAX_TIME) & end.is_between(-MAX_TIME, MAX_TIME) & (end >= start)
    if table == raw.NVTX:
        valid_end = end.is_null() | (end.is_between(-MAX_TIME, MAX_TIME) & (end >= start))
        valid = start.is_between(-MAX_TIME, MAX_TIME) & valid_end | ~pl.col("eventType").is_in(raw.RANGE_TYPES)
    return _keep_valid(
        table,
        frame,
        valid,
        "the start or the end is missing or beyond 2^62 ns, or the end is before the start",
        problems,
    )


def _valid_extent(frame: pl.DataFrame) -> Extent | None:
    """Return the extent of a table whose rows all have valid times; None if a row is invalid or there is none."""
    if frame.is_empty() or frame["start"].null_count() or frame["end"].null_count():
        return None
    start, end = frame["start"].to_numpy(), frame["end"].to_numpy()
    extremes = []
    for block in blocks(len(end)):
        if (end[block] < start[block]).any():
            return None
        extremes.append((start[block].min(), start[block].max(), end[block].max()))
    first, last, ends = zip(*extremes, strict=True)
    extent = Extent(int(min(first)), int(max(last)), int(max(ends)))
    return extent if extent.first >= -MAX_TIME and extent.end <= MAX_TIME else None


def _near_rows(
    tables: dict[str, pl.DataFrame], extents: Mapping[str, Extent], problems: Problems
) -> dict[str, pl.DataFrame]:
    """Leave out rows more than MAX_DISTANCE from the median start of all timed events."""
    timed = {name: tables[name] for name in raw.ESSENTIAL if name in tables and not tables[name].is_empty()}
    extremes = [value for name, frame in timed.items() for value in extents.get(name) or _extremes(frame)]
    if not extremes or max(extremes) - min(extremes) <= MAX_DISTANCE:
        return tables
    starts = pl.concat([_timed_rows(name, frame)["start"] for name, frame in timed.items()])
    middle = starts.median()
    if not isinstance(middle, float):
        return tables
    low, high = int(middle) - MAX_DISTANCE, int(middle) + MAX_DISTANCE
    return tables | {name: _rows_between(name, frame, low, high, problems) for name, frame in timed.items()}


def _extremes(frame: pl.DataFrame) -> list[int]:
    extremes = (frame["start"].min(), frame["start"].max(), frame["end"].max())
    return [value for value in extremes if isinstance(value, int)]


def _timed_rows(table: str, frame: pl.DataFrame) -> pl.DataFrame:
    return frame.filter(pl.col("eventType").is_in(raw.RANGE_TYPES)) if table == raw.NVTX else frame


def _rows_between(table: str, frame: pl.DataFrame, low: int, high: int, problems: Problems) -> pl.DataFrame:
    start, end = pl.col("start").is_between(low, high), pl.col("end").is_between(low, high)
    if table != raw.NVTX:
        return _keep_valid(table, frame, start & end, TOO_FAR, problems)
    is_range = pl.col("eventType").is_in(raw.RANGE_TYPES)
    frame = _keep_valid(table, frame, ~is_range | (start & (end | pl.col("end").is_null())), TOO_FAR, problems)
    # Events that are not ranges need no time, and a wrong time must not extend the capture.
    return frame.with_columns(pl.when(start).then("start").alias("start"), pl.when(end).then("end").alias("end"))


def _keep_valid(table: str, frame: pl.DataFrame, valid: pl.Expr, reason: str, problems: Problems) -> pl.DataFrame:
    mask = frame.select(valid.fill_null(False)).to_series()
    if mask.all():
        return frame
    left_out = len(frame) - int(mask.sum())
    problems.lines.append(raw.problem_of_rows(table, left_out, f"left out: {reason}"))
    return frame.filter(mask)


def _plausible_rows(table: str, frame: pl.DataFrame, problems: Problems) -> pl.DataFrame:
    """Return a table with bounded texts, without implausible values, and without too deeply nested ranges."""
    frame = _with_short_texts(frame)
    for column in MAX_VALUES:
        if column in frame.columns:
            frame = _with_plausible_values(table, frame, column, problems)
    return _without_deep_ranges(table, frame, problems) if table == raw.NVTX else frame


def _with_short_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """Shorten long texts and end them with an ellipsis: nsys stores the program's output among the names."""
    for name in [name for name, kind in frame.schema.items() if kind == pl.String]:
        # A text has at most as many characters as bytes, and its bytes are known without counting.
        if (long := frame[name].str.len_bytes() > MAX_NAME).any():
            cut = pl.col(name).str.slice(0, MAX_NAME) + "…"
            frame = frame.with_columns(pl.when(long).then(cut).otherwise(name).alias(name))
    return frame


def _with_plausible_values(table: str, frame: pl.DataFrame, column: str, problems: Problems) -> pl.DataFrame:
    """Replace implausible values with null. The correlation ids of calls and of GPU work have 32 bits then."""
    limit, what = MAX_VALUES[column]
    low, high = frame.select(pl.col(column).min(), high=pl.col(column).max()).row(0)
    if low is not None and (low < 0 or high > limit):
        plausible = pl.col(column).is_between(0, limit)
        wrong = frame.select((~plausible).sum()).item()
        problems.lines.append(raw.problem_of_rows(table, wrong, f"with an impossible {what}, which is ignored"))
        frame = frame.with_columns(pl.when(plausible).then(column).alias(column))
    is_narrow = column == "correlationId" and table in (*raw.GPU_WORK, raw.RUNTIME)
    return frame.with_columns(pl.col(column).cast(pl.UInt32)) if is_narrow else frame


def _without_deep_ranges(table: str, frame: pl.DataFrame, problems: Problems) -> pl.DataFrame:
    rows = np.flatnonzero(frame["eventType"].is_in(raw.RANGE_TYPES).fill_null(False).to_numpy())
    if len(rows) <= MAX_OPEN_RANGES:
        return frame
    ranges = frame[rows]
    end = ranges["end"].fill_null(MAX_TIME).to_numpy()
    too_deep = _depths(ranges["globalTid"].fill_null(0).to_numpy(), ranges["start"].to_numpy(), end) > MAX_OPEN_RANGES
    if not too_deep.any():
        return frame
    reason = f"left out: more than {MAX_OPEN_RANGES} ranges are open at once on the thread (each push needs a pop)"
    problems.lines.append(raw.problem_of_rows(table, int(too_deep.sum()), reason))
    keep = np.ones(len(frame), np.bool_)
    keep[rows[too_deep]] = False
    return frame.filter(pl.Series(keep))


def _depths(thread: Times, start: Times, end: Times) -> Times:
    """Return how many ranges are open on a range's thread when the range starts, including the range."""
    count = len(start)
    at = np.concatenate([end, start])
    change = np.repeat(np.array([-1, 1], np.int64), count)
    # At equal times, ends come before starts, and the longer of two ranges starts first.
    length = np.concatenate([np.zeros(count, np.int64), start - end])
    order = np.lexsort((length, change, at, np.concatenate([thread, thread])))
    empty = end == start
    change[:count][empty] = change[count:][empty] = 0
    depth = np.empty(2 * count, np.int64)
    depth[order] = np.cumsum(change[order])
    depths: Times = depth[count:] + empty
    return depths
