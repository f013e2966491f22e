"""The page and the server of a capture in slices show what they show of the complete trace."""

from __future__ import annotations

import collections
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.captures import sample
from tests.pages import inputs_of
from tests.slices.gate import quiet_windows
from traceview.model.analysis import Analysis
from traceview.pipeline import analyze, open_trace
from traceview.report.analysis.timeline import MergedRows
from traceview.serve import answers
from traceview.serve.answers import Answers
from traceview.slices.measure import Extents
from traceview.slices.page import page_inputs
from traceview.slices.run import AnalysisOptions, analyze_slices
from traceview.slices.runner import SliceRunner, TraceInMemory
from traceview.timeline import index, levels, stored
from traceview.timeline.events import PageInputs, TimelineEvents
from traceview.timeline.groups import rows
from traceview.timeline.levels import kept_marks, places
from traceview.timeline.marks import Marks, concatenated
from traceview.timeline.sums import (
    NameSums,
    bin_shift,
    device_lanes,
    device_sums,
    row_sums,
    sums_of_devices,
    sums_of_names,
)

BUDGET = 60_000


@pytest.fixture(scope="module", params=["dual.sqlite", "ddp2.sqlite"])
def whole(request: pytest.FixtureRequest) -> Analysis:
    return analyze(open_trace(sample(request.param)), costs=None)


def in_slices(whole: Analysis, count: int, folder: Path) -> PageInputs:
    """Return the page inputs of the same capture in slices, with the findings of the complete trace."""
    source = TraceInMemory(whole.trace)
    runner = SliceRunner(source, quiet_windows(whole.trace, count))
    options, extents = AnalysisOptions(), Extents.from_trace(whole.trace)
    inputs = page_inputs(analyze_slices(runner, source.resident, extents, options, folder=folder))
    return replace(inputs, analysis=replace(inputs.analysis, findings=whole.findings))


def shown(marks: Marks, source: TimelineEvents) -> dict[str, list[object]]:
    """Return the columns of marks that the page shows, names as text, without columns of zeros."""
    texts = np.array([*source.names.texts, ""], object)
    columns = {"start": marks.start, "end": marks.end, "name": texts[marks.name], "look": marks.look}
    columns |= {key: column for key, column in {**marks.sums, **marks.details}.items() if column.any()}
    columns |= {} if marks.merge is None else {"count": marks.merge.count, "busy": marks.merge.busy}
    return {key: column.tolist() for key, column in columns.items() if key != "shape"}


@pytest.mark.parametrize("count", [1, 2, 7])
def test_rows_and_levels_of_slices_equal_those_in_memory(
    whole: Analysis, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "BLOCK_MARKS", 300)
    monkeypatch.setattr(stored, "MIN_LEVEL_MARKS", 50)
    monkeypatch.setattr(levels, "MAX_MARKS_WITHOUT_LEVELS", 500)
    own, other = in_slices(whole, count, tmp_path), inputs_of(whole)
    mine, theirs = own.events, other.events
    assert (mine.span, mine.exposed, mine.worst_calls) == (theirs.span, theirs.exposed, theirs.worst_calls)
    groups, expected = rows(own), rows(other)
    assert [group.label for group in groups] == [group.label for group in expected]
    lanes, others = (
        MergedRows.within(origin, each, BUDGET).lanes for origin, each in ((mine, groups), (theirs, expected))
    )
    assert {row: len(some) for row, some in lanes.items()} == {row: len(some) for row, some in others.items()}
    assert list(lanes) == list(others)
    assert any(lane.levels for some in lanes.values() for lane in some)
    for row in lanes:
        for lane, same in zip(lanes[row], others[row], strict=True):
            assert shown(concatenated(list(lane.marks.pieces())), mine) == shown(same.whole(), theirs), row
            assert [level.shift for level in lane.levels] == [level.shift for level in same.levels], row
            for level, same_level in zip(lane.levels, same.levels, strict=True):
                assert shown(level.marks, mine) == shown(same_level.marks, theirs), (row, level.shift)


def named(sums: list[NameSums], source: TimelineEvents) -> set[tuple[object, ...]]:
    columns = ((part.bin, part.name, part.time, part.started) for part in sums)
    return {
        (part.row, part.table, bin, source.names.texts[name], time, started)
        for part, own in zip(sums, columns, strict=True)
        for bin, name, time, started in zip(*(column.tolist() for column in own), strict=True)
    }


def test_sums_index_and_kept_places_of_slices_equal_those_in_memory(
    whole: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "BLOCK_MARKS", 300)
    monkeypatch.setattr(stored, "MIN_LEVEL_MARKS", 50)
    monkeypatch.setattr("traceview.timeline.sums.MAX_SUMMED_MARKS", 2000)
    monkeypatch.setattr(index, "MAX_PLACES_OF_NAME", 5)
    results = []
    for inputs in (inputs_of(whole), in_slices(whole, 7, tmp_path)):
        source = inputs.events
        groups, span = rows(inputs), source.span
        edges = np.linspace(span.start, span.end, 40).astype(np.int64)
        devices = device_lanes(groups)
        sums = [device_sums(device, edges) for device in devices]
        sums += sums_of_devices(devices, span, bin_shift(span.length, 3000), source.sums)[1].values()
        names = sums_of_names(groups, span, bin_shift(span.length, 100), source.sums)[1]
        merged = MergedRows.within(source, groups, BUDGET)
        found = merged.index(len(source.names.texts))
        columns = (found.name, found.count, found.row, found.start, found.length)
        places_of_names = [
            (source.names.texts[name], count, found.rows[row], *place)
            for name, count, row, *place in zip(*(column.tolist() for column in columns), strict=True)
        ]
        assert max(collections.Counter(name for name, *_ in places_of_names).values()) == 5
        lanes = [lane for some in merged.lanes.values() for lane in some]
        cover = places(inputs, lanes, 4000)
        results.append(
            (
                [{name: own[name].tolist() for name in sorted(own) if own[name].any()} for own in sums],
                named([part for part in row_sums(groups, edges) if len(part.bin)], source),
                named([part for part in names if len(part.bin)], source),
                sorted(places_of_names),
                [times.tolist() for times in cover],
                [shown(marks, source) for marks in kept_marks(lanes, cover)],
            )
        )
    for mine, theirs in zip(*results, strict=True):
        assert mine == theirs
    assert results[0][4][0]


def test_server_answers_slices_as_it_answers_the_complete_trace(
    whole: Analysis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "BLOCK_MARKS", 300)
    monkeypatch.setattr(stored, "MIN_LEVEL_MARKS", 50)
    for limit in ("MAX_UNMERGED_MARKS", "MAX_LANE_MARKS", "MAX_READ_MARKS"):
        monkeypatch.setattr(answers, limit, 500)
    monkeypatch.setattr(levels, "MAX_MARKS_WITHOUT_LEVELS", 500)
    monkeypatch.setattr(answers, "MAX_PLACES", 50)
    every = [inputs_of(whole), in_slices(whole, 7, tmp_path)]
    servers = [Answers.from_groups(rows(inputs), inputs.events) for inputs in every]
    monkeypatch.setattr(answers, "MAX_UNMERGED_MARKS", 1 << 40)
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
