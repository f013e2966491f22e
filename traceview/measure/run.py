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
from traceview.model.trace import Trace, Window, names_load_data, names_match

OF_PROFILER = r"^cu(da)?Profiler"  # calls that a run without the profiler does not make, or that take no time there
STARTS_UP = r"^cuInit$|LoadingMode|GetProcAddress|CtxCreate|(Module|Library)Load"
TORCH_PROFILER = "torch.profiler"
MIN_START_UP = 10_000_000  # ns; only a call that creates a context or loads code takes as long before the first work
WORKING_ROLES = ("memory", "api")  # the roles of calls that neither wait for the GPU nor copy
CALL = ("name", "kernel")  # what a call does: its name, and the kernel that it launches


def calls_of_processes(trace: Trace, processes: pl.Series) -> pl.DataFrame:
    """Return the calls that begin in the window, rows of Trace.api. `counts` marks those of some processes.

    Calls that do not count remain, because most do, and a frame without them would be a copy.
    """
    calls = trace.own_calls
    of_program = pl.Series(~names_match(calls["name"], OF_PROFILER), dtype=pl.Boolean)
    return calls.with_columns(counts=calls["process"].is_in(processes.implode()) & of_program)


class CallsTime(NamedTuple):
    """The time from the first start to the last end of calls, and when the first begins that starts up a process."""

    window: Window
    starts_up: int | None


def calls_time(trace: Trace) -> CallsTime | None:
    """Return the time of the calls that begin in the window, of processes with GPU work; None without such calls.

    A trace of torch.profiler has no start of the process. Data that are loaded before its first work count; its last
    calls are those of the profiler.
    """
    calls = calls_of_processes(trace, trace.devices["processes"].explode().unique())
    counts = calls["counts"].to_numpy()
    if not counts.any():
        return None
    window = Window(
        int(calls["start"][int(counts.argmax())]), int(calls["end"].to_numpy().max(where=counts, initial=0))
    )
    if trace.info.profiler == TORCH_PROFILER and len(trace.ranges):
        work = int(trace.operations["start"].to_numpy()[0])
        before = trace.ranges.filter(names_load_data(trace.ranges["name"]), pl.col("start") < work)["start"]
        if len(before):
            begin = min(window.start, int(before[0]))
            return CallsTime(Window(begin, begin), begin)
    long = calls["end"].to_numpy() - calls["start"].to_numpy() >= MIN_START_UP
    few = calls.filter(counts & (long | names_match(calls["name"], STARTS_UP)))
    working = few["role"].is_in(WORKING_ROLES).to_numpy() & ~names_match(few["name"], "Launch")
    starting = few.filter(working | names_match(few["name"], STARTS_UP))
    return CallsTime(window, starting["start"].min())  # type: ignore[arg-type]


def run_time(works: Sequence[Window], calls: CallsTime | None) -> Window:
    """Return the run: from the first call or work to the end of the last; from work to work if it began earlier.

    A capture that begins in a run shows neither its start nor what the GPU did before.
    """
    if not works:
        return Window(0, 0)
    work = Window(min(work.start for work in works), max(work.end for work in works))
    if calls is None or calls.starts_up is None or calls.starts_up >= work.start:
        return work
    return Window(min(work.start, calls.window.start), max(work.end, calls.window.end))


def inside(calls: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the calls that reach into a window, with the column `ns`: their own time there. `calls` ascend.

    A moment inside several calls belongs to the one that began first, so that the calls of a call count once.
    """
    begun = calls[: int(np.searchsorted(calls["start"].to_numpy(), window.end))]
    reach = begun.filter("counts", pl.col("end") > window.start)
    reach = reach.sort("start", "end", descending=[False, True])
    start, end = reach["start"].to_numpy(), reach["end"].to_numpy()
    own = intervals.own_lengths(np.maximum(start, window.start), np.minimum(end, window.end))
    return reach.with_columns(ns=pl.Series(own, dtype=pl.Int64)).filter(pl.col("ns") > 0)


def with_shapes(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return the result of calls_of_processes with the row of Trace.shapes that each call launches first, or 0."""
    launch, shapes = launch_rows(trace.operations), trace.operations["shape"].to_numpy()
    # An operation without a launch writes to the last row, which no call has.
    shape = np.zeros(len(trace.api) + 1, np.min_scalar_type(len(trace.shapes)))
    shape[launch[::-1]] = shapes[::-1]
    first = int(np.searchsorted(trace.api["start"].to_numpy(), calls["start"][0])) if len(calls) else 0
    return calls.with_columns(shape=shape[first : first + len(calls)])


def name_calls(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return rows of with_shapes with CALL as texts: `kernel` is the full name of the kernel, or ""."""
    kernel = trace.shapes["demangled"].gather(calls["shape"])
    return calls.with_columns(pl.col("name").cast(pl.String), kernel=kernel.fill_null(""))


def first_calls(trace: Trace, calls: pl.DataFrame) -> pl.DataFrame:
    """Return when each of CALL occurs first, from the result of with_shapes, as (name, kernel, start)."""
    first = pl.col("start").first()  # calls ascend
    by_shape = calls.lazy().filter("counts").group_by("name", "shape", maintain_order=True).agg(first).collect()
    return name_calls(trace, by_shape).group_by(CALL, maintain_order=True).agg(first)


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
