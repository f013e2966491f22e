"""The calls of a run, and those that occur once (docs/definitions.md "The run", "Start-up and single events").

The first call that needs a GPU creates its context, the first launch of a kernel loads its module, and memory is
allocated once. Such a call takes milliseconds to seconds, a thousand times as long as the same call later.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.shared_work import launch_rows
from traceview.model.trace import EVERYTHING, Trace, Window, enum_texts

OF_PROFILER = r"^cu(da)?Profiler"  # calls that a run without the profiler does not make, or that take no time there
STARTS_UP = r"^cuInit$|LoadingMode|GetProcAddress|CtxCreate"
MIN_START_UP = 10_000_000  # ns; only a call that creates a context or loads code takes as long before the first work
WORKING_ROLES = ("memory", "api")  # the roles of calls that neither wait for the GPU nor copy
CALL = ("name", "kernel")  # what a call does: its name, and the kernel that it launches


def calls_of_processes(trace: Trace, processes: pl.Series) -> pl.DataFrame:
    """Return the calls of some processes that begin in the window, rows of Trace.api with their `row`."""
    window = trace.window or EVERYTHING
    first, last = np.searchsorted(trace.api["start"].to_numpy(), (window.start, window.end)).tolist()
    own = trace.api.with_row_index("row")[first:last]
    return own.filter(pl.col("process").is_in(processes.implode()), ~_names_match(own, OF_PROFILER))


def _names_match(calls: pl.DataFrame, pattern: str) -> pl.Series:
    """Return whether the name of each call matches a pattern, which is searched once in each distinct name."""
    matches = enum_texts(calls["name"]).str.contains(pattern).to_numpy()
    return pl.Series(matches[calls["name"].to_physical().to_numpy()], dtype=pl.Boolean)


class CallsTime(NamedTuple):
    """The time from the first start to the last end of calls, and when the first begins that starts up a process."""

    window: Window
    starts_up: int | None


def calls_time(trace: Trace) -> CallsTime | None:
    """Return the time of the calls that begin in the window, of processes with GPU work; None without such calls."""
    calls = calls_of_processes(trace, trace.devices["processes"].explode().unique())
    first, last = calls.select(first=pl.col("start").min(), last=pl.col("end").max()).row(0)
    if first is None:
        return None
    working = pl.col("role").is_in(WORKING_ROLES) & ~_names_match(calls, "Launch")
    long = pl.col("end") - pl.col("start") >= MIN_START_UP
    starting = calls.filter(_names_match(calls, STARTS_UP) | (working & long))
    return CallsTime(Window(first, last), starting["start"].min())  # type: ignore[arg-type]


def run_time(works: Sequence[Window], calls: Sequence[CallsTime]) -> Window:
    """Return the run: from the first call or work to the end of the last; from work to work if it began earlier.

    A capture that begins in a run shows neither its start nor what the GPU did before.
    """
    if not works:
        return Window(0, 0)
    work = Window(min(work.start for work in works), max(work.end for work in works))
    first = min((each.starts_up for each in calls if each.starts_up is not None), default=work.start)
    if first >= work.start:
        return work
    return Window(
        min(work.start, *(each.window.start for each in calls)), max(work.end, *(each.window.end for each in calls))
    )


def inside(calls: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the calls that reach into a window, with the column `ns`: their own time there.

    A moment inside several calls belongs to the one that began first, so that the calls of a call count once.
    """
    reach = calls.filter((pl.col("end") > window.start) & (pl.col("start") < window.end))
    reach = reach.sort("start", "end", descending=[False, True])
    start, end = reach["start"].to_numpy(), reach["end"].to_numpy()
    own = intervals.own_lengths(np.maximum(start, window.start), np.minimum(end, window.end))
    return reach.with_columns(ns=pl.Series(own, dtype=pl.Int64)).filter(pl.col("ns") > 0)


def with_kernels(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return calls with the columns of CALL: `kernel` is the full name of the kernel that a call launches, or null."""
    launch = launch_rows(trace.operations)
    launching = np.flatnonzero(launch >= 0)
    kernel = np.full(len(trace.api), -1, np.int64)
    kernel[launch[launching][::-1]] = launching[::-1]
    operation = kernel[calls["row"].to_numpy()]
    shape = trace.operations["shape"].gather(pl.Series(operation).replace(-1, None))
    return calls.with_columns(kernel=trace.shapes["demangled"].gather(shape))


def first_calls(calls: pl.DataFrame) -> pl.DataFrame:
    """Return when each of CALL occurs first: the result of with_kernels as (name, kernel, start)."""
    first = calls.group_by(CALL, maintain_order=True).agg(pl.col("start").min())
    return first.with_columns(pl.col(*CALL).cast(pl.String).fill_null(""))


def longest_call(start: Times, end: Times, calls: pl.DataFrame) -> tuple[Times, Times]:
    """Return for each of some disjoint ascending times the call that takes most of it, or -1, and its ns there.

    `calls` are those of one thread, in the order of time.
    """
    first, last = (calls[name].to_numpy() for name in ("start", "end"))
    low = np.searchsorted(end, first, side="right")
    counts = np.maximum(np.searchsorted(start, last, side="left") - low, 0)
    call = np.repeat(np.arange(len(calls)), counts)
    time = intervals.index_ranges(low, counts)
    ns = np.minimum(last[call], end[time]) - np.maximum(first[call], start[time])
    longest, taken = np.full(len(start), -1), np.zeros(len(start), np.int64)
    order = np.lexsort((-call, ns))  # the longest is written last
    longest[time[order]], taken[time[order]] = call[order], ns[order]
    return longest, taken
