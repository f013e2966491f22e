"""The answer: its sentence, the remedies in one line, and the predictions that it states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.captures import analyzed, sample
from tests.report.made_analysis import MS, bare_analysis, made_analysis
from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.findings import PredictedTime
from traceview.model.trace import Window
from traceview.rules.answer import with_answer
from traceview.whatif.prediction import whatif as predictions
from traceview.whatif.prediction import with_predictions


@pytest.fixture(scope="module")
def serial() -> Analysis:
    return analyzed(sample("serial.sqlite"))


def answer(analysis: Analysis) -> str:
    return with_answer(analysis).answer


def test_several_devices_have_a_range_of_shares() -> None:
    analysis = made_analysis(devices=2)
    first, second = analysis.devices
    slow = replace(second, steady=replace(second.steady, compute_ns=5 * MS))
    unused = replace(second, steady=replace(second.steady, window=Window(0, 0), compute_ns=0))
    assert answer(replace(analysis, devices=(first, slow, unused))).startswith(
        "The GPUs compute 5.0 to 60% of the time. "
    )
    assert answer(replace(analysis, devices=(first, first))).startswith("The GPUs compute 60% of the time. ")


def test_without_findings_or_gpu_work() -> None:
    assert answer(bare_analysis()) == "The GPU computes 100% of the time. No known problem costs a thousandth of it."
    assert answer(replace(bare_analysis(), devices=())) == "The capture has no GPU work."


def test_answer_states_the_first_finding_and_its_prediction(serial: Analysis) -> None:
    first = serial.findings[0]
    assert first.id == "pageable_copies" and first.prediction is not None and first.prediction.is_unprofiled
    assert serial.answer.startswith(
        "The GPU computes 23% of the time. The largest loss is pageable copies, 60% without the profiler. "
    )
    before, after = (f"{ns / 1e6:.1f}" for ns in (first.prediction.before_ns, first.prediction.after_ns))
    effect = f"Pinned host memory would take an iteration from {before} to {after} ms."
    assert serial.answer.endswith(effect)
    little = PredictedTime("pin", 30 * MS, 30 * MS - 1, is_unprofiled=False)
    changed = replace(serial, findings=(replace(first, prediction=little),))
    assert answer(changed).endswith(
        "60% without the profiler. Pin the host memory, and prefetch on a stream of its own."
    )
    measured = PredictedTime("pin", 3000 * MS, 900 * MS, is_unprofiled=False)
    changed = replace(serial, findings=(replace(first, prediction=measured),))
    assert answer(changed).endswith("take an iteration from 3.00 s to 900 ms.")


def test_predictions_are_those_of_whatif(serial: Analysis) -> None:
    result = predictions(serial)
    assert not isinstance(result, NotMeasured)
    known = {prediction.change: prediction.iteration_ns for prediction in result.predictions}
    stated = [finding.prediction for finding in serial.findings if finding.prediction]
    assert {time.change for time in stated} == {"pin", "graph", "compile"}
    assert all((time.before_ns, time.after_ns) == (result.base_ns, known[time.change]) for time in stated)
    assert with_predictions(serial, None) is serial


def test_remedies_that_fit_the_place(serial: Analysis) -> None:
    remedies = {finding.title: finding.remedy for finding in serial.findings if finding.id == "host_bound"}
    by_range = {title.partition("`")[2].partition("`")[0]: remedy for title, remedy in remedies.items()}
    assert by_range["optimizer"] == "Use a fused or a compiled optimizer step."
    assert by_range["backward"] == "Move the host's work out of the loop, or beside it."  # the range says where
    assert by_range[""] == "Find the line first: `traceview record --python`, or NVTX ranges."
    assert all(0 < len(finding.remedy) <= 70 for finding in serial.findings)
