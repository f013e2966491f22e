"""Source lines of two captures: matched against a plain loop, and found where they became slower; made evidence."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.made_trace import made_trace
from tests.measure.host.test_host_time import evidence, random_trace
from traceview.comparison import compare
from traceview.comparison.align import AlignedIterations
from traceview.comparison.change import Series
from traceview.comparison.kernels import Line, line_changes, sample_lines
from traceview.intervals import Times
from traceview.model.analysis import Analysis
from traceview.pipeline import analyze
from traceview.report.comparison import document
from traceview.report.comparison.tables import line_name, line_table, shown_lines
from traceview.report.comparison.terminal import render as render_text
from traceview.report.comparison.terminal import to_markdown

COUNT = 8
LINES = st.builds(Line, st.sampled_from("xy"), st.sampled_from("fg"), st.integers(1, 3))
TIMES = st.lists(st.integers(0, 50), min_size=COUNT, max_size=COUNT).map(lambda values: np.array(values, np.int64))
CAPTURES = st.dictionaries(LINES, TIMES, max_size=6)
STEPS = Series(np.arange(1000, 1000 + COUNT), 1)


def moved_line(line: Line, own: dict[Line, Times], other: dict[Line, Times]) -> Line | None:
    """Return the line of the other capture that a line is compared with."""
    if line in other:
        return line
    only = [
        [one for one in side if one[:2] == line[:2] and one not in opposite]
        for side, opposite in ((own, other), (other, own))
    ]
    return only[1][0] if [len(side) for side in only] == [1, 1] else None


@settings(max_examples=60, deadline=None)
@given(CAPTURES, CAPTURES)
def test_matches_equal_a_plain_loop(before: dict[Line, Times], after: dict[Line, Times]) -> None:
    changes = line_changes(before, after, STEPS, STEPS, 0.01)
    zeros = np.zeros(COUNT, np.int64)
    expected = set()
    for line, values in before.items():
        new = moved_line(line, before, after)
        other = after[new] if new else zeros
        expected.add((line.file, line.function, line.line, new and new.line, *means(values, other)))
    for line, values in after.items():
        if moved_line(line, after, before) is None:
            expected.add((line.file, line.function, None, line.line, *means(zeros, values)))
    compared = [
        (change.file, change.function, change.line_before, change.line, change.idle.before, change.idle.after)
        for change in changes
    ]
    assert set(compared) == expected and len(compared) == len(expected)
    sizes = [abs(change.idle.difference) for change in changes]
    assert sizes == sorted(sizes, reverse=True)
    assert all(change.idle.verdict == "noise" for change in changes if abs(change.idle.difference) < 10)


def means(before: Times, after: Times) -> tuple[int, int]:
    return int(before.sum()) // COUNT, int(after.sum()) // COUNT


def steps(slow: int) -> Analysis:
    """Return eight iterations: 60 ns in line 20, then 40 and `slow` ns in line 21, then a kernel of 30 ns."""
    api, operations, ranges, samples = [], [], [], []
    at = 0
    for number in range(COUNT):
        launch = at + 100 + slow
        api.append((launch, launch + 5, "api", 0))
        operations.append((launch + 5, launch + 35, "compute", 0, number))
        ranges.append((at, launch + 35, f"iteration {number}", 0))
        samples += [(at, at + 60, 0, 0, None, 1), (at + 60, launch, 0, 0, None, 3)]
        at = launch + 35
    return analyze(replace(made_trace(operations, api, ranges), evidence=evidence(samples, [])), skip=1)


def test_line_that_became_slower() -> None:
    comparison = compare(steps(0), steps(25))
    [against] = comparison.against
    assert [(change.line, change.idle.before, change.idle.after) for change in against.lines] == [
        (21, 40, 65),
        (20, 60, 60),
    ]
    [line] = shown_lines(against)
    assert line.idle.verdict == "more" and (line.idle.low, line.idle.high) == (25, 25)
    assert line_name(line) == "train.py:21 (train)"
    for text in (render_text(comparison), to_markdown(comparison)):
        assert "1 more, 1 within noise" in text and "train.py:21" in text and "train.py:20" not in text
    [row] = line_table(against, 10).rows
    assert row[1:4] == ("40 ns", "65 ns", "+25 ns")
    [written] = document(comparison)["against"]  # type: ignore[misc]
    assert [line["idle"]["difference_ns"] for line in written["lines"]] == [25, 0]  # type: ignore[index,call-overload,union-attr]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_iterations_share_the_idle_time_of_lines(seed: int, exact: bool) -> None:
    analysis = analyze(random_trace(seed, exact, complete=True), whole=True)
    borders = np.array([-10_000, 100, 180, 10_000])
    at = AlignedIterations(borders[:-1], borders[1:], borders[:-1], borders[1:], skipped=0)
    samples = sample_lines(analysis, at)
    assert samples is not None
    assert {line.line: int(each.sum()) for line, each in samples.items()} == {
        line.line: line.idle_ns for line in analysis.tables["lines"].rows
    }
    assert all(len(each) == 3 for each in samples.values())


def test_no_lines_without_stacks() -> None:
    plain = steps(0)
    without = analyze(replace(plain.trace, evidence=evidence([], [])), skip=1)
    comparison = compare(plain, without)
    assert comparison.against[0].lines == ()
    assert "Lines that made" not in render_text(comparison) + to_markdown(comparison)
