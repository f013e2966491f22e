"""The time without the profiler and predictions from a part of a capture."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.captures import analyzed, sample
from tests.replay.test_unprofiled import unprofiled
from traceview.model.analysis import NotMeasured
from traceview.pipeline import analyze, model, open_trace
from traceview.pipeline.model import model_capture


def test_part_of_large_capture_gives_about_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = unprofiled(analyzed(sample("dual.sqlite"))).mean_ns
    monkeypatch.setattr(model, "MAX_MODELLED", 5_000)
    of_part = unprofiled(analyze(open_trace(sample("dual.sqlite")))).mean_ns
    assert of_part != expected and of_part == pytest.approx(expected, rel=0.1)


def test_run_without_iterations_is_modelled_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = analyzed(sample("dual.sqlite"))
    without = replace(analysis, iterations=NotMeasured("nothing repeats"))
    whole, changes = model_capture(without)
    assert whole == without and changes is not None and changes.model.is_whole_run
    assert changes.model.measured == analysis.run.length
    monkeypatch.setattr(model, "MAX_RUN", 1_000)
    assert model_capture(without) == (without, None)
