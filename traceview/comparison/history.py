"""The history of a program: a file with one line of figures for each commit, and the commits where figures changed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import NormalDist

import numpy as np

from traceview.comparison.align import align_borders, iteration_times
from traceview.comparison.change import MIN_CHANGE, MIN_PERIODS, Series, block_length, resampled_deviations
from traceview.comparison.sample import GPU_PARTS, sample_capture, sample_iterations
from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.model.analysis import Analysis
from traceview.model.comparison import ChangePoint, CommitFigures, History, MeanFigure
from traceview.read.source import display_name
from traceview.report.files import write_text

FIGURES = ("wall", *GPU_PARTS, "idle")
# At most one of twenty histories of noise alone has a change, with 5 to 100 commits (tests/comparison/test_history.py).
CONFIDENCE = 0.999
MAX_HISTORY = 50_000_000  # bytes
# Differences from one commit to the next; the median of fewer may be a change of the program.
MIN_DIFFERENCES = 3
DEVIATION_OF_MEDIAN = 1.4826  # standard deviation of a normal distribution over its median absolute deviation


def commit_figures(analysis: Analysis, commit: str) -> CommitFigures:
    """Return the figures of a capture. Raises RequestError if it has no GPU work."""
    host = iteration_times(analysis)
    sample = sample_capture(analysis) if host is None else sample_iterations(analysis, align_borders(host))
    length = block_length(sample.wall)
    figures = {name: _mean_figure(Series(sample.figures[name], length)) for name in FIGURES}
    return CommitFigures(commit, analysis.info.file, len(sample.wall), figures)


def _mean_figure(series: Series) -> MeanFigure:
    if len(series.values) < MIN_PERIODS:
        return MeanFigure(series.mean, None)
    return MeanFigure(series.mean, round(float(np.std(np.concatenate(resampled_deviations(series))))))


def read_history(path: Path) -> tuple[CommitFigures, ...]:
    """Return the commits of a file, none if there is no file. Raises RequestError."""
    commits: list[CommitFigures] = []
    lines: list[str] = []
    try:
        if path.stat().st_size > MAX_HISTORY:
            raise ValueError
        lines = path.read_text(encoding="utf-8").splitlines()
        commits.extend(map(_parsed, lines))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        where = f"line {len(commits) + 1} is" if lines else "the file is"
        message = f"{display_name(path)}: {where} not of `traceview compare --history`; remove it"
        raise RequestError(message) from None
    return tuple(commits)


def _parsed(line: str) -> CommitFigures:
    row = json.loads(line)
    pairs = {name: (row["figures"][name]["mean_ns"], row["figures"][name]["error_ns"]) for name in FIGURES}
    figures = {
        name: MeanFigure(int(mean), None if error is None else int(error)) for name, (mean, error) in pairs.items()
    }
    return CommitFigures(str(row["commit"]), str(row["file"]), int(row["iterations"]), figures)


def write_history(path: Path, commits: Sequence[CommitFigures]) -> None:
    """Write a line for each commit. Raises OutputError."""
    write_text(path, "".join(f"{json.dumps(asdict(commit), ensure_ascii=False)}\n" for commit in commits))


def history(commits: Sequence[CommitFigures]) -> History:
    """Return the commits with the changes of every figure."""
    changes = (change for figure in FIGURES for change in _changes(figure, commits))
    return History(tuple(commits), tuple(changes))


def _changes(figure: str, commits: Sequence[CommitFigures]) -> Iterator[ChangePoint]:
    means = np.array([commit.figures[figure].mean_ns for commit in commits], np.int64)
    errors = np.array([commit.figures[figure].error_ns or 0 for commit in commits], np.int64)
    wall = np.array([commit.figures["wall"].mean_ns for commit in commits], np.int64)
    starts = level_starts(means, errors, wall)
    for before, start, end in zip([0, *starts], starts, [*starts[1:], len(commits)], strict=False):
        levels = int(means[before:start].mean()), int(means[start:end].mean())
        yield ChangePoint(figure, commits[start].commit, *levels)


def level_starts(means: Times, errors: Times, wall: Times) -> list[int]:
    """Return the indices from which a figure has another level.

    A level differs if the difference of the means exceeds their errors at CONFIDENCE, divided by the number of places
    that are tried, and MIN_CHANGE of the wall time. The error of a commit is at least the usual difference of
    neighbours, because runs of one program differ more than the iterations of a run show.
    """
    steps = np.abs(np.diff(means))
    usual = DEVIATION_OF_MEDIAN / math.sqrt(2) * float(np.median(steps)) if len(steps) >= MIN_DIFFERENCES else 0.0
    weights = 1 / np.maximum(np.maximum(errors, usual), 1.0) ** 2
    known = np.concatenate([[0.0], np.cumsum(weights)])
    sums = np.concatenate([[0.0], np.cumsum(weights * means)])

    def starts(first: int, end: int) -> list[int]:
        if end - first < 2:
            return []
        at = np.arange(first + 1, end)
        left, right = known[at] - known[first], known[end] - known[at]
        moved = (sums[end] - sums[at]) / right - (sums[at] - sums[first]) / left
        certainty = np.abs(moved) / np.sqrt(1 / left + 1 / right)
        best = int(np.argmax(certainty))
        needed = NormalDist().inv_cdf(1 - (1 - CONFIDENCE) / 2 / len(at))
        start = int(at[best])
        if certainty[best] < needed or abs(moved[best]) < MIN_CHANGE * wall[start - 1]:
            return []
        return [*starts(first, start), start, *starts(start, end)]

    return starts(0, len(means))
