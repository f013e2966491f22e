"""The time without the profiler and predictions from a part of a capture."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.captures import sample
from tests.whatif.test_unprofiled import unprofiled
from traceview.engine import run
from traceview.engine.run import Modelled, model_capture
from traceview.model.analysis import Analysis, Iterations, NotMeasured
from traceview.model.findings import NO_GAIN
from traceview.model.trace import Trace
from traceview.model.unprofiled import ESTIMATE
from traceview.pipeline import analyze, open_trace
from traceview.whatif.gains import with_gains


@cache
def analyzed(name: str) -> tuple[Trace, Analysis]:
    trace = open_trace(sample(name))
    return trace, analyze(trace)


def modelled(trace: Trace, analysis: Analysis) -> Modelled:
    """Return the result of model_capture for an analysis as parts are merged."""
    assert isinstance(analysis.iterations, Iterations)
    without = [
        replace(
            device,
            gaps=replace(device.gaps, frame=device.gaps.frame.clear(), profiler=None),
            steady=replace(device.steady, gaps=replace(device.steady.gaps, profiler=None)),
        )
        for device in analysis.devices
    ]
    resident = replace(trace, operations=trace.operations.clear(), api=trace.api.clear())
    iterations = replace(analysis.iterations, unprofiled=None)
    merged = replace(analysis, trace=resident, devices=tuple(without), iterations=iterations)
    return model_capture(merged, trace.with_window, ESTIMATE)


@pytest.mark.parametrize("name", ["dual.sqlite", "ddp2.sqlite"])
def test_small_capture_is_modelled_whole(name: str) -> None:
    trace, analysis = analyzed(name)
    result = modelled(trace, analysis)
    whole = result.analysis
    assert unprofiled(whole) == unprofiled(analysis)
    assert [device.steady.gaps.profiler for device in whole.devices] == [
        device.steady.gaps.profiler for device in analysis.devices
    ]
    found = [replace(each, gain=each.gain if each.gain.source == "none" else NO_GAIN) for each in analysis.findings]
    gained = with_gains(whole, found, result.changes)
    gains = {each.change: each.gain for each in analysis.findings if each.gain.source == "predicted"}
    again = {each.change: each.gain for each in gained if each.gain.source == "predicted"}
    assert gains and gains.items() <= again.items()


def test_part_of_large_capture_gives_about_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "MAX_MODELLED", 5_000)
    trace, analysis = analyzed("dual.sqlite")
    whole, changes = modelled(trace, analysis)
    assert isinstance(analysis.iterations, Iterations) and changes is not None
    part = changes.analysis
    assert isinstance(part.iterations, Iterations)
    assert 1 < part.iterations.count < analysis.iterations.count
    assert unprofiled(whole).mean_ns == pytest.approx(unprofiled(analysis).mean_ns, rel=0.1)


def test_run_without_iterations_is_modelled_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trace, analysis = analyzed("dual.sqlite")
    without = replace(analysis, iterations=NotMeasured("nothing repeats"))
    whole, changes = model_capture(without, trace.with_window, ESTIMATE)
    assert whole == without and changes is not None and changes.model.is_whole_run
    first, last = trace.api["start"].min(), trace.api["end"].max()
    assert changes.model.measured == last - first
    monkeypatch.setattr(run, "MAX_RUN", 1_000)
    assert model_capture(without, trace.with_window, ESTIMATE) == (without, None)
