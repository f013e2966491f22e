"""The rows of iterations and the spread of their figures, from the parts of the time of each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import starmap

import numpy as np
from numpy.typing import NDArray

from traceview.intervals import Times
from traceview.measure.iterations import IterationRanges
from traceview.measure.iterations.breakdown import Breakdown
from traceview.measure.iterations.times import IterationTimes
from traceview.model.analysis import ITERATION_FIGURES, Iteration, Iterations, Spread
from traceview.model.devices import CAUSES

FIGURES = tuple(f"{name}_ns" for name in ITERATION_FIGURES)


def build_iterations(
    where: IterationRanges, parts: Breakdown, finish: Times | None, listed: Sequence[int] = ()
) -> Iterations:
    """Return the iterations at `where` with their figures; `finish` is the result of finish_times.

    `listed` are the numbers of the iterations that get a row; empty: all.
    """
    figures = _iteration_figures(where, parts)
    rows, spreads = _build_rows(where, figures, parts.idle, listed), _spreads(figures, parts.idle, where.skipped)
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
        count=len(where.start),
        skipped=where.skipped,
        skipped_why=where.why,
        wall_ns=spreads["wall_ns"],
        spreads=spreads,
        per_iteration=rows,
    )


def _iteration_figures(where: IterationRanges, parts: Breakdown) -> dict[str, Times]:
    """Return one value per iteration by the field names of model.Iteration."""
    wall = where.end - where.start
    return {"start_ns": where.start, "end_ns": where.end, "wall_ns": wall, "idle_ns": parts.idle.sum(axis=0)} | dict(
        parts.figures
    )


def _build_rows(
    where: IterationRanges, figures: Mapping[str, Times], idle: NDArray[np.int64], listed: Sequence[int]
) -> tuple[Iteration, ...]:
    numbers = listed or range(len(where.names))
    chosen = np.array(numbers, np.intp)
    columns: dict[str, Iterable[object]] = {name: values[chosen].tolist() for name, values in figures.items()}
    columns["name"] = (where.names[number] for number in numbers)
    columns["skipped"] = (number < where.skipped for number in numbers)
    columns["idle"] = (dict(zip(CAUSES, row, strict=True)) for row in idle.T[chosen].tolist())
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
    where, rest = divmod((len(ordered) - 1) * percent, 100)
    low = int(ordered[where])
    high = int(ordered[min(where + 1, len(ordered) - 1)])
    return low + (high - low) * rest // 100
