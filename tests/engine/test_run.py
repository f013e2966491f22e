"""Processes measure what one process does, and similar parts are read three times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.captures import sample
from traceview.engine.limited import plan_parts
from traceview.engine.measure import Extents
from traceview.engine.page import page_inputs
from traceview.engine.part import PartRunner, PartTrace, ProcessRunner
from traceview.engine.run import analyze_parts
from traceview.engine.traces import PartSource
from traceview.model.analysis import AnalysisOptions
from traceview.report.analysis import document
from traceview.workers.processes import Processes


def test_processes_measure_what_this_process_does(tmp_path: Path) -> None:
    path = sample("dual.sqlite")
    source = PartSource.open(path, 16)
    parts = PartRunner(source, plan_parts(source, 3), folder=tmp_path)
    assert len(parts.windows) == 3
    extents = Extents(*source.extents)
    here = analyze_parts(parts, source.resident, extents, AnalysisOptions()).analysis
    with Processes(2) as workers:
        there = PartSource.open(path, 16, workers=workers)
        assert plan_parts(there, 3, workers) == tuple(parts.windows)
        runner = ProcessRunner(PartRunner(there, parts.windows, folder=tmp_path), workers)
        assert document(analyze_parts(runner, there.resident, extents, AnalysisOptions()).analysis) == document(here)
    assert len(list(tmp_path.glob("*.trace"))) == 3  # one each, which later passes read


class CountingRunner(PartRunner):
    """Counts how often each part is read."""

    reads: Counter[int]

    def in_part(self, number: int, function: Callable[[PartTrace], Any]) -> Any:
        self.reads[number] += 1
        return super().in_part(number, function)


def test_similar_parts_are_read_three_times(tmp_path: Path) -> None:
    source = PartSource.open(sample("trainer/staged.sqlite"), 16)
    parts = CountingRunner(source, plan_parts(source, 5))
    parts.reads = Counter()
    capture = analyze_parts(parts, source.resident, Extents(*source.extents), AnalysisOptions(), folder=tmp_path)
    page_inputs(capture)
    assert parts.reads == dict.fromkeys(range(5), 3)
