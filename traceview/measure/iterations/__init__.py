"""The iterations of a run, and what the time of each consists of (docs/definitions.md "Iterations")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import starmap

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.measure.activity import overlaps_window
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.iterations.breakdown import Breakdown, MeasuredDevices, breakdown
from traceview.measure.iterations.candidates import RepeatedRange, matching_ranges, repeating_ranges
from traceview.measure.iterations.times import IterationTimes, finish_times
from traceview.model.analysis import (
    CAUSES,
    ITERATION_FIGURES,
    Iteration,
    IterationCandidate,
    Iterations,
    NotMeasured,
    Spread,
)
from traceview.model.profilers import capture_advice
from traceview.model.trace import Trace

# A leading iteration longer than 3/2 of the median is warm-up: kernels load, caches fill, autotuning runs.
WARM_UP_NUMERATOR, WARM_UP_DENOMINATOR = 3, 2
FIGURES = tuple(f"{name}_ns" for name in ITERATION_FIGURES)


@dataclass(frozen=True, slots=True)
class IterationRanges:
    """Where the iterations are: on one thread of one process, clipped to the window, and their names.

    `source` is "range" or "period" (model.Iterations). The `skipped` first ones are warm-up; `why` is the reason.
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
    skipped: int
    why: str


def measure_iterations(
    trace: Trace,
    threads: ThreadStates,
    measured: MeasuredDevices | None = None,
    *,
    pattern: str | None = None,
    skip: int | None = None,
) -> Iterations | NotMeasured:
    """Measure every iteration, and the spread of the iterations that are not warm-up.

    `measured` has the devices that count and their gaps; by default, all devices are measured. `pattern` and `skip`
    are those of find_iterations, with the same errors.
    """
    measured = measured or MeasuredDevices.from_trace(trace, threads)
    where = find_iterations(trace, measured, pattern=pattern, skip=skip)
    if isinstance(where, NotMeasured):
        return where
    parts = breakdown(trace, threads, measured, where.process, where.start, where.end)
    figures = _iteration_figures(where, parts)
    rows, spreads = _build_iterations(where, figures, parts.idle), _spreads(figures, parts.idle, where.skipped)
    devices = [device.device for device in measured.activities]
    finish = finish_times(trace, where.process, where.start, devices)
    times = IterationTimes(where.start, where.end, finish, where.skipped)
    return Iterations(
        range=where.range,
        source=where.source,
        confidence=where.confidence,
        time_ns=times.time_ns,
        steady=times.steady,
        candidates=where.candidates,
        thread=where.thread,
        process_id=where.process,
        count=len(rows),
        skipped=where.skipped,
        skipped_why=where.why,
        wall_ns=spreads["wall_ns"],
        spreads=spreads,
        per_iteration=rows,
    )


def find_iterations(
    trace: Trace, measured: MeasuredDevices, *, pattern: str | None = None, skip: int | None = None
) -> IterationRanges | NotMeasured:
    """Return where the iterations of the devices in `measured` are, and how many of them are warm-up.

    `pattern` is a regular expression that is searched in range names. `skip` sets the number of warm-up iterations;
    by default, leading iterations that are longer than 1.5 times the median are warm-up. Raises RequestError if
    `pattern` matches no range or `skip` leaves no iteration.
    """
    ranges = trace.ranges.with_row_index("row").filter(~pl.col("process").is_in(measured.unmeasured_processes(trace)))
    if pattern is not None:
        candidate: RepeatedRange | None = matching_ranges(ranges, pattern, trace.info.file)
    else:
        candidate = repeating_ranges(ranges)
    if candidate is None:
        return NotMeasured(capture_advice(trace.info.profiler).no_iterations)
    candidate, start, end = _clip_to_window(trace, candidate)
    if len(start) == 0:
        return NotMeasured("no iteration overlaps the chosen window")
    skipped, why = _count_warm_up(trace, end - start, skip)
    return IterationRanges(
        range=candidate.name,
        source="range",
        confidence=1.0,
        candidates=(),
        thread=candidate.thread,
        process=int(trace.threads["process"][candidate.thread]),
        names=trace.ranges["name"].gather(candidate.rows).cast(pl.String).to_list(),
        start=start,
        end=end,
        skipped=skipped,
        why=why,
    )


