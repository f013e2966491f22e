"""Documents of `analyze --json` in place of reports: the same verdict, what they lack, and what damages them."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from tests.cli.command import Command
from tests.comparison.test_captures import identity, only
from traceview import Comparison, compare
from traceview.comparison.document import read_document
from traceview.errors import ReportError, TraceviewError
from traceview.report.analysis import document, to_json
from traceview.report.comparison import to_json as comparison_json
from traceview.report.comparison.terminal import render as render_text
from traceview.report.comparison.terminal import render_brief, to_markdown

PAIRS = [("serial", "dual"), ("dual", "ddp2"), ("trainer/serial", "trainer/pinned"), ("mpi/heat", "serial")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the document of each sample of PAIRS, under the sample's name."""
    for name in {name for pair in PAIRS for name in pair}:
        path = tmp_path / f"{name.replace('/', '_')}.json"
        path.write_text(to_json(analyzed(sample(f"{name}.sqlite"))), encoding="utf-8")
    return tmp_path


def both(folder: Path, name: str) -> tuple[Any, Any]:
    """Return the analysis of a sample and the path of its document."""
    return analyzed(sample(f"{name}.sqlite")), folder / f"{name.replace('/', '_')}.json"


@pytest.mark.parametrize("pair", PAIRS)
def test_verdict_is_that_of_the_reports(folder: Path, pair: tuple[str, str]) -> None:
    (before, old), (after, new) = (both(folder, name) for name in pair)
    truth = compare(before, after)
    for pair_of_inputs in ((old, after), (before, new), (old, new)):
        comparison = compare(*pair_of_inputs)
        found, expected = only(comparison), only(truth)
        for name in ("verdict", "why", "confidence", "ratio", "ratio_low", "ratio_high", "time"):
            assert getattr(found, name) == getattr(expected, name), name
        for capture, other in ((comparison.base, truth.base), (found.capture, expected.capture)):
            for name in ("devices", "iterations", "range", "count", "skipped", "wall_ns", "start_ns", "quantiles_ns"):
                assert getattr(capture, name) == getattr(other, name), name
            assert capture.unprofiled_ns == other.unprofiled_ns
        assert found.unprofiled_ratio == expected.unprofiled_ratio
        assert found.work.multiple == expected.work.multiple and found.host == () == found.lines
        assert sum(part.before for part in found.mean_parts) == found.time.before
        assert sum(part.after for part in found.mean_parts) == found.time.after
        lacks = [note.text for note in comparison.notes if note.id == "document"]
        assert lacks and all(text.endswith(" are not measured") for text in lacks)


@pytest.mark.parametrize("pair", PAIRS[:3])
def test_means_are_close_to_those_of_the_reports(folder: Path, pair: tuple[str, str]) -> None:
    """The steady part ends with the last iteration, without the pause after it."""
    (before, old), (after, new) = (both(folder, name) for name in pair)
    truth, found = only(compare(before, after)), only(compare(old, new))
    expected = {part.name: part for part in truth.mean_parts}
    for part in found.mean_parts:
        exact = expected[part.name]
        for name in ("before", "after"):
            assert abs(getattr(part, name) - getattr(exact, name)) < 0.02 * getattr(found.time, name), part.name
        assert part.low is None and part.verdict in ("unjudged", "noise")
    costs = {identity(kernel): kernel.time.mean_before for kernel in truth.kernels}
    for kernel in found.kernels[:5]:
        assert kernel.time.mean_before == pytest.approx(costs[identity(kernel)], rel=0.05, abs=1000)


def several(folder: Path) -> Comparison:
    paths = (both(folder, name) for name in ("serial", "dual", "ddp2"))
    (before, _), (_, middle), (after, _) = paths
    return compare(before, middle, after)


def test_reports_of_several(folder: Path) -> None:
    comparison = several(folder)
    for text in (render_text(comparison), render_brief(comparison), to_markdown(comparison)):
        assert "dual.json" in text


