"""Which NVTX ranges are the iterations of a run (docs/definitions.md "Iterations")."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.errors import RequestError
from traceview.intervals import BEFORE_ALL, Times
from traceview.measure.nvtx import (
    LAYER_NAME,
    PASS_WORDS,
    STEP_WORDS,
    Projection,
    phase_names,
    without_library_ranges,
)
from traceview.model.analysis import IterationCandidate
from traceview.model.frozen import dataclass
from traceview.model.names import fold_numbers, names_with_match
from traceview.model.trace import Trace

MIN_REPEATS, MIN_STEPS = 3, 2  # ranges of a name; numbered steps say that they repeat
NUMBERED_STEP = STEP_WORDS.replace("([^a-z]|$)", "([^a-z].*)?#")
MAX_LISTED_NAMES = 5
MAX_SHOWN_NAME = 200  # characters of a name in an error
MIN_ACTIVE = 0.9  # share of a candidate's ranges that launch GPU work
MIN_SHARE = 0.2  # share of the GPU work that the process launches, by time or count
MIN_LISTED_SHARE = 0.01
MAX_PHASES = 24  # phases that are compared with each other
MIN_NESTED, MIN_NESTED_SHARE = 10, 0.9


class RepeatedRange(NamedTuple):
    """The ranges that are the iterations: their name with `#` for numbers, their thread, and rows of Trace.ranges."""

    name: str
    thread: int
    rows: Times


class Phase(NamedTuple):
    """Ranges of one name that repeat on a thread, and what they launch."""

    ranges: RepeatedRange
    start: Times
    end: Times
    active: float  # share of the ranges that launch GPU work
    time_share: float  # share of the GPU time that the process launches
    count_share: float
    own: bool  # its thread launches some of it; false where only other threads of the process do

    @property
    def qualifies(self) -> bool:
        """Whether the phase may be the iteration."""
        return self.active >= MIN_ACTIVE and max(self.time_share, self.count_share) >= MIN_SHARE

    @property
    def confidence(self) -> float:
        """The confidence, 0 to 1, that the phase is the iteration, if it qualifies."""
        return self.active * (0.5 + min(self.time_share, 0.5))

    @property
    def candidate(self) -> IterationCandidate:
        """The phase in the form that reports show."""
        time = int(self.start[-1] - self.start[0]) // (len(self.start) - 1)
        return IterationCandidate(self.ranges.name, "range", len(self.start), time, self.time_share)

    @property
    def is_layer(self) -> bool:
        """Whether the name says that the ranges are the layers of a model."""
        return re.search(LAYER_NAME, self.ranges.name) is not None

    @property
    def is_step(self) -> bool:
        """Whether the name says that the ranges are the steps of a loop."""
        return re.search(STEP_WORDS, self.ranges.name) is not None

    def precedes(self, later: Phase) -> bool:
        """Return whether the ranges of two phases alternate, these first, as forward and backward passes."""
        if self.ranges.thread != later.ranges.thread or len(self.start) != len(later.start):
            return False
        return bool((self.end <= later.start).all() and (later.end[:-1] <= self.start[1:]).all())

    def contains(self, inner: Phase) -> bool:
        """Return whether nearly all ranges of another phase begin in these."""
        return int(inner.repeats_in(self).sum()) >= MIN_NESTED_SHARE * len(inner.start)

    def repeats_in(self, outer: Phase) -> Times:
        """Return how many of the ranges begin in each range of another phase."""
        first, last = (np.searchsorted(self.start, edge, side="left") for edge in (outer.start, outer.end))
        return last - first


def matching_ranges(ranges: pl.DataFrame, pattern: str, file: str) -> RepeatedRange:
    """Return the ranges whose names contain a match of `pattern`, on the thread where these take the most time.

    `ranges` is model.RANGES with the column `row`. Raises RequestError, naming `file`, if `pattern` cannot be searched
    or matches no range.
    """
    names = ranges["name"].cast(pl.String)
    matches = names_with_match(names, pattern, f"{file}: --iteration")
    if matches.is_empty():
        raise RequestError(f"{file}: no range matches --iteration {pattern!r}; {_frequent_names(names)}")
    chosen = ranges.filter(names.is_in(matches.implode()))
    best = _longest_candidate(chosen.select("row", "start", "end", "thread", pl.lit(pattern).alias("folded")))
    best_names = chosen.filter(chosen["row"].is_in(best.rows.tolist()))["name"].cast(pl.String)
    shapes = fold_numbers(best_names).unique().sort().to_list()
    return best._replace(name=" | ".join(shapes[:3]))


def _frequent_names(names: pl.Series) -> str:
    if names.is_empty():
        return "the capture has none: put a range around each step"
    counts = names.value_counts().sort(["count", "name"], descending=[True, False])
    listed = ", ".join(repr(name[:MAX_SHOWN_NAME]) for name in counts["name"].head(MAX_LISTED_NAMES).to_list())
    return f"the most frequent are {listed}"


def repeating_ranges(ranges: pl.DataFrame) -> RepeatedRange | None:
    """Return the ranges of the outermost name that repeats on a thread with the most total time; None if none repeats.

    This is the rule for a capture without GPU work. `ranges` is model.RANGES with the column `row`. A range inside a
    range of another repeating name does not count, nor does a range of a library.
    """
    ranges = without_library_ranges(ranges)
    ranges = ranges.filter(~ranges["name"].cast(pl.String).str.starts_with("Xla"))  # each may be another program
    names = ranges["name"].cast(pl.String)
    unique = names.unique()
    frame = ranges.select(
        "row",
        "start",
        "end",
        "thread",
        names.replace_strict(unique, _fold_counters(unique), return_dtype=pl.String).alias("folded"),
    )
    repeats = pl.len().over("thread", "folded") >= MIN_REPEATS
    repeated = frame.filter(repeats)
    repeated = repeated.filter(pl.Series(_is_outermost(repeated))).filter(repeats)
    return None if repeated.is_empty() else _longest_candidate(repeated)


def _fold_counters(names: pl.Series) -> pl.Series:
    """Return distinct names with # for their numbers; a number stays where no two names differ in it: `3D`."""
    folded = fold_numbers(names)
    return folded.zip_with(folded.is_duplicated(), names)


