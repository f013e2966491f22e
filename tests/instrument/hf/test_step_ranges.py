"""The ranges of a loop that reports its progress by events."""

from __future__ import annotations

import pytest

pytest.importorskip("transformers")

from instrument.hf.batches import StepRanges
from tests.instrument.test_ranges import Recorder, assert_nested


def pushed(recorder: Recorder) -> list[str]:
    assert_nested(recorder.log)
    return [name for what, name, _thread in recorder.log if what == "push"]


def test_steps_hold_one_phase_at_a_time(recorder: Recorder) -> None:
    steps = StepRanges()
    assert steps.figures() == {}
    for step in (0, 0, 1):
        steps.begin(step)
        steps.enter("forward")
        steps.enter("backward")
    steps.close()
    steps.close()
    assert pushed(recorder) == [
        "iteration 0", "forward", "backward", "forward", "backward", "iteration 1", "forward", "backward",
    ]  # fmt: skip
    assert steps.figures()["perf/step_ms"] >= 0
    assert steps.figures() == {}
