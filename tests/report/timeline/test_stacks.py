"""Stack samples as marks, and the stacks that a page holds, against plain loops; made evidence."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from tests.measure.charts.test_trees import random_stacks
from tests.measure.host.test_host_time import END, OWN_LINE, cell_of, evidence, frame, random_trace
from tests.pages import inputs_of
from traceview.model.analysis import Analysis
from traceview.model.stacks import SAMPLES, HostEvidence
from traceview.model.trace import Window
from traceview.pipeline import analyze
from traceview.report.timeline import rows as timeline_stacks
from traceview.report.timeline.marks import Marks, Names
from traceview.report.timeline.rows import SampleStacks, frame_text, sample_marks


def callers(made: HostEvidence, stack: int) -> list[int]:
    """Return a stack and its callers, the innermost first."""
    return [] if stack < 0 else [stack, *callers(made, int(made.stacks["parent"][stack]))]


@pytest.mark.parametrize("most", [1, 7, 100])
@pytest.mark.parametrize("seed", range(4))
def test_stacks_with_the_most_samples(seed: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline_stacks, "MAX_STACKS", most)
    made, times = random_stacks(seed)
    rows = [(at, at, 0, 0, None, stack) for at, stack in enumerate(times.frame["stack"].to_list() * 2 + [-1])]
    made = replace(made, samples=frame(SAMPLES, rows))
    count = Counter(node for row in rows for node in callers(made, row[5]))
    stacks = SampleStacks.from_evidence(made)
    kept = stacks.kept.tolist()
    assert sorted((count[node] for node in kept), reverse=True) == [n for _, n in count.most_common(most)]
    for stack in range(len(made.stacks)):
        nearest = [node for node in callers(made, stack) if node in kept]
        assert stacks.number[stack] == (kept.index(nearest[0]) + 1 if nearest else 0)
    written = stacks.json(made)
    for number, node in enumerate(kept, 1):
        at, texts = number, []
        while at:
            texts.append(written["frames"][written["frame"][at - 1]])
            at = written["caller"][at - 1]
        assert texts == [frame_text(*made.frames.row(made.stacks["frame"][one])) for one in callers(made, node)]


def marks_between(analysis: Analysis, start: int, end: int, names: Names | None = None) -> dict[int, Marks]:
    return sample_marks(analysis.trace.evidence, inputs_of(analysis).stacks, Window(start, end), names or Names())


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_marks_of_a_thread(seed: int, exact: bool) -> None:
    trace, names = random_trace(seed, exact, complete=True), Names()
    marks = marks_between(analyze(trace, whole=True), -1000, 1000, names)[0]
    shown = list(zip(marks.start.tolist(), marks.end.tolist(), marks.name.tolist(), strict=True))
    for moment in range(END):
        here = [names.texts[name] for start, end, name in shown if start <= moment < end]
        cell = cell_of(trace, moment)
        known = cell is not None and cell["stack"] >= 0
        assert [text.partition(" ")[0] for text in here] == ([f"train.py:{OWN_LINE[cell['stack']]}"] if known else [])


def test_samples_outside_the_window_and_native_ones_beside_python() -> None:
    rows = [(at, at, 0, 0, None, 1) for at in range(0, 100, 20)] + [
        (50, 50, 0, None, None, 2),
        (60, 60, None, 1, None, 3),
    ]
    trace = replace(random_trace(1, exact=False), evidence=evidence(sorted(rows, key=lambda row: row[0]), []))
    marks = marks_between(analyze(trace, whole=True), 35, 75)
    assert {thread: one.start.tolist() for thread, one in marks.items()} == {0: [35, 50, 70]}
    assert marks[0].end.tolist() == [50, 70, 75]
    native = replace(trace, evidence=evidence([(at, at, 1, None, None, 2) for at in (5, 7)], []))
    assert {thread: len(marks) for thread, marks in marks_between(analyze(native), 0, 100).items()} == {1: 2}
    assert marks_between(analyze(replace(trace, evidence=evidence([], []))), 0, 100) == {}
