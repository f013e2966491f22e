"""Which NVTX ranges are the iterations of a run (METRICS.md "Iterations")."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.errors import RequestError
from traceview.intervals import BEFORE_ALL, Times
from traceview.model.trace import OPENACC

SIGNED, NUMBER = r"(^|[^\w.])-\d+", r"\d+"
FEWEST = 3
LISTED = 5


class Found(NamedTuple):
    """The ranges that are the iterations, in order: row numbers of Trace.ranges, all of one thread."""

    name: str
    thread: int
    rows: Times


def folded(names: pl.Series) -> pl.Series:
    """Return `iteration #` for `iteration 7` and for `iteration -3`; a dash inside a word is no sign."""
    return names.str.replace_all(SIGNED, "${1}#").str.replace_all(NUMBER, "#")


def matching_ranges(ranges: pl.DataFrame, pattern: str, file: str) -> Found:
    """Return the ranges whose name a regular expression finds, on the thread where they take the most time.

    `ranges` is model.RANGES with the column `row`. Raises RequestError, naming `file`, when the
    pattern is no regular expression or finds nothing.
    """
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise RequestError(
            f"{file}: --iteration {pattern!r} is not a regular expression ({error}); "
            "put a backslash before a character that is meant as itself"
        ) from None
    names = ranges["name"].cast(pl.String)
    matches = [name for name in names.unique().to_list() if wanted.search(name)]
    if not matches:
        raise RequestError(f"{file}: no NVTX range matches --iteration {pattern!r}; {_frequent(names)}")
    chosen = ranges.filter(names.is_in(matches))
    best = _longest(chosen.select("row", "start", "end", "thread", pl.lit(pattern).alias("folded")))
    shown = chosen.filter(chosen["row"].is_in(best.rows.tolist()))["name"].cast(pl.String)
    shapes = folded(shown).unique().sort().to_list()
    return best._replace(name=" | ".join(shapes[:3]))


def _frequent(names: pl.Series) -> str:
    if names.is_empty():
        return "the capture has none; capture with: nsys profile -t cuda,nvtx COMMAND"
    counts = names.value_counts().sort(["count", "name"], descending=[True, False])
    return f"the most frequent are {', '.join(repr(name) for name in counts['name'].head(LISTED).to_list())}"


def repeating_ranges(ranges: pl.DataFrame) -> Found | None:
    """Return the ranges of the outermost name that repeats on a thread with the most total time.

    `ranges` is model.RANGES with the column `row`; None where no name repeats. A range inside that of
    another repeating name does not count (docs/decisions.md "Iterations"), nor does what no program named.
    """
    ranges = ranges.filter(ranges["domain"].cast(pl.String) != OPENACC)
    names = ranges["name"].cast(pl.String)
    unique = names.unique()
    frame = ranges.select(
        "row",
        "start",
        "end",
        "thread",
        names.replace_strict(unique, folded(unique), return_dtype=pl.String).alias("folded"),
    )
    repeats = pl.len().over("thread", "folded") >= FEWEST
    often = frame.filter(repeats)
    often = often.filter(pl.Series(_outermost(often))).filter(repeats)
    return None if often.is_empty() else _longest(often)


def _outermost(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """Say which ranges lie inside no other of the frame on their thread."""
    start, end, thread = (frame[name].to_numpy() for name in ("start", "end", "thread"))
    order = np.lexsort((-end, start, thread))
    start, end = start[order], end[order]
    reach = np.full(len(order), BEFORE_ALL)
    borders = np.flatnonzero(np.diff(thread[order], prepend=-2, append=-2)).tolist()
    for first, last in pairwise(borders):
        np.maximum.accumulate(end[first : last - 1], out=reach[first + 1 : last])
    outermost = np.empty(len(frame), np.bool_)
    # A range that holds this one was open when it began and ends no sooner: open at its last ns.
    outermost[order] = reach <= np.maximum(end - 1, start)
    return outermost


def _longest(frame: pl.DataFrame) -> Found:
    """Return the ranges of the thread and name with the most total time, outermost ones only."""
    thread, name, _ = (
        frame.group_by("thread", "folded")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread", "folded"], descending=[True, False, False])
        .row(0)
    )
    rows = frame.filter((pl.col("thread") == thread) & (pl.col("folded") == name))
    rows = rows.filter(pl.Series(_outermost(rows)))
    return Found(name, thread, rows["row"].to_numpy().astype(np.int64))