def test_kernels_that_a_document_does_not_name(tmp_path: Path) -> None:
    """A kernel beyond the costliest is not one that appeared."""
    made: Any = document(analyzed(sample("dual.sqlite")))
    rows = made["devices"][0]["steady"]["kernels"]
    rest = rows[-1] | {"name": "(9 other kernels)", "label": "(9 other kernels)", "grid": None, "block": None}
    made["devices"][0]["steady"]["kernels"] = [*rows[:3], rest]
    (path := tmp_path / "cut.json").write_text(json.dumps(made))
    found = only(compare(path, analyzed(sample("dual.sqlite"))))
    assert 0 < len(found.kernels) <= 3 and {kernel.status for kernel in found.kernels} <= {"same", "changed"}


WRONG = {
    "[1]": "is not a document",
    "{": "is damaged",
    '{"schema_version": 1, "a": NaN}': "has NaN or Infinity",
    '{"schema_version": 99}': "has schema_version 99",
    '{"schema_version": true}': "has schema_version True",
    '{"schema_version": 1, "predictions": []}': "is a document of another command",
    '{"schema_version": 1, "report": {}, "devices": [], "iterations": {}}': "report.nsys_version is missing",
    '{"schema_version": 1, "a": ' + "[" * 100_000: "is nested too deeply",
    '{"schema_version": 1, "a": ' + "1" * 5000 + "}": "is damaged",
}


@pytest.mark.parametrize("text", WRONG, ids=WRONG.values())
def test_wrong_document_is_one_line(traceview: Command, tmp_path: Path, text: str) -> None:
    (tmp_path / "main.json").write_text(text)
    with pytest.raises(ReportError, match=WRONG[text]):
        read_document(tmp_path / "main.json")
    code, out, err = traceview("compare", tmp_path / "main.json", sample("dual.sqlite"))
    assert (code, out, err.count("\n")) == (2, "", 1) and "main.json: " in err


def test_large_document_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceview.comparison.document.MAX_BYTES", 1_000_000)
    (tmp_path / "main.json").write_text('{"schema_version": 1, "a": "' + "x" * 1_000_000 + '"}')
    with pytest.raises(ReportError, match="has more than 1 MB"):
        read_document(tmp_path / "main.json")


@cache
def small() -> str:
    return to_json(analyzed(sample("cudagraph.sqlite")))


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, each in inner for place in places(each, (*path, key)))]


ODD = st.sampled_from(
    [None, True, -1, 0, 1, 2**53, 2**62, -(2**62), 10**30, 1e308, "", "\ud800", "\x1b[31m", [], {}, [[]], "x" * 99]
)


@given(st.data())
def test_any_damage_is_refused_or_compared(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    made = json.loads(small())
    for _ in range(data.draw(st.integers(1, 3))):
        *path, last = data.draw(st.sampled_from([place for place in places(made) if place]))
        holder = made
        for key in path:
            holder = holder[key]
        if data.draw(st.booleans()):
            holder[last] = data.draw(ODD)
        elif isinstance(holder, dict):
            del holder[last]
        else:
            holder.append(holder[last])
    path_of = tmp_path_factory.mktemp("damaged") / "main.json"
    path_of.write_text(json.dumps(made))
    try:
        comparison = compare(path_of, analyzed(sample("cudagraph.sqlite")))
    except TraceviewError as error:
        assert str(error).startswith("main.json: ") and "\n" not in str(error)
    else:
        to_markdown(comparison).encode(), render_text(comparison).encode(), comparison_json(comparison).encode()


def test_document_where_a_report_is_needed(traceview: Command, folder: Path) -> None:
    code, out, err = traceview("analyze", folder / "dual.json", "--no-html")
    assert (code, out, err.count("\n")) == (2, "", 1) and "`traceview compare` alone reads" in err


def test_time_without_the_profiler_of_a_document(folder: Path) -> None:
    old, new = (both(folder, name)[1] for name in ("serial", "dual"))
    comparison = compare(old, new, unprofiled_ns=[20_000_000, 10_000_000])
    assert comparison.base.unprofiled_ns == {"mean": 20_000_000, "low": 20_000_000, "high": 20_000_000}
    assert only(comparison).unprofiled_ratio == 0.5
