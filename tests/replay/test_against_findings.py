"""`analyze` and `whatif` agree: no change gains more than the findings that explain the same time cost.

Several remedies may save the same ns, but a ns is in one finding only. So the gain of a change is compared with all
findings on time that the change can save: a host that no longer waits also hides what it does afterwards.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures import ALL, SAMPLES, analyzed, sample, shared
from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.whatif import Prediction, WhatIf
from traceview.replay import prediction
from traceview.replay.changes import CHANGES
from traceview.replay.prediction import whatif

HOST = {"host_bound", "data_loading", "launch_bound", "kernel_storm", "slow_calls", "allocation"}
QUEUED = {"operation_gaps", "dependency_wait", "process_wait", "late_start"}
WAITS = QUEUED | {"synchronize", "pageable_copies", "exposed_copies", "managed_wait", "unknown_launch"}
COPIES = {"pageable_copies", "exposed_copies", "shared_stream", "exposed_h2d", "exposed_d2h"}
COMMUNICATION = {"communication_wait", "exposed_communication"}
SAVED_BY = {
    "pin": COPIES | WAITS | HOST,
    "prefetch": COPIES,
    "sync": WAITS | HOST | COMMUNICATION,
    "load": {"data_loading", "host_bound", "pageable_copies"},  # a range that loads data may copy it, too
    "fuse": HOST,
    "graph": HOST | WAITS | COPIES | COMMUNICATION,
    "overlap": COMMUNICATION,
}
MAX_REPLAY_ERROR = 0.1  # whatif says that it does not know the program
CLEAR_GAIN = 0.03  # of an iteration
ROUNDING = 0.01
NAMES = sorted(
    str(path.relative_to(SAMPLES))
    for path in SAMPLES.rglob("*")
    if path.name.endswith((".sqlite", ".json.gz")) and "ranks" not in path.parts and path.parent != SAMPLES  # in ALL
)


def check(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    analysis = analyzed(path)  # before the patches: other tests share it
    # Predict the changes of SAVED_BY, each alone: the others take three quarters of the time and are not compared.
    changes = tuple(change for change in CHANGES if change.name in SAVED_BY)
    monkeypatch.setattr(prediction, "CHANGES", changes)
    monkeypatch.setattr(prediction, "compute_changes", lambda trace: ())
    monkeypatch.setattr(prediction.Changes, "best_together", lambda _changes: ())
    result = whatif(analysis)
    if isinstance(result, NotMeasured) or abs(result.error) > MAX_REPLAY_ERROR:
        return
    if any(len(device.process_ids) > 1 for device in analysis.devices):
        return  # whatif models one process
    for row in result.predictions:
        if row.change in SAVED_BY:
            check_prediction(analysis, result, row)


def check_prediction(analysis: Analysis, result: WhatIf, predicted: Prediction) -> None:
    least_gain = result.base_ns - predicted.high_ns
    related = [row for row in analysis.findings if row.id in SAVED_BY[predicted.change]]
    of_run = isinstance(analysis.iterations, NotMeasured)
    cost = sum(row.cost_ns if of_run else row.cost_per_iteration_ns or 0 for row in related)
    if predicted.change == "graph":
        # A graph also shortens the gaps that the hardware needs between kernels, which no finding claims.
        cost += sum(device.steady.gaps.causes["queued"] for device in analysis.devices) // result.counted
    assert least_gain <= cost + ROUNDING * result.measured_ns, predicted.change
    assert related or least_gain <= CLEAR_GAIN * result.measured_ns, predicted.change


@pytest.mark.parametrize("name", NAMES)
def test_gains_in_samples_are_in_the_findings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(sample(name), monkeypatch)


@pytest.mark.parametrize("name", ALL)
def test_gains_in_captures_are_in_the_findings(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check(shared(name), monkeypatch)


def test_named_change_gains_no_more_than_its_finding() -> None:
    """The findings that name a change cost at least what the change gains, where one remedy is meant."""
    for name, change, finding in (("serial", "pin", "pageable_copies"), ("pinned", "prefetch", "shared_stream")):
        analysis = analyzed(sample(f"trainer/{name}.sqlite"))
        result = whatif(analysis)
        assert isinstance(result, WhatIf)
        predicted = next(row for row in result.predictions if row.change == change)
        row = next(row for row in analysis.findings if row.id == finding)
        assert row.change == change
        gain = result.base_ns - predicted.iteration_ns
        assert 0 < gain <= (row.cost_per_iteration_ns or 0)
