"""Sizes of answers, the files that may be read, and the command, without a client."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import SAMPLES, sample
from tests.cli.command import Command
from traceview.errors import RequestError
from traceview.pipeline import analyze
from traceview.report.analysis import document
from traceview.serve.agents import MAX_BYTES, NAMES, Tools, to_text
from traceview.serve.captures import Captures

VALUES = st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(max_size=300)
ROWS = st.lists(st.dictionaries(st.sampled_from(["name", "time_ns", "share"]), VALUES, min_size=1), max_size=30)


@given(st.dictionaries(st.sampled_from(["kernels", "lines", "notes", "answer"]), ROWS | VALUES))
def test_answers_fit_and_count_what_they_leave_out(answer: dict[str, Any]) -> None:
    found = json.loads(to_text(answer, 1_500))
    assert len(to_text(answer, 1_500).encode()) <= 1_500
    left_out = found.pop("left_out", {})
    for name, rows in answer.items():
        if isinstance(rows, list) and rows:
            assert len(found[name]) + left_out.get(name, 0) == len(rows)


def test_zeros_stay_and_missing_values_go() -> None:
    assert json.loads(to_text({"a": 0, "b": None, "c": "", "d": {"e": []}, "f": False})) == {"a": 0, "f": False}


def test_files_outside_the_folder_are_refused(tmp_path: Path) -> None:
    inside, outside = tmp_path / "work", tmp_path / "other"
    for folder in (inside, outside):
        folder.mkdir()
        shutil.copy(sample("scenarios/p2p.sqlite"), folder / "a.sqlite")
    (inside / "link.sqlite").symlink_to(outside / "a.sqlite")
    captures = Captures([], inside)
    assert captures.path("a.sqlite") == captures.path(str(inside / "a.sqlite")) == inside / "a.sqlite"
    for name in ("../other/a.sqlite", str(outside / "a.sqlite"), "link.sqlite", "/etc/passwd"):
        with pytest.raises(RequestError, match="outside the working folder"):
            captures.path(name)
    named = Captures([outside / "a.sqlite"], inside)
    assert named.path("link.sqlite") == outside / "a.sqlite"
    assert [row["capture"] for row in named.listed()] == [str(outside / "a.sqlite"), "a.sqlite", "link.sqlite"]
    with pytest.raises(RequestError, match="is a folder"):
        captures.path(".")


def test_every_tool_is_bounded(tmp_path: Path) -> None:
    tools, name = Tools(Captures([], SAMPLES)), "ddp2.sqlite"
    answers = [
        *(tools.open(), tools.open(name), tools.summary(name), tools.findings(name, rows=50)),
        *(tools.findings(name, number=1), tools.kernels(name, rows=50), tools.table(name, "nvtx", rows=50)),
        *(tools.window(name, "100ms", "200ms"), tools.compare(name, name), tools.lines(name)),
    ]
    assert all(0 < len(to_text(answer).encode()) <= MAX_BYTES for answer in answers)
    opened = tools.open(name, iteration="iteration -", skip=1)["iterations"]
    assert (opened["count"], opened["skipped"]) == (3, 1)
    assert tools.summary(name)["iterations"]["count"] == 3  # the options stay in force
    assert tools.open(name)["iterations"]["count"] > 3
    tools.open(name, whole=True)
    truth: Any = document(analyze(sample(name), whole=True))["devices"][1]  # type: ignore[index, call-overload]
    window = tools.summary(name, device="GPU 1")["devices"][0]["window"]
    assert (window["idle_ns"], window["window_ns"]) == (truth["idle_ns"], truth["window_ns"])
    assert tools.kernels(name, device="GPU 1")["rows"][0]["total_ns"] == truth["kernels"][0]["total_ns"]
    for wrong in (lambda: tools.findings(name, number=99), lambda: tools.table(name, "x"), lambda: tools.window(name)):
        with pytest.raises(RequestError):
            wrong()


def test_command_prints_the_skill_and_names_a_missing_package(
    traceview: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    skill = traceview("mcp", "--skill").out
    assert skill.startswith("---\nname: traceview\n")
    assert [name for name in NAMES if f"`{name}`" not in skill] == []
    monkeypatch.setitem(sys.modules, "mcp.server", None)
    monkeypatch.delitem(sys.modules, "traceview.serve.agents", raising=False)
    missing = traceview("mcp")
    assert (missing.code, missing.err.count("\n")) == (2, 1) and "pip install 'traceview[mcp]'" in missing.err
