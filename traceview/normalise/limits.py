"""What no program does, so that no file can ask for endless time or memory: it is left out and said, or refused."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import polars as pl

from traceview.errors import DamagedExportError
from traceview.intervals import Times
from traceview.read import raw
from traceview.read.limits import MAX_NAME

DEEPEST = 128  # ranges open at once on a thread; a program that pushes and never pops reaches any number
# What a record may say at most, and what to call it. CUPTI's correlation ids have 32 bits.
LARGEST = {"bytes": (1 << 50, "number of bytes"), "correlationId": ((1 << 32) - 1, "correlation id")}
MOST = {"GPUs": 1024, "streams": 8192, "threads": 8192, "processes": 1024}


def refuse_crowds(file: str, counts: Mapping[str, int]) -> None:
    """Refuse more of them than any machine has, for each costs its own time. Raises ReportError."""
    for what, count in counts.items():
        if count > MOST[what]:
            raise DamagedExportError(
                f"{file}: has {count} {what}, more than {MOST[what]}, so its ids are damaged; "
                "export it again: nsys export --type sqlite REPORT.nsys-rep"
            )


def plausible(table: str, frame: pl.DataFrame, problems: list[str]) -> pl.DataFrame:
    """Return a table without endless texts; impossible numbers and endless nesting are added to `problems`."""
    frame = _short_texts(frame)
    for column in LARGEST:
        if column in frame.columns:
            frame = _numbers(table, frame, column, problems)
    return _shallow(table, frame, problems) if table == raw.NVTX else frame


def _short_texts(frame: pl.DataFrame) -> pl.DataFrame:
    """Cut long texts off, with an ellipsis to say so: nsys keeps what the program printed among the names."""
    for name in [name for name, kind in frame.schema.items() if kind == pl.String]:
        # Bytes are known without counting characters, of which there are no more.
        if (long := frame[name].str.len_bytes() > MAX_NAME).any():
            cut = pl.col(name).str.slice(0, MAX_NAME) + "…"
            frame = frame.with_columns(pl.when(long).then(cut).otherwise(name).alias(name))
    return frame


def _numbers(table: str, frame: pl.DataFrame, column: str, problems: list[str]) -> pl.DataFrame:
    most, what = LARGEST[column]
    possible = frame[column].is_between(0, most)
    if possible.fill_null(True).all():
        return frame
    problems.append(f"{table}: {int((~possible).sum())} rows say an impossible {what}, taken as unknown")
    return frame.with_columns(pl.when(pl.Series(possible)).then(column).alias(column))


def _shallow(table: str, frame: pl.DataFrame, problems: list[str]) -> pl.DataFrame:
    rows = np.flatnonzero(frame["eventType"].is_in(raw.RANGE_TYPES).fill_null(False).to_numpy())
    if len(rows) <= DEEPEST:
        return frame
    part = frame[rows]
    end = part["end"].fill_null((1 << 62) - 1).to_numpy()
    deep = _depths(part["globalTid"].fill_null(0).to_numpy(), part["start"].to_numpy(), end) > DEEPEST
    if not deep.any():
        return frame
    problems.append(
        f"{table}: {int(deep.sum())} rows left out: more than {DEEPEST} ranges are open at once on their thread "
        "(each push needs a pop)"
    )
    keep = np.ones(len(frame), np.bool_)
    keep[rows[deep]] = False
    return frame.filter(pl.Series(keep))


def _depths(thread: Times, start: Times, end: Times) -> Times:
    """Return how many ranges of its thread are open as each range starts, itself included."""
    count = len(start)
    at = np.concatenate([end, start])
    change = np.repeat(np.array([-1, 1], np.int64), count)
    # At one moment what ends goes before what starts; of equal starts the longer one is outside.
    length = np.concatenate([np.zeros(count, np.int64), start - end])
    order = np.lexsort((length, change, at, np.concatenate([thread, thread])))
    empty = end == start
    change[:count][empty] = change[count:][empty] = 0
    depth = np.empty(2 * count, np.int64)
    depth[order] = np.cumsum(change[order])
    found: Times = depth[count:] + empty
    return found
