"""Tests of every figure of the JSON against the oracle, an independent computation, on every real capture."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import ALL, analyzed, shared
from tests.oracle import figures
from tests.oracle.differences import differences
from traceview.model.trace import Window
from traceview.pipeline import analyze, open_trace
from traceview.report.analysis import document


def compare(path: Path, window: Window | None = None, **options: int) -> None:
    expected = figures(path, window=None if window is None else (window.start, window.end), **options)
    found = document(analyze(path, window=window, **options) if window or options else analyzed(path))
    wrong = list(differences(expected, found))
    assert not wrong, f"{len(wrong)} figures differ:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("name", ALL)
def test_every_figure(name: str) -> None:
    path = shared(name)
    compare(path)


@pytest.mark.parametrize("name", ALL)
def test_every_figure_of_a_window(name: str) -> None:
    path = shared(name)
    operations = open_trace(path).operations
    if operations.is_empty():
        pytest.skip("no GPU work for a window")
    # The window cuts its first and last operation.
    early, late = (
        operations.row(len(operations) // 3, named=True),
        operations.row(2 * len(operations) // 3, named=True),
    )
    compare(path, window=Window((early["start"] + early["end"]) // 2, (late["start"] + late["end"]) // 2))


def test_every_figure_with_skip() -> None:
    compare(shared("h200_dual.sqlite"), skip=4)
