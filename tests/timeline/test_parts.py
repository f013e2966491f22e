"""The server of a capture in parts answers as that of the complete trace."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.captures import sample
from tests.engine.gate import quiet_windows
from tests.pages import inputs_of
from traceview.engine.measure import Extents
from traceview.engine.page import page_inputs
from traceview.engine.part import PartRunner, TraceInMemory
from traceview.engine.run import analyze_parts
from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.model.timeline import levels, stored
from traceview.model.timeline.events import PageInputs
from traceview.model.timeline.groups import rows
from traceview.pipeline import analyze, open_trace
from traceview.serve import page
from traceview.serve.page import Answers


@pytest.fixture(scope="module", params=["dual.sqlite", "ddp2.sqlite"])
def whole(request: pytest.FixtureRequest) -> Analysis:
    return analyze(open_trace(sample(request.param)), costs=None)


def in_parts(whole: Analysis, count: int, folder: Path) -> PageInputs:
    """Return the page inputs of the same capture in parts, with the findings of the complete trace."""
    source = TraceInMemory(whole.trace)
    runner = PartRunner(source, quiet_windows(whole.trace, count))
    options, extents = AnalysisOptions(), Extents.from_trace(whole.trace)
    inputs = page_inputs(analyze_parts(runner, source.resident, extents, options, folder=folder))
    return inputs._replace(analysis=replace(inputs.analysis, findings=whole.findings))


def test_server_answers_slices_as_it_answers_the_complete_trace(
    whole: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "BLOCK_MARKS", 300)
    monkeypatch.setattr(stored, "MIN_LEVEL_MARKS", 50)
    for limit in ("MAX_UNMERGED_MARKS", "MAX_LANE_MARKS", "MAX_READ_MARKS"):
        monkeypatch.setattr(page, limit, 500)
    monkeypatch.setattr(levels, "MAX_MARKS_WITHOUT_LEVELS", 500)
    monkeypatch.setattr(page, "MAX_PLACES", 50)
    every = [inputs_of(whole), in_parts(whole, 7, tmp_path)]
    servers = [Answers.from_groups(rows(inputs), inputs.events) for inputs in every]
    monkeypatch.setattr(page, "MAX_UNMERGED_MARKS", 1 << 40)
    # The complete trace without sums and levels in advance.
    servers.append(Answers.from_groups(rows(every[0]), every[0].events))
    length, lanes = every[0].events.span.length, servers[0].rows
    stream = next(number for number, row in enumerate(lanes) if row.kind == "stream")
    for start, end in ((0, length), (length // 3, length // 3 + length // 50), (length // 2, length // 2 + 9999)):
        query = {"from": str(start), "to": str(end), "shift": "20", "rows": str(stream), "text": "gemm"}
        found = []
        for server in servers:
            measured, places = server.measure(query), server.find({**query, "at": str(start)})
            sums = {
                (part["row"], part["table"], server.texts[name], *rest)
                for part in measured["sums"]
                for name, *rest in part["names"]
            }
            answer = server.marks(query)
            header = json.loads(answer[4 : 4 + int.from_bytes(answer[:4], "little")])
            [lane] = header["rows"][str(stream)]
            found.append((measured["devices"], sums, places, lane["bin"], lane["marks"]["n"]))
        assert found[0] == found[1] == found[2]
    correlation = str(int(next(lanes[stream].lanes[0].pieces()).details["correlation"][7]))
    partners = [server.partner({"row": str(stream), "correlation": correlation}) for server in servers]
    assert [[{**one, "name": ""} for one in some] for some in partners[1:]] == [
        [{**one, "name": ""} for one in partners[0]]
    ] * 2
    assert partners[0]
