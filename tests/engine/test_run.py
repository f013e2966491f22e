"""Processes measure what one process does."""

from __future__ import annotations

from pathlib import Path

from tests.captures import sample
from traceview.engine.limited import plan_parts
from traceview.engine.measure import Extents
from traceview.engine.part import PartRunner, ProcessRunner
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
