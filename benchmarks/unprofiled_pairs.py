#!/usr/bin/env python3
"""Compare the predicted time without the profiler with runs without it, and predictions of changes with such runs.

    python benchmarks/unprofiled_pairs.py FOLDER [--calibration FILE] [--programs NAME ...] [--all] [--list FILE]

FOLDER has PROGRAM.before.nsys.N.sqlite, captures, and PROGRAM.VARIANT.plain.N.json with `ms_per_step`, runs without
the profiler before and after the changes that benchmarks/unprofiled_pairs.txt or FILE names. A program is a hit if the
prediction is within 10% of the median of the runs, or between the fastest and the slowest. Predictions use captures of
`before` alone: for each program the one whose time is nearest the median of its runs with nsys
(PROGRAM.before.nsys.N.json), or with --all each. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from traceview import analyze
from traceview.errors import RequestError
from traceview.model.analysis import Analysis, Iterations
from traceview.read.calibration import read_calibration
from traceview.replay.prediction import predict

TOLERANCE = 0.1
HEAD = """| program | with nsys, ms | without, runs | predicted | range | error | hit |
| --- | ---: | ---: | ---: | ---: | ---: | --- |"""
CHANGE_HEAD = """| program | change | with nsys before, ms | without after, runs | predicted | range | error | hit |
| --- | --- | ---: | ---: | ---: | ---: | ---: | --- |"""


def main() -> None:
    """Print the tables and their sums."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calibration", type=Path)
    parser.add_argument("--programs", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--list", type=Path, default=Path(__file__).with_suffix(".txt"))
    options = parser.parse_args()
    costs = read_calibration(options.calibration) if options.calibration else "auto"
    lines = options.list.read_text().splitlines()
    changes = dict(line.split()[:2] for line in lines if line and not line.startswith("#"))
    rows, changed, widths = [], [], []
    for name in options.programs or sorted(
        {path.name.split(".")[0] for path in options.folder.glob("*.nsys.*.sqlite")}
    ):
        before = runs(options.folder, name, "before")
        for capture in captures(options.folder, name, every=options.all):
            analysis = analyze(capture, costs=costs)
            iterations = analysis.iterations
            if not isinstance(iterations, Iterations) or iterations.unprofiled is None or not before:
                rows.append((None, f"| {name} | - | {times(before)} | none: no iterations | | | |"))
                continue
            time = iterations.unprofiled
            widths.append((time.high_ns - time.low_ns) / time.mean_ns)
            rows.append(
                row(
                    f"{name} | {iterations.time_ns / 1e6:.2f}",
                    before,
                    *(ns / 1e6 for ns in (time.mean_ns, time.low_ns, time.high_ns)),
                )
            )
            changed += list(change_rows(options.folder, name, changes.get(name), analysis))
    for head, some in ((HEAD, rows), (CHANGE_HEAD, changed)):
        print(head, *(text for _, text in some), sep="\n")
        hits = [hit for hit, _ in some if hit is not None]
        print(f"\n{sum(hits)} of {len(hits)}\n")
    if widths:
        print(f"median width of the range: {median(widths):.0%}")


def captures(folder: Path, name: str, *, every: bool) -> list[Path]:
    """Return the captures of a program before the change: all, or the one nearest the median of its runs."""
    paths = sorted(folder.glob(f"{name}.before.nsys.*.sqlite"))
    times = [step_time(path.with_suffix(".json")) for path in folder.glob(f"{name}.before.nsys.*.json")]
    known = [ms for ms in times if ms is not None]
    timed = {path: ms for path in paths if (ms := step_time(path.with_suffix(".json"))) is not None}
    if every or not timed:
        return paths
    return [min(timed, key=lambda path: abs(timed[path] - median(known)))]


def step_time(path: Path) -> float | None:
    """Return the ms a step of a run, None if it did not end."""
    text = path.read_text() if path.is_file() else ""
    return json.loads(text)["ms_per_step"] if text.strip() else None


def runs(folder: Path, name: str, variant: str) -> list[float]:
    """Return the ms a step of the runs without the profiler, sorted."""
    times = (step_time(path) for path in folder.glob(f"{name}.{variant}.plain.*.json"))
    return sorted(ms for ms in times if ms is not None)


def change_rows(folder: Path, name: str, changes: str | None, analysis: Analysis) -> Iterator[tuple[bool | None, str]]:
    """Yield the row of the change of a program, if there are runs after it."""
    after = runs(folder, name, "after")
    if not after or changes is None:
        return
    assert isinstance(analysis.iterations, Iterations)
    measured = analysis.iterations.time_ns / 1e6
    try:
        result = predict(analysis, changes.split(","))
    except RequestError as error:
        yield None, f"| {name} | {changes} | {measured:.2f} | {times(after)} | none: {error} | | | |"
        return
    middle = (result.iteration_ns / 1e6, result.low_ns / 1e6, result.high_ns / 1e6)
    yield row(f"{name} | {changes} | {measured:.2f}", after, *middle)


def row(head: str, truth: list[float], middle: float, low: float, high: float) -> tuple[bool, str]:
    """Return whether a prediction hits, and its row."""
    error = middle / median(truth) - 1
    hit = abs(error) <= TOLERANCE or truth[0] <= middle <= truth[-1]
    between, word = f"{low:.2f} to {high:.2f}", "yes" if hit else "no"
    return hit, f"| {head} | {times(truth)} | {middle:.2f} | {between} | {error:+.1%} | {word} |"


def times(values: list[float]) -> str:
    """Return the median of runs, and the fastest and slowest."""
    return f"{median(values):.2f} ({values[0]:.2f} to {values[-1]:.2f})" if values else "-"


if __name__ == "__main__":
    main()