@dataclass(frozen=True, slots=True)
class LaunchSums:
    """What the ranges and processes of a capture launch.

    `count` and `gpu_ns` have an entry for each row of Trace.ranges: the number of operations that the range launches,
    and their GPU time; `own` is the number that the range's thread launches. A launch whose work the capture lacks
    counts as one operation without time. `processes` has a row for each process: process, total_ns and total_count of
    its operations with a launch.
    """

    count: Times
    gpu_ns: Times
    own: Times
    processes: pl.DataFrame

    @classmethod
    def from_trace(cls, trace: Trace, projection: Projection) -> LaunchSums:
        """Add up the launches of a trace; `projection` is the result of project_operations."""
        count, gpu_ns, own = _launched_work(trace, projection)
        totals = _process_totals(trace)
        if len(trace.lost):
            lost = trace.api.select("start", "process", "thread")[trace.lost["launch"]]
            count, own = count + _inside_ranges(trace, lost, "process"), own + _inside_ranges(trace, lost, "thread")
            more = lost.group_by("process").agg(lost=pl.len())
            totals = totals.join(more, on="process", how="full", coalesce=True).fill_null(0)
            totals = totals.select("process", "total_ns", pl.col("total_count") + pl.col("lost"))
        return cls(count, gpu_ns, own, totals)


