"""The iterations of a run, found without being told, and what each was made of (METRICS.md "Iterations")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import starmap

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.measure.activity import within
from traceview.measure.host import Host
from traceview.measure.iterations.breakdown import Breakdown, Measured, breakdown
from traceview.measure.iterations.candidates import Found, matching_ranges, repeating_ranges
from traceview.model.analysis import CAUSES, ITERATION_FIGURES, Iteration, Iterations, NotMeasured, Spread
from traceview.model.profilers import capture_advice
from traceview.model.trace import Trace

# A leading iteration this much longer than the median is warm-up (kernels load, caches fill, autotuning).
SLOW, OF = 3, 2
FIGURES = tuple(f"{name}_ns" for name in ITERATION_FIGURES)


@dataclass(frozen=True, slots=True)
class IterationRanges:
    """Where the iterations are: their ranges on one thread of one process, clipped to the window, and their names.

    So many first ones are set aside as warm-up: `skipped`, and `why`.
    """

    range: str
    thread: int
    process: int
    names: Sequence[str]
    start: Times
    end: Times
    skipped: int
    why: str


def measure_iterations(
    trace: Trace,
    of: Host,
    measured: Measured | None = None,
    *,
    pattern: str | None = None,
    skip: int | None = None,
) -> Iterations | NotMeasured:
    """Measure every iteration, and the spread over those that are not warm-up.

    `measured` saves measuring the devices again, and says which of them count; without it all do. The others are
    those of find_iterations, which raises the same.
    """
    measured = measured or Measured.of(trace, of)
    where = find_iterations(trace, measured, pattern=pattern, skip=skip)
    if isinstance(where, NotMeasured):
        return where
    parts = breakdown(trace, of, measured, where.process, where.start, where.end)
    figures = _figures(where, parts)
    rows, spreads = _iterations(where, figures, parts.idle), _spreads(figures, parts.idle, where.skipped)
    return Iterations(
        range=where.range,
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
    trace: Trace, measured: Measured, *, pattern: str | None = None, skip: int | None = None
) -> IterationRanges | NotMeasured:
    """Return where the iterations of the devices in `measured` are, and which are warm-up.

    `pattern` is a regular expression searched in range names; `skip` sets that many first iterations
    aside instead of those that look like warm-up. Raises RequestError where either fits nothing.
    """
    ranges = trace.ranges.with_row_index("row").filter(~pl.col("process").is_in(measured.left_out(trace)))
    if pattern is not None:
        found: Found | None = matching_ranges(ranges, pattern, trace.info.file)
    else:
        found = repeating_ranges(ranges)
    if found is None:
        return NotMeasured(capture_advice(trace.info.profiler).no_iterations)
    found, start, end = _in_window(trace, found)
    if len(start) == 0:
        return NotMeasured("no iteration lies in the chosen window")
    skipped, why = _skipped(trace, end - start, skip)
    return IterationRanges(
        range=found.name,
        thread=found.thread,
        process=int(trace.threads["process"][found.thread]),
        names=trace.ranges["name"].gather(found.rows).cast(pl.String).to_list(),
        start=start,
        end=end,
        skipped=skipped,
        why=why,
    )


def _in_window(trace: Trace, found: Found) -> tuple[Found, Times, Times]:
    start, end = (trace.ranges[name].to_numpy()[found.rows] for name in ("start", "end"))
    if trace.window is None:
        return found, start, end
    inside = within(start, end, trace.window)
    start, end = (np.clip(times[inside], trace.window.start, trace.window.end) for times in (start, end))
    return found._replace(rows=found.rows[inside]), start, end


def _skipped(trace: Trace, wall: Times, skip: int | None) -> tuple[int, str]:
    if skip is not None:
        if not 0 <= skip < len(wall):
            raise RequestError(
                f"{trace.info.file}: --skip {skip} leaves nothing of {len(wall)} iterations; "
                f"it can be 0 to {len(wall) - 1}"
            )
        return skip, f"--skip {skip}"
    # At least half of them are no longer than the median, so one that is steady exists.
    leading = int(np.flatnonzero(wall * 2 * OF <= _twice_median(wall) * SLOW)[0])
    first = "the first" if leading == 1 else f"the first {leading}"
    return leading, f"{first} took more than 1.5 times the median" if leading else "none"


def _twice_median(values: Times) -> int:
    """Return the sum of the two middle values: the median may lie half a ns above a whole one."""
    ordered = np.sort(values)
    return int(ordered[(len(ordered) - 1) // 2]) + int(ordered[len(ordered) // 2])


def _figures(where: IterationRanges, parts: Breakdown) -> dict[str, Times]:
    """Return one value an iteration by the field names of model.Iteration."""
    wall = where.end - where.start
    return {"start_ns": where.start, "end_ns": where.end, "wall_ns": wall, "idle_ns": parts.idle.sum(axis=0)} | dict(
        parts.figures
    )


def _iterations(where: IterationRanges, figures: Mapping[str, Times], idle: NDArray[np.int64]) -> tuple[Iteration, ...]:
    columns: dict[str, Iterable[object]] = {name: values.tolist() for name, values in figures.items()}
    columns["name"] = where.names
    columns["skipped"] = (index < where.skipped for index in range(len(where.names)))
    columns["idle"] = (dict(zip(CAUSES, row, strict=True)) for row in idle.T.tolist())
    return tuple(starmap(Iteration, zip(*(columns[one.name] for one in fields(Iteration)), strict=True)))


def _spreads(figures: Mapping[str, Times], idle: NDArray[np.int64], skipped: int) -> Mapping[str, Spread]:
    """Return the spread of each figure, and of each cause of idle time as `idle_<cause>_ns`."""
    columns = {name: figures[name] for name in FIGURES}
    columns |= {f"idle_{cause}_ns": values for cause, values in zip(CAUSES, idle, strict=True)}
    return {name: spread(values[skipped:]) for name, values in columns.items()}


def spread(values: Times) -> Spread:
    """Return median, p5 and p95 in whole ns: linear between ranks, rounded down."""
    ordered = np.sort(values)
    return Spread(*(_percentile(ordered, percent) for percent in (50, 5, 95)))


def _percentile(ordered: Times, percent: int) -> int:
    place, rest = divmod((len(ordered) - 1) * percent, 100)
    low = int(ordered[place])
    high = int(ordered[min(place + 1, len(ordered) - 1)])
    return low + (high - low) * rest // 100
