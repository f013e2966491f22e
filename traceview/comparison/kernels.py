"""Compare kernels, per call and per iteration, and the source lines that made the GPU wait.

Kernels are matched by name and launch shape first, then by name; lines by file, function and line, then by file and
function.

A change of precision, library or fusion changes the kernels of a step, but not its work. If one capture launches all
kernels that both captures have k times as often, an iteration of this capture is k iterations of the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.comparison.align import AlignedIterations
from traceview.comparison.change import Series, change_between, figure_change, mean_change
from traceview.intervals import Times
from traceview.measure.gaps import ThreadStates
from traceview.measure.host import HostIdle
from traceview.measure.kernels.families import shape_kinds
from traceview.model.analysis import Analysis, Iterations
from traceview.model.comparison import FigureChange, IterationWork, KernelChange, LineChange
from traceview.model.frozen import dataclass
from traceview.model.trace import SOURCES

Floats = NDArray[np.float64]

MAX_SHAPES = 16  # launch shapes per name; a name with more, which depend on the data, is compared as a whole
SAME = 0.1  # counts that differ by less than this share are equal
MIN_MULTIPLE = 1.5
MIN_COMMON = 0.5  # share of the launches whose names both captures have
MIN_AGREEING = 0.8  # share of these launches whose names have the same ratio of counts


class KernelShape(NamedTuple):
    """Kernels of one name and launch shape. A size that a capture does not hold, such as that of a graph, is ()."""

    name: str
    label: str
    grid: tuple[int, ...]
    block: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class KernelSamples:
    """Kernels and whole graphs of each iteration.

    The rows of `place` (the iteration), `count` and `time` (ns) from `first[i]` to `first[i + 1]` are those of
    `shapes[i]`. With `is_total` all are in place 0: sums over the iterations. `is_complete` is False if kernels that
    take little time are missing.
    """

    shapes: tuple[KernelShape, ...]
    first: Times
    place: Times
    count: Times
    time: Times
    iterations: int
    is_total: bool = False
    is_complete: bool = True

    def samples(self, shapes: Sequence[int]) -> tuple[Times, Times]:
        """Return the launches and the GPU time of some shapes in each iteration, or their sums."""
        sums = np.zeros((2, 1 if self.is_total else self.iterations), np.int64)
        for shape in shapes:
            rows = slice(self.first[shape], self.first[shape + 1])
            sums[0, self.place[rows]] += self.count[rows]
            sums[1, self.place[rows]] += self.time[rows]
        return sums[0], sums[1]

    def by_name(self) -> dict[tuple[str, str], list[int]]:
        """Return the indices of the shapes of each name and label."""
        groups = defaultdict(list)
        for index, shape in enumerate(self.shapes):
            groups[shape.name, shape.label].append(index)
        return groups

    def launches(self) -> dict[str, float]:
        """Return the mean number of launches per iteration of each name."""
        sums: dict[str, float] = defaultdict(float)
        for (name, _), shapes in self.by_name().items():
            sums[name] += float(self.samples(shapes)[0].sum()) / self.iterations
        return sums


def sample_kernels(
    analysis: Analysis, at: AlignedIterations, devices: Sequence[int], process: int | None = None
) -> KernelSamples:
    """Count every kernel in the iteration in which it starts, over all chosen GPUs and one or all processes."""
    sources = [SOURCES.index(name) for name in ("kernel", "graph")]
    chosen = pl.col("source").to_physical().is_in(sources) & pl.col("device").is_in(list(devices))
    if process is not None:
        chosen &= pl.col("process") == process
    work = analysis.trace.operations.filter(chosen).select("start", "end", "name", "shape")
    sums = (
        work.with_columns(place=at.places(work["start"].to_numpy()))
        .filter(pl.col("place") >= 0)
        .group_by("name", "shape", "place")
        .agg(pl.len().cast(pl.Int64).alias("count"), (pl.col("end") - pl.col("start")).sum().alias("time"))
        .with_columns(pl.col("name").cast(pl.String))
    )
    pairs = sums.select("name", "shape").unique(maintain_order=True)
    launched, label = analysis.trace.shapes, shape_kinds(analysis.trace.shapes)["label"]
    keys = [_kernel_shape(name, launched.row(shape, named=True), label[shape]) for name, shape in pairs.iter_rows()]
    shapes = sorted(set(keys), key=str)
    numbers = {shape: number for number, shape in enumerate(shapes)}
    number = pl.Series("number", [numbers[key] for key in keys], dtype=pl.Int64)
    numbered = sums.join(pairs.with_columns(number), on=["name", "shape"])
    rows = numbered.group_by("number", "place").agg(pl.col("count", "time").sum()).sort("number", "place")
    first = np.searchsorted(rows["number"].to_numpy(), np.arange(len(shapes) + 1))
    place, count, time = (rows[name].to_numpy() for name in ("place", "count", "time"))
    return KernelSamples(tuple(shapes), first, place, count, time, len(at.start))


def _kernel_shape(name: str, row: Mapping[str, Any], label: str) -> KernelShape:
    sizes = [[row[f"{kind}_{axis}"] for axis in "xyz"] for kind in ("grid", "block")]
    return KernelShape(name, label or name, *(() if None in size else tuple(size) for size in sizes))


def kernel_changes(before: KernelSamples, after: KernelSamples, min_change: float) -> tuple[KernelChange, ...]:
    """Compare kernels, the largest change of GPU time per iteration first.

    Launch shapes that both captures have are compared one by one; the other shapes of a name are compared together. A
    change below the share `min_change` counts as none.
    """
    counts = before.iterations, after.iterations
    changes = [
        _kernel_change(shape, (before.samples(old), after.samples(new)), counts, min_change)
        for shape, old, new in _matching_kernels(before, after)
        if (old or before.is_complete) and (new or after.is_complete)
    ]
    changes.sort(key=lambda kernel: (-abs(kernel.cost_ns), -abs(kernel.count.difference), kernel.label, kernel.name))
    return tuple(changes)


def _matching_kernels(
    before: KernelSamples, after: KernelSamples
) -> Iterator[tuple[KernelShape, list[int], list[int]]]:
    """Yield pairs of shapes to compare; the sizes of several shapes together are ()."""
    old_names, new_names = before.by_name(), after.by_name()
    for name, label in sorted({*old_names, *new_names}):
        old = {before.shapes[index]: index for index in old_names.get((name, label), [])}
        new = {after.shapes[index]: index for index in new_names.get((name, label), [])}
        if max(len(old), len(new)) <= MAX_SHAPES:
            for shape in [shape for shape in old if shape in new]:
                yield shape, [old.pop(shape)], [new.pop(shape)]
        others = list(dict.fromkeys((*old, *new)))
        if others:
            shape = others[0] if len(others) == 1 else KernelShape(name, label, (), ())
            yield shape, list(old.values()), list(new.values())


def _kernel_change(
    shape: KernelShape,
    samples: tuple[tuple[Times, Times], tuple[Times, Times]],
    iterations: tuple[int, int],
    min_change: float,
) -> KernelChange:
    (old_count, old_time), (new_count, new_time) = samples
    each = int(old_time.sum()) // max(int(old_count.sum()), 1), int(new_time.sum()) // max(int(new_count.sum()), 1)
    if (len(old_count), len(new_count)) == iterations:
        count = change_between("count", "count", old_count, new_count)
        time = change_between("time", "ns", old_time, new_time)
        per_call = change_between("per_call", "ns", *(_time_per_call(*side) for side in samples))
        per_call = replace(per_call, mean_before=each[0], mean_after=each[1])
    else:
        count = _change_of_means("count", "count", old_count, new_count, iterations)
        time = _change_of_means("time", "ns", old_time, new_time, iterations)
        per_call = figure_change("per_call", "ns", each, each, None)
    if not old_count.any():
        status = "appeared"
    elif not new_count.any():
        status = "vanished"
    else:
        status = _status(count, time, per_call, min_change)
    return KernelChange(shape.name, shape.label, shape.grid or None, shape.block or None, status, count, time, per_call)


def _change_of_means(name: str, unit: str, before: Times, after: Times, iterations: tuple[int, int]) -> FigureChange:
    """Return the change of the mean over iterations, where a side has sums alone, without an interval."""
    old, new = (int(values.sum()) / count for values, count in zip((before, after), iterations, strict=True))
    means = (round(old, 3), round(new, 3)) if unit == "count" else (int(old), int(new))
    return figure_change(name, unit, (round(old), round(new)), means, None)


def _time_per_call(count: Times, time: Times) -> Times:
    """Return the mean time of a call in each iteration that has calls; 0 if none has."""
    some = count > 0
    return time[some] // count[some] if some.any() else np.zeros(1, np.int64)


def _status(count: FigureChange, time: FigureChange, per_call: FigureChange, min_change: float) -> str:
    """Return whether a kernel that both captures have changed: per call first, then its number of calls or its time."""
    if per_call.verdict in ("less", "more") and _is_large(per_call, min_change):
        return "faster" if per_call.verdict == "less" else "slower"
    unsure = "unjudged" in (time.verdict, per_call.verdict) and _is_large(per_call, min_change)
    judged = time.verdict in ("less", "more") and _is_large(time, min_change)
    return "changed" if count.difference or judged or unsure else "same"


def _is_large(change: FigureChange, min_change: float) -> bool:
    return abs(change.difference) >= min_change * change.before


def iteration_work(before: KernelSamples, after: KernelSamples) -> IterationWork:
    """Compare the launches of an iteration of two captures."""
    old_launches, new_launches = before.launches(), after.launches()
    names = sorted(old_launches.keys() & new_launches.keys())
    old, new = (np.array([side[name] for name in names]) for side in (old_launches, new_launches))
    all_old, all_new = sum(old_launches.values()), sum(new_launches.values())
    common = min(_share(old, all_old), _share(new, all_new)) if names else 0.0
    multiple = _multiple(old, new, common)
    return IterationWork(round(all_old, 3), round(all_new, 3), round(common, 3), multiple)


def _share(counts: Floats, whole: float) -> float:
    return float(counts.sum()) / whole if whole else 0.0


def _multiple(old: Floats, new: Floats, common: float) -> float | None:
    """Return k if all common kernels are launched k times as often in one capture; None if not."""
    if common < MIN_COMMON:
        return None
    ratio, weight = new / np.maximum(old, 1e-9), old + new
    order = np.argsort(ratio)
    middle = float(ratio[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)])
    agreeing = float(weight[np.abs(ratio - middle) <= SAME * middle].sum()) / float(weight.sum())
    far = middle >= MIN_MULTIPLE or middle <= 1 / MIN_MULTIPLE
    return round(middle, 2) if far and agreeing >= MIN_AGREEING else None


MAX_LINES = 200


class Line(NamedTuple):
    """A source line; 0 stands for native code, which has functions alone."""

    file: str
    function: str
    line: int


LineSamples = Mapping[Line, Times]  # idle ns of each iteration
LineMatch = tuple[Line | None, Line | None]


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
            idle=judged(mean_change("idle", _line_times(base, before, old), _line_times(other, after, new)), least),
        )
        for old, new in _matching_lines(before, after)
    ]
    changes.sort(key=lambda change: (-abs(change.idle.difference), change.file, change.function, change.line or 0))
    return tuple(changes[:MAX_LINES])


def _line_times(times: Series, lines: LineSamples, line: Line | None) -> Series:
    return times.with_values(np.zeros(len(times.values), np.int64) if line is None else lines[line])


def judged(change: FigureChange, least: float) -> FigureChange:
    """Return the change with the verdict noise if it is smaller than `least` ns."""
    return replace(change, verdict="noise") if abs(change.difference) < least else change


def _matching_lines(before: LineSamples, after: LineSamples) -> Iterator[LineMatch]:
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