def _clip_to_window(trace: Trace, candidate: RepeatedRange) -> tuple[RepeatedRange, Times, Times]:
    start, end = (trace.ranges[name].to_numpy()[candidate.rows] for name in ("start", "end"))
    if trace.window is None:
        return candidate, start, end
    inside = overlaps_window(start, end, trace.window)
    start, end = (np.clip(times[inside], trace.window.start, trace.window.end) for times in (start, end))
    return candidate._replace(rows=candidate.rows[inside]), start, end


def _count_warm_up(trace: Trace, wall: Times, skip: int | None) -> tuple[int, str]:
    """Return the number of warm-up iterations, and the reason."""
    if skip is not None:
        if not 0 <= skip < len(wall):
            raise RequestError(
                f"{trace.info.file}: --skip {skip} leaves none of {len(wall)} iterations; "
                f"it can be 0 to {len(wall) - 1}"
            )
        return skip, f"--skip {skip}"
    # At least half of the iterations are not longer than the median, so a steady one exists.
    limit = _twice_median(wall) * WARM_UP_NUMERATOR
    leading = int(np.flatnonzero(wall * 2 * WARM_UP_DENOMINATOR <= limit)[0])
    first = "the first" if leading == 1 else f"the first {leading}"
    return leading, f"{first} took more than 1.5 times the median" if leading else "none"


def _twice_median(values: Times) -> int:
    """Return the sum of the two middle values, because the median may be half a ns above an integer."""
    ordered = np.sort(values)
    return int(ordered[(len(ordered) - 1) // 2]) + int(ordered[len(ordered) // 2])


def _iteration_figures(where: IterationRanges, parts: Breakdown) -> dict[str, Times]:
    """Return one value per iteration by the field names of model.Iteration."""
    wall = where.end - where.start
    return {"start_ns": where.start, "end_ns": where.end, "wall_ns": wall, "idle_ns": parts.idle.sum(axis=0)} | dict(
        parts.figures
    )


def _build_iterations(
    where: IterationRanges, figures: Mapping[str, Times], idle: NDArray[np.int64]
) -> tuple[Iteration, ...]:
    columns: dict[str, Iterable[object]] = {name: values.tolist() for name, values in figures.items()}
    columns["name"] = where.names
    columns["skipped"] = (index < where.skipped for index in range(len(where.names)))
    columns["idle"] = (dict(zip(CAUSES, row, strict=True)) for row in idle.T.tolist())
    return tuple(starmap(Iteration, zip(*(columns[field.name] for field in fields(Iteration)), strict=True)))


def _spreads(figures: Mapping[str, Times], idle: NDArray[np.int64], skipped: int) -> Mapping[str, Spread]:
    """Return the spread of each figure, and of each cause of idle time as `idle_<cause>_ns`."""
    columns = {name: figures[name] for name in FIGURES}
    columns |= {f"idle_{cause}_ns": values for cause, values in zip(CAUSES, idle, strict=True)}
    return {name: spread(values[skipped:]) for name, values in columns.items()}


def spread(values: Times) -> Spread:
    """Return median, p5 and p95 in ns, linearly interpolated between ranks and rounded down."""
    ordered = np.sort(values)
    return Spread(*(_percentile(ordered, percent) for percent in (50, 5, 95)))


def _percentile(ordered: Times, percent: int) -> int:
    place, rest = divmod((len(ordered) - 1) * percent, 100)
    low = int(ordered[place])
    high = int(ordered[min(place + 1, len(ordered) - 1)])
    return low + (high - low) * rest // 100