def range_phases(ranges: pl.DataFrame, launched: LaunchSums) -> list[Phase]:
    """Return the phases that repeat and launch GPU work, the largest share first; among equals, the outermost first.

    `ranges` is model.RANGES with the column `row`.
    """
    count, gpu_ns, totals = launched.count, launched.gpu_ns, launched.processes
    ranges = without_library_ranges(ranges)
    rows = ranges["row"].to_numpy()
    frame = ranges.select("row", "start", "end", "thread", "process").with_columns(
        phase_names(ranges).alias("phase"),
        pl.Series("count", count[rows]),
        pl.Series("gpu_ns", gpu_ns[rows]),
        pl.Series("own", launched.own[rows] > 0),
    )
    key = ("thread", "phase")
    is_step = pl.col("phase").cast(pl.String).str.contains(NUMBERED_STEP)
    least = pl.when(is_step).then(MIN_STEPS).otherwise(MIN_REPEATS)
    frame = frame.filter(pl.len().over(key) >= least).with_columns(pl.struct(key).rank("dense").alias("group"))
    frame = frame.filter(pl.Series(_is_outermost(frame.with_columns(thread="group"))))
    phases = (
        frame.group_by(*key, "process")
        .agg(
            pl.col("row", "start", "end"),
            (pl.col("count") > 0).mean().alias("active"),
            pl.col("gpu_ns", "count").sum(),
            pl.col("own").any(),
            (pl.col("end") - pl.col("start")).sum().alias("host"),
        )
        .filter(pl.col("row").list.len() >= least)
        .join(totals, on="process")
        .with_columns(pl.col("gpu_ns") / pl.col("total_ns").clip(1), pl.col("count") / pl.col("total_count"))
        .filter(pl.col("active") >= MIN_ACTIVE, pl.max_horizontal("gpu_ns", "count") >= MIN_LISTED_SHARE)
        .sort([(pl.col("gpu_ns") * 100).floor(), "host", "thread", "phase"], descending=[True, True, False, False])
    )
    return [_phase(phases[index]) for index in range(min(len(phases), MAX_PHASES))]


def single_passes(ranges: pl.DataFrame) -> tuple[Times, Times]:
    """Return start and end of the ranges that are the only step, or the only pass over a model, of their name.

    What repeats in one of them are layers. `ranges` is model.RANGES.
    """
    named = ranges.with_columns(phase_names(ranges)).filter(pl.len().over("thread", "phase") == 1)
    passes = named.filter(pl.col("phase").cast(pl.String).str.contains(PASS_WORDS))
    return passes["start"].to_numpy(), passes["end"].to_numpy()


def _phase(row: pl.DataFrame) -> Phase:
    rows, start, end = (row[name].explode().to_numpy().astype(np.int64) for name in ("row", "start", "end"))
    ranges = RepeatedRange(row["phase"].item(), row["thread"].item(), rows)
    return Phase(ranges, start, end, *(row[name].item() for name in ("active", "gpu_ns", "count", "own")))


def _launched_work(trace: Trace, projection: Projection) -> tuple[Times, Times, Times]:
    """Return the number of operations that each range launches, their GPU time in ns, and how many its thread does."""
    stretches = projection.stretches
    sums = np.zeros((3, len(stretches.first) + 1), np.int64)
    if len(projection.begin):
        length = (trace.operations["end"] - trace.operations["start"]).to_numpy()
        count = np.diff(projection.begin, append=projection.operations)
        runs = (count, np.add.reduceat(length, projection.begin), np.where(projection.via_process, 0, count))
        for total, values in zip(sums, runs, strict=True):
            np.add.at(total, projection.stretch + 1, values)
    running = np.cumsum(sums, axis=1)
    launched, nesting = np.zeros((3, len(trace.ranges)), np.int64), stretches.nesting
    # Stretches are ordered by thread and begin where a range of the thread opens or closes.
    borders = np.flatnonzero(np.diff(stretches.thread, prepend=-2, append=np.iinfo(np.int64).max)).tolist()
    for first, last in pairwise(borders):
        own = slice(*nesting.edges.get(int(stretches.thread[first]), (0, 0)))
        edges = (nesting.start[own], nesting.end[own])
        begin, stop = (first + np.searchsorted(stretches.first[first:last], times) for times in edges)
        launched[:, nesting.rows[own]] = running[:, stop] - running[:, begin]
    return launched[0], launched[1], launched[2]


def _inside_ranges(trace: Trace, calls: pl.DataFrame, place: str) -> Times:
    """Return how many of some ascending calls of its process, or of its thread, begin in each range."""
    inside = np.zeros(len(trace.ranges), np.int64)
    start, end, where = (trace.ranges[name].to_numpy() for name in ("start", "end", place))
    for key, chosen in calls.group_by(place):
        rows, moments = np.flatnonzero(where == key[0]), chosen["start"].sort().to_numpy()
        inside[rows] = np.searchsorted(moments, end[rows]) - np.searchsorted(moments, start[rows])
    return inside


