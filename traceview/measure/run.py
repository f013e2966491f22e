"""The calls of a run, and those that occur once (docs/definitions.md "The run", "Start-up and single events").

The first call that needs a GPU creates its context, the first launch of a kernel loads its module, and memory is
allocated once. Such a call takes milliseconds to seconds, a thousand times as long as the same call later.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.intervals import Times, values_at
from traceview.measure.shared_work import first_launched, long_calls
from traceview.model.trace import EVERYTHING, Trace, Window, names_load_data, names_match

OF_PROFILER = r"^cu(da)?Profiler"  # calls that a run without the profiler does not make, or that take no time there
STARTS_UP = r"^cuInit$|LoadingMode|GetProcAddress|CtxCreate|(Module|Library)Load"
PINS = r"^(?:cuda|cu|hip)(?:Mem)?(?:HostAlloc|AllocHost|MallocHost|FreeHost|Host(?:Un)?[Rr]egister)"
TORCH_PROFILER = "torch.profiler"
MIN_START_UP = 10_000_000  # ns; only a call that creates a context or loads code takes as long before the first work
WORKING_ROLES = ("memory", "api")  # the roles of calls that neither wait for the GPU nor copy
STALL = 100  # times the usual length; calls that load code take a thousand times as long as the same call later
LENGTH = pl.col("end") - pl.col("start")
CALL = ("name", "kernel")  # what a call does: its name, and the kernel that it launches


class CallsTime(NamedTuple):
    """The time from the first start to the last end of calls, and when the first begins that starts up a process."""

    window: Window
    starts_up: int | None


@dataclass(frozen=True)
class ProgramCalls:
    """The calls of some processes that begin in the window of a trace, without those of the profiler.

    Frames of calls have the columns of Trace.api, and `row`.
    """

    trace: Trace
    processes: Collection[int]

    @cached_property
    def _every(self) -> pl.DataFrame:
        """The calls in the window, also those that do not count: most do, and a frame without them would be a copy."""
        calls, first = self.trace.own_calls, 0
        if self.trace.window is not None:
            first = int(np.searchsorted(self.trace.api["start"].to_numpy(), self.trace.window.start))
        return calls.with_row_index("row", first)

    def _count(self, calls: pl.DataFrame) -> NDArray[np.bool_]:
        count: NDArray[np.bool_] = ~names_match(calls["name"], OF_PROFILER)
        if not set(self.processes).issuperset(self.trace.threads["process"]):
            count &= calls["process"].is_in(list(self.processes)).to_numpy()
        return count

    def _counted(self, calls: pl.DataFrame) -> pl.DataFrame:
        return calls.filter(self._count(calls))

    def named(self, pattern: str) -> pl.DataFrame:
        """Return the calls whose names match."""
        return self._counted(self._every[np.flatnonzero(names_match(self._every["name"], pattern))])

    def long(self) -> pl.DataFrame:
        """Return the calls of more than LONG ns."""
        calls, window = long_calls(self.trace.api), self.trace.window or EVERYTHING
        return self._counted(calls.filter(pl.col("start").is_between(window.start, window.end, closed="left")))

    def inside(self, window: Window) -> pl.DataFrame:
        """Return the calls that reach into a window, with the column `ns`: their own time there."""
        begun = self._every[: int(np.searchsorted(self._every["start"].to_numpy(), window.end))]
        return own_times(self._counted(begun[np.flatnonzero(begun["end"].to_numpy() > window.start)]), window)

    def time(self) -> CallsTime | None:
        """Return the time of the calls; None without calls.

        A trace of torch.profiler has no start of the process. Data that are loaded before its first work count; its
        last calls are those of the profiler.
        """
        trace, calls, count = self.trace, self._every, self._count(self._every)
        if not count.any():
            return None
        begin = int(calls["start"][int(count.argmax())])
        window = Window(begin, int(calls["end"].to_numpy().max(where=count, initial=begin)))
        if trace.info.profiler == TORCH_PROFILER and len(trace.ranges):
            work = int(trace.operations["start"].to_numpy()[0])
            before = trace.ranges.filter(names_load_data(trace.ranges["name"]), pl.col("start") < work)["start"]
            if len(before):
                begin = min(window.start, int(before[0]))
                return CallsTime(Window(begin, begin), begin)
        long = self.long().filter(pl.col("end") - pl.col("start") >= MIN_START_UP, pl.col("role").is_in(WORKING_ROLES))
        first = self.trace.operations["launch"].head(1).drop_nulls()  # it cannot wait for earlier work
        long = long.filter(~pl.Series(names_match(long["name"], "Launch")) | pl.col("row").is_in(first.to_list()))
        starts = [int(each["start"][0]) for each in (long, self.named(STARTS_UP)) if len(each)]
        if trace.info.profiler == TORCH_PROFILER and not starts:
            window = Window(begin, begin)
        return CallsTime(window, min(starts, default=None))

    def sums(self) -> pl.DataFrame:
        """Return sums by name, thread (row of Trace.threads) and the kernel that each call launches first, if any."""
        calls, length = self._counted(self._every), pl.col("end") - pl.col("start")
        first = {"count": pl.len().cast(pl.Int64), "total_ns": length.sum(), "longest_ns": length.max()}
        by_shape = (
            calls.with_columns(shape=self._shapes(calls))
            .group_by("name", "thread", "shape", maintain_order=True)
            .agg(first_ns=pl.col("start").first(), **first)
        )
        sums = (pl.col("count", "total_ns").sum(), pl.col("longest_ns").max(), pl.col("first_ns").min())
        by_kernel = self._with_texts(by_shape).group_by("name", "thread", "kernel", maintain_order=True).agg(*sums)
        return by_kernel.sort("total_ns", "first_ns", descending=[True, False])

    def with_kernels(self, calls: pl.DataFrame) -> pl.DataFrame:
        """Return calls with CALL as texts: `kernel` is the full name of the kernel that each launches first, or ""."""
        return self._with_texts(calls.with_columns(shape=self._shapes(calls)))

    def _shapes(self, calls: pl.DataFrame) -> pl.Series:
        """Return the row of Trace.shapes that each call launches first, or 0."""
        launched = first_launched(self.trace.operations)
        operation = launched[np.minimum(calls["row"].to_numpy(), len(launched) - 1)]
        return pl.Series(values_at(self.trace.operations["shape"].to_numpy(), operation, 0))

    def _with_texts(self, calls: pl.DataFrame) -> pl.DataFrame:
        kernel = self.trace.shapes["demangled"].gather(calls["shape"])
        return calls.with_columns(pl.col("name").cast(pl.String), kernel=kernel.fill_null(""))

    def single(self, some: pl.DataFrame) -> pl.DataFrame:
        """Return those of some calls (CALL, start, end) that are the first of their kind, which CALL says, or stalls.

        A stall takes much longer than a quarter of the calls of its name: a library loads its code in `cudaFree`. Calls
        that pin memory take as long as their pages need, and do not stall.
        """
        if some.is_empty():
            return some
        first, names = pl.col("start").first(), some["name"].unique().to_list()  # calls ascend
        calls = self.named(f"^(?:{'|'.join(map(re.escape, names))})$")
        by_shape = (
            calls.with_columns(shape=self._shapes(calls)).group_by("name", "shape", maintain_order=True).agg(first)
        )
        by_kind = self._with_texts(by_shape).group_by(CALL, maintain_order=True).agg(first)
        usual = calls.group_by(pl.col("name").cast(pl.String)).agg(usual=LENGTH.quantile(0.25, "lower"))
        is_stall = pl.max_horizontal(STALL * pl.col("usual"), MIN_START_UP) < LENGTH
        stalls = some.join(usual, on="name").filter(is_stall, ~pl.col("name").str.contains(PINS))
        single = pl.concat([by_kind.select(*CALL, "start"), stalls.select(*CALL, "start")])
        return some.join(single, on=[*CALL, "start"], how="semi", maintain_order="left")


def own_times(calls: pl.DataFrame, window: Window) -> pl.DataFrame:
    """Return the calls that have time of their own in a window, with the column `ns`: that time.

    A moment inside several calls belongs to the one that began first, so that the calls of a call count once.
    """
    reach = calls.sort("start", "end", descending=[False, True])
    start, end = reach["start"].to_numpy(), reach["end"].to_numpy()
    own = intervals.own_lengths(np.maximum(start, window.start), np.minimum(end, window.end))
    return reach.with_columns(ns=pl.Series(own, dtype=pl.Int64)).filter(pl.col("ns") > 0)


def run_time(works: Sequence[Window], calls: CallsTime | None) -> Window:
    """Return the run: from the first call or work to the end of the last.

    A capture that begins in a run does not show its start, so that there the first work begins it.
    """
    if not works:
        return Window(0, 0)
    work = Window(min(work.start for work in works), max(work.end for work in works))
    if calls is None:
        return work
    has_start = calls.starts_up is not None and calls.starts_up < work.start
    begin = min(work.start, calls.window.start) if has_start else work.start
    return Window(begin, max(work.end, calls.window.end))


def calls_in(start: Times, end: Times, calls: pl.DataFrame) -> tuple[Times, Times, Times]:
    """Return which of some disjoint ascending times which call lies in, and its ns there.

    `calls` are those of one thread, in the order of time.
    """
    first, last = (calls[name].to_numpy() for name in ("start", "end"))
    low = np.searchsorted(end, first, side="right")
    counts = np.maximum(np.searchsorted(start, last, side="left") - low, 0)
    call = np.repeat(np.arange(len(calls)), counts)
    time = intervals.index_ranges(low, counts)
    return time, call, np.minimum(last[call], end[time]) - np.maximum(first[call], start[time])
