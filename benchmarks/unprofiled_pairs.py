#!/usr/bin/env python3
"""Compare the predicted time without the profiler with runs without it, and predictions of changes with such runs.

    python benchmarks/unprofiled_pairs.py FOLDER [--scale S] [--programs NAME ...] [--all] [--list FILE]

FOLDER has PROGRAM.VARIANT.nsys.N.sqlite, captures, and PROGRAM.VARIANT.plain.N.json with `ms_per_step`, runs without
the profiler before and after the changes that benchmarks/unprofiled_pairs.txt or FILE names. A program is a hit if the
prediction is within 10% of the median of the runs, or between the fastest and the slowest. Predictions of changes use
captures of `before` alone: for each program the one whose time is nearest the median of its runs with nsys
(PROGRAM.before.nsys.N.json), or with --all each. Prints Markdown tables, and sums for each class of the list.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from traceview import analyze
from traceview.errors import RequestError
from traceview.model.analysis import Analysis, Iterations
from traceview.model.unprofiled import ESTIMATE
from traceview.replay.prediction import predict

TOLERANCE, REPEATS = 0.1, 0.05
HEAD = """| program | with nsys, ms | without, runs | predicted | range | error | hit | in range |
| --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"""
CHANGE_HEAD = """| program | change | with nsys, ms | without, runs | predicted | range | error | hit | in range |
| --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"""
ENERGY_HEAD = """| program | J a step, runs | spread |
| --- | ---: | ---: |"""


class Row(NamedTuple):
    """A row of a table: a width of the range and a hit are None where there is no prediction."""

    text: str
    hit: bool = False
    inside: bool = False
    width: float | None = None
    kind: str = ""


def main() -> None:
    """Print the tables and their sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", type=float, default=1.0, help="what benchmarks/calibrate.py prints")
    parser.add_argument("--programs", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--list", type=Path, default=Path(__file__).with_suffix(".txt"))
    options = parser.parse_args()
    lines = options.list.read_text().splitlines()
    listed = {line.split()[0]: line.split()[1:3] for line in lines if line and not line.startswith("#")}
    rows: list[Row] = []
    changed: list[Row] = []
    joules: list[Row] = []
    found = sorted({path.name.split(".")[0] for path in options.folder.glob("*.nsys.*.sqlite")})
    for name, variant in product(options.programs or found, ("before", "after")):
        plain = runs(options.folder, name, variant)
        changes, kind = (*listed.get(name, []), "", "")[:2]
        title = name if variant == "before" else f"{name}, after"
        joules += energy(title, runs(options.folder, name, variant, "joules_per_step"))
        for capture in captures(options.folder, name, variant, every=options.all) if plain else ():
            analysis = analyze(capture, costs=ESTIMATE.scaled(options.scale**0.5))
            iterations = analysis.iterations
            if not isinstance(iterations, Iterations) or iterations.unprofiled is None:
                rows.append(Row(f"| {title} | - | {times(plain)} | none: no iterations | | | | |", kind=kind))
                continue
            time = iterations.unprofiled
            middle = [ns / 1e6 for ns in (time.mean_ns, time.low_ns, time.high_ns)]
            rows.append(row(f"{title} | {iterations.time_ns / 1e6:.2f}", plain, middle, kind))
            if variant == "before" and changes:
                changed += change_rows(options.folder, name, changes, analysis, kind)
    for head, some in ((HEAD, rows), (CHANGE_HEAD, changed)):
        print(head, *(own.text for own in some), sep="\n")
        print(f"\n{summary(some)}")
        for kind in sorted({own.kind for own in some} - {""}):
            print(f"{kind}: {summary([own for own in some if own.kind == kind])}")
        print()
    if joules:
        print(ENERGY_HEAD, *(own.text for own in joules), sep="\n")
        print(f"\n{sum(own.hit for own in joules)} of {len(joules)} repeat within {REPEATS:.0%}")


def summary(rows: Sequence[Row]) -> str:
    """Return how many rows are hits, how many medians are in the range, and how wide that is."""
    widths = [own.width for own in rows if own.width is not None]
    width = f", median width of the range {median(widths):.0%}" if widths else ""
    hits, inside = sum(own.hit for own in rows), sum(own.inside for own in rows)
    return f"{hits} of {len(rows)} hits, {inside} in the range{width}"


def energy(title: str, joules: Sequence[float]) -> Iterator[Row]:
    """Yield the row of the joules a step, a hit if the runs differ by at most REPEATS."""
    if len(joules) > 1:
        spread = (joules[-1] - joules[0]) / median(joules)
        yield Row(f"| {title} | {times(joules)} | {spread:.1%} |", spread <= REPEATS)


def captures(folder: Path, name: str, variant: str, *, every: bool) -> list[Path]:
    """Return the captures of a program before or after the change: all, or the one nearest the median of its runs."""
    paths = sorted(folder.glob(f"{name}.{variant}.nsys.*.sqlite"))
    times = [step_time(path.with_suffix(".json")) for path in folder.glob(f"{name}.{variant}.nsys.*.json")]
    known = [ms for ms in times if ms is not None]
    timed = {path: ms for path in paths if (ms := step_time(path.with_suffix(".json"))) is not None}
    if every or not timed:
        return paths
    return [min(timed, key=lambda path: abs(timed[path] - median(known)))]


def step_time(path: Path, figure: str = "ms_per_step") -> float | None:
    """Return a figure of a run, None if it did not end or has no such figure."""
    text = path.read_text() if path.is_file() else ""
    return json.loads(text).get(figure) if text.strip() else None


def runs(folder: Path, name: str, variant: str, figure: str = "ms_per_step") -> list[float]:
    """Return a figure of the runs without the profiler, sorted."""
    times = (step_time(path, figure) for path in folder.glob(f"{name}.{variant}.plain.*.json"))
    return sorted(ms for ms in times if ms is not None)


def change_rows(folder: Path, name: str, changes: str, analysis: Analysis, kind: str) -> Iterator[Row]:
    """Yield the row of the change of a program, if there are runs after it."""
    after = runs(folder, name, "after")
    if not after:
        return
    assert isinstance(analysis.iterations, Iterations)
    measured = analysis.iterations.time_ns / 1e6
    try:
        result = predict(analysis, changes.split(","))
    except RequestError as error:
        yield Row(f"| {name} | {changes} | {measured:.2f} | {times(after)} | none: {error} | | | | |", kind=kind)
        return
    middle = [ns / 1e6 for ns in (result.iteration_ns, result.low_ns, result.high_ns)]
    yield row(f"{name} | {changes} | {measured:.2f}", after, middle, kind)


def row(head: str, truth: list[float], predicted: Sequence[float], kind: str) -> Row:
    """Return the row of a prediction with its range."""
    middle, low, high = predicted
    error = middle / median(truth) - 1
    hit = abs(error) <= TOLERANCE or truth[0] <= middle <= truth[-1]
    inside = low <= median(truth) <= high
    words = f"{error:+.1%} | {'yes' if hit else 'no'} | {'yes' if inside else 'no'}"
    text = f"| {head} | {times(truth)} | {middle:.2f} | {low:.2f} to {high:.2f} | {words} |"
    return Row(text, hit, inside, (high - low) / middle, kind)


def times(values: Sequence[float]) -> str:
    """Return the median of runs, and the fastest and slowest."""
    return f"{median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})" if values else "-"


if __name__ == "__main__":
    main()
