"""The iterations of a run, and what fills the time of each (docs/definitions.md "Iterations").

Its rows have the figures of each iteration, and their spread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, replace
from fractions import Fraction
from itertools import compress, starmap
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.measure.activity import overlaps_window
from traceview.measure.iterations.candidates import (
    MIN_NESTED_SHARE,
    LaunchSums,
    RepeatedRange,
    choose_phase,
    first_and_last,
    matching_ranges,
    other_phases,
    range_phases,
    repeating_ranges,
    single_passes,
    with_other_loop,
)
from traceview.measure.iterations.compilation import compiling_iterations
from traceview.measure.iterations.intact import NONE_LOST, LostIterations, intact_stretch
from traceview.measure.iterations.kinds import iteration_kinds
from traceview.measure.iterations.launches import LaunchSequence, launch_sequence
from traceview.measure.iterations.levels import MAX_SHORT, PeriodLevel
from traceview.measure.iterations.periods import Period, find_loops, level_candidate, period_name
from traceview.measure.iterations.times import (
    Breakdown,
    IterationLaunches,
    IterationTimes,
    end_of_launches,
    spread,
    unmeasured_processes,
)
from traceview.measure.nvtx import Projection, project_operations
from traceview.model.analysis import (
    CAUSES,
    ITERATION_FIGURES,
    Iteration,
    IterationCandidate,
    Iterations,
    NotMeasured,
    Spread,
)
from traceview.model.program import capture_advice
from traceview.model.trace import Trace, Window

FIGURES = tuple(f"{name}_ns" for name in ITERATION_FIGURES)


def build_iterations(located: LocatedIterations, split: Breakdown) -> Iterations:
    """Return the iterations with their figures."""
    where, work, times = located.where, located.work, located.times
    figures = _iteration_figures(where, split)
    rows = _build_rows(where, figures, split.idle, times.finish)
    spreads = _spreads(figures, split.idle, where.skipped)
    return Iterations(
        range=where.range,
        source=where.source,
        confidence=where.confidence,
        time_ns=times.time_ns,
        steady=times.steady,
        candidates=where.candidates,
        thread=where.thread,
        process_id=where.process,
        count=len(where.start),
        skipped=where.skipped,
        skipped_why=where.why,
        wall_ns=spreads["wall_ns"],
        spreads=spreads,
        per_iteration=rows,
        kinds=iteration_kinds(times, work, where.first_loop),
    )


def _iteration_figures(where: IterationRanges, split: Breakdown) -> dict[str, Times]:
    """Return one value per iteration by the field names of model.Iteration."""
    wall = where.end - where.start
    return {"start_ns": where.start, "end_ns": where.end, "wall_ns": wall, "idle_ns": split.idle.sum(axis=0)} | dict(
        split.figures
    )


def _build_rows(
    where: IterationRanges, figures: Mapping[str, Times], idle: NDArray[np.int64], finish: Times | None
) -> tuple[Iteration, ...]:
    columns: dict[str, Iterable[object]] = {name: values.tolist() for name, values in figures.items()}
    columns["name"] = where.names
    columns["skipped"] = (number < where.skipped for number in range(len(where.names)))
    columns["gpu_end_ns"] = [None] * len(where.names) if finish is None else finish.tolist()
    columns["idle"] = (dict(zip(CAUSES, row, strict=True)) for row in idle.T.tolist())
    return tuple(starmap(Iteration, zip(*(columns[field.name] for field in fields(Iteration)), strict=True)))


def _spreads(figures: Mapping[str, Times], idle: NDArray[np.int64], skipped: int) -> Mapping[str, Spread]:
    """Return the spread of each figure, and of each cause of idle time as `idle_<cause>_ns`."""
    columns = {name: figures[name] for name in FIGURES}
    columns |= {f"idle_{cause}_ns": values for cause, values in zip(CAUSES, idle, strict=True)}
    return {name: spread(values[skipped:]) for name, values in columns.items()}


# A leading iteration longer than this share of the median is warm-up: kernels load, caches fill, autotuning runs.
WARM_UP = Fraction(3, 2)
# A period begins with its first launch, so the first one lacks what the host loads before that.
WARM_UP_PERIOD = Fraction(7, 5)
# One more leading iteration is warm-up if it stands out from later ones that are alike: 1.1 times their median, and
# ten times their median deviation above it.
MIN_ALIKE, MIN_OUTLIER, OUTLIER_SPREADS = 4, 1.1, 10
MAX_WARM_UP = 3  # periods; a quarter of all periods, if that is more
SET_UP = 10  # times the median; what only the first iterations take occurs once
UNPROVEN = 0.5  # confidence in ranges that no GPU work proves
# Repetitions of a few launches, and share of the run, of calls outside a loop: `tinydl_tests` of round 12 has six unit
# tests in 1% of its run.
MAX_CALLS, SMALL_PART = 7, 0.05
MAX_COMPARED = 24  # repetitions whose costliest kernels are compared: `cutlass_large` of round 12 has five kernels
MAX_PROCESSES = 4  # whose launches are searched for a period


class IterationRanges(NamedTuple):
    """Where the iterations are: on one thread of one process, clipped to the window, and their names.

    `source` is "range" or "period" (model.Iterations). The `skipped` first ones are warm-up; `why` is the reason.
    `clipped` says that a window cuts them. `first_loop` is the number of iterations of the first loop if there are two.
    """

    range: str
    source: str
    confidence: float
    candidates: tuple[IterationCandidate, ...]
    thread: int
    process: int
    names: Sequence[str]
    start: Times
    end: Times
    skipped: int = 0
    why: str = "none"
    clipped: bool = False
    first_loop: int | None = None


class LocatedIterations(NamedTuple):
    """Where the iterations are, and what they launch; `lost` are those that are left out (intact_stretch)."""

    where: IterationRanges
    work: IterationLaunches
    lost: LostIterations = NONE_LOST

    @property
    def times(self) -> IterationTimes:
        """When they start and end on the host and on the GPU."""
        return IterationTimes(self.where.start, self.where.end, self.work.finish, self.where.skipped)


def locate_iterations(
    trace: Trace,
    devices: Sequence[int],
    projection: Projection | None = None,
    pattern: str | None = None,
    skip: int | None = None,
) -> LocatedIterations | NotMeasured:
    """Return where the iterations of `devices`, rows of Trace.devices, are, and what they launch.

    They are the ranges of the phase that launches most GPU work, or the repeating unit of the launches if no phase
    qualifies. What ranges launch outside the window counts, too. `projection` is that of the trace, if it is known.
    `pattern` is a regular expression that is searched in range names. `skip` sets the number of warm-up iterations; by
    default, leading iterations that are longer than 1.5 times the median are warm-up. Raises RequestError if `pattern`
    matches no range or `skip` leaves no iteration.
    """
    whole = trace if trace.window is None else replace(trace, window=None)
    others = unmeasured_processes(trace, devices)
    ranges = trace.ranges.with_row_index("row").filter(~pl.col("process").is_in(others))
    if pattern is None and trace.info.trust.unrecorded:
        return NotMeasured("most CUDA calls are not recorded")
    if pattern is None:
        detected = _detect(whole, devices, projection, ranges)
    else:
        detected = _from_ranges(trace, matching_ranges(ranges, pattern, trace.info.file))
    if detected is None:
        return NotMeasured(capture_advice(trace.info.profiler, trace.program)["no_iterations"])
    where = _clip_to_window(detected, trace.window)
    if len(where.start) == 0:
        return NotMeasured("no iteration overlaps the chosen window")
    kept, lost = intact_stretch(whole, where.process, where.start, where.end)
    where = _with_warm_up(trace, _iterations_in(where, kept), skip)
    until = end_of_launches(where.start, where.end)
    work = IterationLaunches.from_trace(whole, where.process, where.start, until, devices)
    if skip is None:
        where = _with_set_up(where, work)
    return LocatedIterations(_up_to_last_work(where, work), work, lost)


def _iterations_in(where: IterationRanges, kept: slice) -> IterationRanges:
    if kept == slice(0, len(where.start)):
        return where
    first_loop = len(range(len(where.start))[kept][: max((where.first_loop or 0) - kept.start, 0)]) or None
    return where._replace(
        start=where.start[kept], end=where.end[kept], names=list(where.names[kept]), first_loop=first_loop
    )


def _with_warm_up(trace: Trace, where: IterationRanges, skip: int | None) -> IterationRanges:
    ratio = WARM_UP if where.source == "range" else WARM_UP_PERIOD
    wall = where.end - where.start
    skipped, why = _count_warm_up(trace, wall if skip is not None else wall[: where.first_loop], skip, ratio)
    if where.source == "period" and skip is None and skipped > max(MAX_WARM_UP, len(where.start) // 4):
        skipped, why = 0, "none"  # iterations that become shorter and shorter, like those of an elimination
    if skip is None:
        first = slice(where.first_loop)
        compiles = np.flatnonzero(compiling_iterations(trace, where.process, where.start[first], where.end[first]))
        early = compiles[(compiles >= skipped) & (2 * (compiles + 1) <= len(where.start[first]))]
        if len(early):
            skipped, why = int(early[-1]) + 1, "the last compiles or loads kernels"
    return where._replace(skipped=skipped, why=why)


def _with_set_up(where: IterationRanges, work: IterationLaunches) -> IterationRanges:
    """Return the iterations with leading ones skipped as well that the GPU begins late, while something is set up.

    The host of an earlier iteration may do that, as for the connections of a library's first collective. These few take
    more than SET_UP times the median, and the others of the loop less than half as long.
    """
    own = LocatedIterations(where, work).times.lengths[: (where.first_loop or len(where.start)) - where.skipped]
    count = int((own > SET_UP * np.median(own)).sum()) if len(own) else 0
    if not 0 < count <= MAX_WARM_UP or own[:count].min() <= 2 * own[count:].max():
        return where
    skipped = where.skipped + count
    why = f"{_first_words(skipped)} set up what takes more than {SET_UP} times the median"
    return where._replace(skipped=skipped, why=why)


def _detect(
    trace: Trace, devices: Sequence[int], projection: Projection | None, ranges: pl.DataFrame
) -> IterationRanges | None:
    layers = np.empty(0, np.int64)
    if trace.operations["launch"].null_count() == len(trace.operations):
        # Without launches, no range can be tied to GPU work.
        longest = repeating_ranges(ranges)
        if longest is not None:
            return _from_ranges(trace, longest, UNPROVEN)
    elif not ranges.is_empty():
        phases = range_phases(ranges, LaunchSums.from_trace(trace, projection or project_operations(trace)))
        chosen = choose_phase(phases)
        if chosen is not None and chosen.is_layer:
            layers = chosen.start
        elif chosen is not None and not _in_single_pass(ranges, chosen.start):
            first, last = first_and_last(phases, chosen)
            rows, start, end, first_loop = with_other_loop(phases, first, last.end)
            loops = first.ranges._replace(rows=rows)
            where = _from_ranges(trace, loops, chosen.confidence, other_phases(phases, chosen))
            return where._replace(start=start, end=end, first_loop=first_loop)
    repeated = _from_launches(trace, devices)
    if repeated is None or _in_single_pass(ranges, repeated.start):
        return None
    inside = np.searchsorted(layers, repeated.start, side="right")  # a repetition in each layer is that layer
    is_layer = len(layers) > 0 and len(np.unique(inside)) >= MIN_NESTED_SHARE * len(repeated.start)
    return None if is_layer else repeated


def _in_single_pass(ranges: pl.DataFrame, starts: Times) -> bool:
    """Return whether nearly all iterations would begin in one range that is a whole step: they are its layers."""
    opened, closed = single_passes(ranges)
    inside = np.searchsorted(starts, closed) - np.searchsorted(starts, opened)
    return bool((inside >= MIN_NESTED_SHARE * len(starts)).any())


def _from_ranges(
    trace: Trace, ranges: RepeatedRange, confidence: float = 1.0, others: tuple[IterationCandidate, ...] = ()
) -> IterationRanges:
    start, end = (trace.ranges[name].to_numpy()[ranges.rows] for name in ("start", "end"))
    return IterationRanges(
        range=ranges.name,
        source="range",
        confidence=confidence,
        candidates=others,
        thread=ranges.thread,
        process=int(trace.threads["process"][ranges.thread]),
        names=trace.ranges["name"].gather(ranges.rows).cast(pl.String).to_list(),
        start=start,
        end=end,
    )


def _from_launches(trace: Trace, devices: Sequence[int]) -> IterationRanges | None:
    """Return the repeating unit of the launches of the process with the most time on the devices."""
    work = trace.operations.lazy().filter(pl.col("device").is_in(list(devices)))
    times = work.group_by("process").agg((pl.col("end") - pl.col("start")).sum().alias("total")).collect()
    for process in times.sort("total", "process", descending=[True, False])["process"].head(MAX_PROCESSES).to_list():
        sequence = launch_sequence(trace, process)
        period, levels = find_loops(sequence, trace.program.training)
        if period is not None and not _are_separate_calls(trace, process, period):
            return _from_period(process, sequence, period, levels)
    return None


def _are_separate_calls(trace: Trace, process: int, period: Period) -> bool:
    """Return whether few repetitions are calls outside a loop.

    They take little of the run, as the calls of unit tests do, or each has another costliest kernel by its full name:
    a benchmark of the kernels of a template runs one after the other.
    """
    if trace.api.is_empty():
        return False
    count, calls = len(period.first), trace.api.select(pl.col("start").min(), pl.col("end").max())
    few = count <= MAX_CALLS and (period.last - period.first).max() <= MAX_SHORT
    if few and period.end[-1] - period.start[0] < SMALL_PART * (calls["end"][0] - calls["start"][0]):
        return True
    if count > MAX_COMPARED:
        return False
    own = (pl.col("process") == process) & pl.col("launch").is_not_null() & (pl.col("class") == "compute")
    lazy = trace.operations.lazy().filter(own)
    kernels = lazy.select("launch", "shape", ns=pl.col("end") - pl.col("start")).collect()
    at = np.searchsorted(period.start, trace.api["start"].to_numpy()[kernels["launch"].to_numpy()], side="right") - 1
    names = trace.shapes["demangled"].fill_null("")[kernels["shape"].to_numpy()]
    sums = kernels.with_columns(names.alias("name"), at=pl.Series(at)).filter(pl.col("at") >= 0, pl.col("name") != "")
    sums = sums.group_by("at", "name").agg(pl.col("ns").sum()).sort("ns", "name", descending=True)
    costliest = sums.unique("at", keep="first")["name"]
    return bool(len(costliest) == count == costliest.n_unique())


def _from_period(
    process: int, sequence: LaunchSequence, period: Period, levels: Sequence[PeriodLevel]
) -> IterationRanges:
    middle = len(period.first) // 2
    threads = np.bincount(np.maximum(sequence.thread, 0))
    return IterationRanges(
        range=period_name(sequence, int(period.first[middle]), int(period.last[middle])),
        source="period",
        confidence=period.confidence,
        candidates=tuple(level_candidate(sequence, level) for level in levels),
        thread=int(np.argmax(threads)),
        process=process,
        names=[f"iteration {index}" for index in range(len(period.start))],
        start=period.start,
        end=period.end,
        first_loop=period.first_loop,
    )


def _clip_to_window(where: IterationRanges, window: Window | None) -> IterationRanges:
    if window is None:
        return where
    inside = overlaps_window(where.start, where.end, window)
    start, end = (np.clip(times[inside], window.start, window.end) for times in (where.start, where.end))
    names, first_loop = list(compress(where.names, inside)), int(inside[: where.first_loop].sum()) or None
    return where._replace(start=start, end=end, names=names, clipped=True, first_loop=first_loop)


def _up_to_last_work(where: IterationRanges, work: IterationLaunches) -> IterationRanges:
    """Return the iterations with the last period up to the end of its own work.

    Every other period lasts until the next one begins. The host leaves the last one when it has launched its work.
    """
    times = LocatedIterations(where, work).times
    if where.source != "period" or times.runs_ahead or where.clipped:
        return where
    return where._replace(end=np.append(where.end[:-1], times.last_border))


def _count_warm_up(trace: Trace, wall: Times, skip: int | None, ratio: Fraction) -> tuple[int, str]:
    """Return the number of warm-up iterations, and the reason."""
    if skip is not None:
        if not 0 <= skip < len(wall):
            raise RequestError(
                f"{trace.info.file}: --skip {skip} leaves none of {len(wall)} iterations; "
                f"it can be 0 to {len(wall) - 1}"
            )
        return skip, f"--skip {skip}"
    # At least half of the iterations are not longer than the median, so a steady one exists.
    limit = _twice_median(wall) * ratio.numerator
    leading = int(np.flatnonzero(wall * 2 * ratio.denominator <= limit)[0])
    if _stands_out(wall, leading):
        return leading + 1, f"{_first_words(leading + 1)} took longer than all later ones, which are alike"
    return leading, f"{_first_words(leading)} took more than {float(ratio):.3g} times the median" if leading else "none"


def _first_words(count: int) -> str:
    return "the first" if count == 1 else f"the first {count}"


def _stands_out(wall: Times, index: int) -> bool:
    """Return whether an iteration is much longer than the median and than every later one, which are alike."""
    later = wall[index + 1 :]
    if len(later) < MIN_ALIKE:
        return False
    median = float(np.median(later))
    spread = float(np.median(np.abs(later - median)))
    return bool(wall[index] > max(MIN_OUTLIER * median, median + OUTLIER_SPREADS * spread, later.max()))


def _twice_median(values: Times) -> int:
    """Return the sum of the two middle values, because the median may be half a ns above an integer."""
    ordered = np.sort(values)
    return int(ordered[(len(ordered) - 1) // 2]) + int(ordered[len(ordered) // 2])