def _process_totals(trace: Trace) -> pl.DataFrame:
    """Return the number of operations with a launch of each process, and their GPU time."""
    return (
        trace.operations.select("launch", "process", "start", "end")
        .filter(pl.col("launch").is_not_null())
        .group_by("process")
        .agg((pl.col("end") - pl.col("start")).sum().alias("total_ns"), pl.len().alias("total_count"))
    )


def choose_phase(phases: Sequence[Phase]) -> Phase | None:
    """Return the phase that is the iteration: the first that qualifies, or the iterations nested in it.

    A phase whose thread launches nothing itself, such as the executor of a data loader, comes after the others. Steps
    by name come before the layers in them.
    """
    qualified = [phase for phase in phases if phase.qualifies]
    chosen = _innermost(qualified, next((phase for phase in qualified if phase.own), next(iter(qualified), None)))
    if chosen is None or chosen.is_step:
        return chosen
    return next((phase for phase in qualified if phase.is_step and phase.own and phase.contains(chosen)), chosen)


def first_and_last(phases: Sequence[Phase], chosen: Phase) -> tuple[Phase, Phase]:
    """Return the phases that begin and end an iteration which has several, one after another."""
    before = [phase for phase in phases if phase.precedes(chosen)]
    after = [phase for phase in phases if chosen.precedes(phase)]
    first = min([chosen, *before], key=lambda phase: int(phase.start[0]))
    last = max([chosen, *after], key=lambda phase: int(phase.end[-1]))
    return first, last


def with_other_loop(phases: Sequence[Phase], loop: Phase, end: Times) -> tuple[Times, Times, Times, int]:
    """Return rows, start and end of the ranges of a loop and of the largest loop before or after it.

    `loop` begins each iteration, `end` ends it. The other loop has MIN_SHARE of the GPU work. The last value is the
    number of iterations of the first loop.
    """
    for phase in phases:
        outside = (phase.start >= end[-1]) | (phase.end <= loop.start[0])
        share = float(outside.mean()) * max(phase.time_share, phase.count_share)
        if (
            phase.own
            and phase.ranges.thread == loop.ranges.thread
            and outside.sum() >= MIN_REPEATS
            and share >= MIN_SHARE
        ):
            pairs = zip((phase.ranges.rows, phase.start, phase.end), (loop.ranges.rows, loop.start, end), strict=True)
            rows, start, end = (np.concatenate([other[outside], own]) for other, own in pairs)
            order = np.argsort(start, kind="stable")
            before = int((phase.end <= loop.start[0]).sum())
            return rows[order], start[order], end[order], before or len(loop.start)
    return loop.ranges.rows, loop.start, end, len(loop.start)


def _innermost(phases: Sequence[Phase], chosen: Phase | None) -> Phase | None:
    """Return a phase, or the iterations of this loop of loops. The layers of a step do not count."""
    while chosen is not None:
        outer = chosen
        nested = (
            phase
            for phase in phases
            if (phase.is_step or not outer.is_step)
            and phase.time_share >= MIN_NESTED_SHARE * outer.time_share
            and phase.repeats_in(outer).min() >= MIN_NESTED
            and phase.ranges.thread == outer.ranges.thread
        )
        chosen = next(nested, None)
        if chosen is None:
            return outer
    return None


def other_phases(phases: Sequence[Phase], chosen: Phase) -> tuple[IterationCandidate, ...]:
    """Return the other phases that repeat, such as epochs, validation and micro-batches, but not phases of a step."""
    listed = []
    for phase in phases:
        shorter = np.median(phase.end - phase.start) <= np.median(chosen.end - chosen.start)
        inside = shorter and int(phase.repeats_in(chosen).sum()) > len(phase.start) // 2
        several = phase.qualifies and len(phase.start) >= 2 * len(chosen.start)
        if phase is not chosen and (several or not inside):
            listed.append(phase.candidate)
    return tuple(listed[:MAX_LISTED_NAMES])


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
