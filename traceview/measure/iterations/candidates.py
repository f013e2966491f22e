"""Which NVTX ranges are the iterations of a run (docs/definitions.md "Iterations")."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.errors import RequestError
from traceview.intervals import BEFORE_ALL, Times
from traceview.model.trace import LIBRARY_DOMAINS

SIGNED_NUMBER, NUMBER = r"(^|[^\w.])-\d+", r"\d+"
MIN_REPEATS = 3
MAX_LISTED_NAMES = 5


class RepeatedRange(NamedTuple):
    """The ranges that are the iterations: their name with `#` for numbers, their thread, and rows of Trace.ranges."""

    name: str
    thread: int
    rows: Times


def fold_numbers(names: pl.Series) -> pl.Series:
    """Replace numbers with `#`: `iteration 7` and `iteration -3` become `iteration #`.

    A dash inside a word is not a sign.
    """
    return names.str.replace_all(SIGNED_NUMBER, "${1}#").str.replace_all(NUMBER, "#")


def matching_ranges(ranges: pl.DataFrame, pattern: str, file: str) -> RepeatedRange:
    """Return the ranges whose names contain a match of `pattern`, on the thread where these take the most time.

    `ranges` is model.RANGES with the column `row`. Raises RequestError, naming `file`, if `pattern` is not a regular
    expression or matches no range.
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise RequestError(
            f"{file}: --iteration {pattern!r} is not a regular expression ({error}); "
            "put a backslash before a character with a special meaning"
        ) from None
    names = ranges["name"].cast(pl.String)
    matches = [name for name in names.unique().to_list() if expression.search(name)]
    if not matches:
        raise RequestError(f"{file}: no NVTX range matches --iteration {pattern!r}; {_frequent_names(names)}")
    chosen = ranges.filter(names.is_in(matches))
    best = _longest_candidate(chosen.select("row", "start", "end", "thread", pl.lit(pattern).alias("folded")))
    best_names = chosen.filter(chosen["row"].is_in(best.rows.tolist()))["name"].cast(pl.String)
    shapes = fold_numbers(best_names).unique().sort().to_list()
    return best._replace(name=" | ".join(shapes[:3]))


def _frequent_names(names: pl.Series) -> str:
    if names.is_empty():
        return "the capture has none; capture with: nsys profile -t cuda,nvtx COMMAND"
    counts = names.value_counts().sort(["count", "name"], descending=[True, False])
    listed = ", ".join(repr(name) for name in counts["name"].head(MAX_LISTED_NAMES).to_list())
    return f"the most frequent are {listed}"


def repeating_ranges(ranges: pl.DataFrame) -> RepeatedRange | None:
    """Return the ranges of the outermost name that repeats on a thread with the most total time; None if none repeats.

    `ranges` is model.RANGES with the column `row`. A range inside a range of another repeating name does not count
    (docs/definitions.md "Iterations"), nor does a range of a library's domain.
    """
    ranges = ranges.filter(~ranges["domain"].cast(pl.String).is_in(LIBRARY_DOMAINS))
    names = ranges["name"].cast(pl.String)
    unique = names.unique()
    frame = ranges.select(
        "row",
        "start",
        "end",
        "thread",
        names.replace_strict(unique, fold_numbers(unique), return_dtype=pl.String).alias("folded"),
    )
    repeats = pl.len().over("thread", "folded") >= MIN_REPEATS
    repeated = frame.filter(repeats)
    repeated = repeated.filter(pl.Series(_is_outermost(repeated))).filter(repeats)
    return None if repeated.is_empty() else _longest_candidate(repeated)


def _is_outermost(frame: pl.DataFrame) -> NDArray[np.bool_]:
    """Return a mask of the ranges that lie inside no other range of the frame on their thread."""
    start, end, thread = (frame[name].to_numpy() for name in ("start", "end", "thread"))
    order = np.lexsort((-end, start, thread))
    start, end = start[order], end[order]
    reach = np.full(len(order), BEFORE_ALL)
    borders = np.flatnonzero(np.diff(thread[order], prepend=-2, append=-2)).tolist()
    for first, last in pairwise(borders):
        np.maximum.accumulate(end[first : last - 1], out=reach[first + 1 : last])
    outermost = np.empty(len(frame), np.bool_)
    # A range that contains this one starts no later and is open during the last ns of this one.
    outermost[order] = reach <= np.maximum(end - 1, start)
    return outermost


def _longest_candidate(frame: pl.DataFrame) -> RepeatedRange:
    """Return the outermost ranges of the thread and folded name with the most total time."""
    thread, name, _ = (
        frame.group_by("thread", "folded")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total"))
        .sort(["total", "thread", "folded"], descending=[True, False, False])
        .row(0)
    )
    rows = frame.filter((pl.col("thread") == thread) & (pl.col("folded") == name))
    rows = rows.filter(pl.Series(_is_outermost(rows)))
    return RepeatedRange(name, thread, rows["row"].to_numpy().astype(np.int64))
