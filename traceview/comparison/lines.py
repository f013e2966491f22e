"""Compare the source lines that made the GPU wait: matched by file, function and line, then by file and function."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.comparison.align import AlignedIterations
from traceview.comparison.throughput import Series, mean_change
from traceview.intervals import Times
from traceview.measure.gaps import ThreadStates
from traceview.measure.host import HostIdle
from traceview.model.analysis import Analysis, Iterations
from traceview.model.comparison import FigureChange, LineChange

MAX_LINES = 200


class Line(NamedTuple):
    """A source line; 0 stands for native code, which has functions alone."""

    file: str
    function: str
    line: int


LineSamples = Mapping[Line, Times]  # idle ns of each iteration
Match = tuple[Line | None, Line | None]


def sample_lines(analysis: Analysis, at: AlignedIterations) -> LineSamples | None:
    """Return the idle time of each line in each iteration, the mean over the GPUs; None without stacks.

    Time belongs to the iteration in which its sample was due, or in which its exactly known call began.
    """
    trace = analysis.trace
    host_idle = None if trace.evidence.samples.is_empty() else HostIdle.build(trace, ThreadStates.from_trace(trace))
    if host_idle is None:
        return None
    iterations, devices = analysis.iterations, analysis.devices
    if isinstance(iterations, Iterations):
        devices = tuple(device for device in devices if iterations.process_id in device.process_ids)
    cells = host_idle.line_cells([device.gaps.frame for device in devices])
    placed = cells.with_columns(place=at.places(cells["moment"].to_numpy())).filter(pl.col("place") >= 0)
    sums = placed.group_by("file", "function", "line", "place").agg(pl.col("idle_ns").sum())
    lines: dict[Line, Times] = defaultdict(lambda: np.zeros(len(at.start), np.int64))
    for file, function, line, iteration, ns in sums.iter_rows():
        lines[Line(file, function, line)][iteration] += ns // len(devices)
    return lines


def line_changes(
    before: LineSamples | None, after: LineSamples | None, base: Series, other: Series, min_change: float
) -> tuple[LineChange, ...]:
    """Compare lines, the largest change first. `base` and `other` are the times of the iterations.

    A change below the share `min_change` of the base's time is noise.
    """
    if before is None or after is None:
        return ()
    least = min_change * base.mean
    changes = [
        LineChange(
            file=(new or old or Line("", "", 0)).file,
            function=(new or old or Line("", "", 0)).function,
            line=new.line if new else None,
            line_before=old.line if old else None,
            idle=_judged(mean_change("idle", _series(base, before, old), _series(other, after, new)), least),
        )
        for old, new in _matches(before, after)
    ]
    changes.sort(key=lambda change: (-abs(change.idle.difference), change.file, change.function, change.line or 0))
    return tuple(changes[:MAX_LINES])


def _series(times: Series, lines: LineSamples, line: Line | None) -> Series:
    return times.with_values(np.zeros(len(times.values), np.int64) if line is None else lines[line])


def _judged(change: FigureChange, least: float) -> FigureChange:
    return replace(change, verdict="noise") if abs(change.difference) < least else change


def _matches(before: LineSamples, after: LineSamples) -> Iterator[Match]:
    """Yield pairs of lines; the only other line of a function in both captures is one that moved."""
    same = before.keys() & after.keys()
    yield from ((line, line) for line in sorted(same))
    moved: dict[tuple[str, str], tuple[list[Line], list[Line]]] = defaultdict(lambda: ([], []))
    for side, lines in enumerate((before, after)):
        for line in sorted(lines.keys() - same):
            moved[line.file, line.function][side].append(line)
    for old, new in moved.values():
        if len(old) == len(new) == 1:
            yield old[0], new[0]
        else:
            yield from ((line, None) for line in old)
            yield from ((None, line) for line in new)
