"""Reports with other times, other numbers of strings, or names that JSON has not, have the same figures."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.captures import analyzed, sample
from tests.fuzz import corpus
from tests.fuzz.twins import moved_in_time, renumbered, with_odd_names, without_times
from tests.oracle.differences import differences
from traceview.pipeline import analyze
from traceview.read.kineto.pieces import is_event
from traceview.report.analysis import to_json

Change = Callable[[sqlite3.Connection, random.Random], int]


def document(path: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads(to_json(analyze(path)))
    return result


@pytest.mark.parametrize("change", [moved_in_time, renumbered])
@pytest.mark.parametrize("name", ["dual.sqlite", "ddp2.sqlite", "scenarios/p2p.sqlite"])
def test_figures_of_twins(tmp_path: Path, name: str, change: Change) -> None:
    """Below zero, too: predictions, the program's run and what queued work waits for stay the same."""
    twin = tmp_path / "twin.sqlite"
    shutil.copyfile(sample(name), twin)
    connection = sqlite3.connect(twin)
    with connection:
        moved = change(connection, random.Random(2))
    connection.close()
    assert moved < 0 or change is renumbered
    expected, actual = json.loads(to_json(analyzed(sample(name)))), document(twin)
    assert expected["findings"]
    assert list(differences(without_times(expected, 0), without_times(actual, -moved))) == []


@pytest.mark.parametrize("seed", range(4))
def test_names_that_json_has_not(tmp_path: Path, seed: int) -> None:
    whole = corpus.profiler_trace("serial", 40, tmp_path / "whole.json")
    twin = tmp_path / "twin.json"
    twin.write_bytes(with_odd_names(json.loads(whole.read_text()), random.Random(seed)))
    expected, actual = document(whole), document(twin)
    for part in ("devices", "iterations", "host"):
        assert list(differences(expected[part], actual[part])) == []
    noted = any("not valid JSON" in note["text"] for note in actual["notes"])
    assert noted == (not is_event(twin.read_text()))
