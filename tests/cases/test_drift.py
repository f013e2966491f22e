"""Steps that become longer during a run are stated, with what explains it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.cases.made import analyzed_case, iterations
from tests.made_trace import made_trace
from tests.rules.helpers import MS
from traceview import analyze
from traceview.measure.iterations.drift import iteration_drift
from traceview.measure.iterations.times import IterationLaunches
from traceview.model.drift import Drift


def test_answer_begins_with_steps_that_rise() -> None:
    """Everything in the second half of the run takes 1.2 times as long."""
    analysis = analyzed_case("nsys", "throttle")
    drift = iterations(analysis).drift
    assert drift is not None
    assert (drift.first_ns, drift.last_ns) == (pytest.approx(10.65e6, rel=0.01), pytest.approx(12.6e6, rel=0.01))
    assert drift.kernels_ratio == pytest.approx(1.2, abs=0.01)
    assert analysis.answer.text.startswith(f"Steps {drift.words} during the run: the same kernels take 1.2")
    (note,) = [note for note in analysis.notes if note.id == "drift"]
    assert note.text.startswith(f"Iterations {drift.words} during the run")


@pytest.mark.parametrize("name", ["base_prefetch", "base_serial", "base_dual"])
def test_steps_of_equal_length_do_not_drift(name: str) -> None:
    """Captures of a quiet machine."""
    analysis = analyzed_case("nsys", name)
    assert iterations(analysis).drift is None
    assert analysis.answer.text.startswith("PyTorch training, ")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, "rise from 10.0 to 12.0 ms: the same kernels take 1.20 times as long"),
        ({"first_mhz": 1980, "last_mhz": 1650}, "and the clock of the GPU goes from 1,980 to 1,650 MHz"),
        ({"first_mhz": 1980, "last_mhz": 1980}, "at the same clock of the GPU (1,980 MHz)"),
        ({"last_kernels": 120}, "they launch 100 kernels at first and 120 at the end"),
        ({"kernels_ratio": 1.01}, "rise from 10.0 to 12.0 ms: "),
        (
            {"kernels_ratio": 1.07},
            "the same kernels take 1.07 times as long, which explains a part",
        ),
        ({"kernels_ratio": 0.9}, "although the same kernels take 0.90 times as long"),
        ({"kernels_ratio": None}, "rise from 10.0 to 12.0 ms: "),
        ({"first_ns": 14_000_000}, "fall from 14.0 to 12.0 ms"),
    ],
)
def test_reason_of_a_change(change: dict[str, int | float | None], words: str) -> None:
    """The clock where samples show it, else what the steps launch, or that the kernels do not explain it."""
    drift = replace(Drift(10_000_000, 12_000_000, True, 1.2, 100, 100), **change)
    assert words in f"{drift.words}: {drift.reason}"


@pytest.mark.parametrize("count", [15, 60])
def test_kernels_alone_can_drift(count: int) -> None:
    """Made steps of 10 ms, whose kernel takes 1 ms, and 1.5 ms in the second half; five of them say nothing."""
    work = [(10 * MS * at, 10 * MS * at + (MS if 2 * at < count else 3 * MS // 2)) for at in range(count)]
    trace = made_trace(
        [(start + 1000, end + 1000, "compute", 0, at) for at, (start, end) in enumerate(work)],
        [(start, start + 1000, "api", 0) for start, _ in work],
        [(start, start + 9 * MS, "step", 0) for start, _ in work],
    )
    analysis = analyze(trace)
    drift = iterations(analysis).drift
    assert (drift is not None) == (count > 30)
    assert drift is None or not drift.of_iterations
    assert drift is None or any(
        each.id == "kernel_drift" and each.text == drift.kernel_words for each in analysis.notes
    )
    assert "during the run" not in analysis.answer.text


@pytest.mark.parametrize(
    ("lengths", "drifts"),
    [
        ([100] * 5 + [120] * 5, True),
        ([100, 102, 104, 106, 108, 110, 112, 114, 116, 118], True),
        ([100] * 8 + [300, 300], False),  # two long ones at the end
        ([100] * 5 + [104] * 5, False),  # less than 5%
        ([100, 120] * 6, False),
        ([100] * 4 + [120] * 4, False),  # too few
    ],
)
def test_rank_test(lengths: list[int], drifts: bool) -> None:
    """Made lengths of steps."""
    analysis = analyzed_case("nsys", "base_prefetch")
    steps, count = iterations(analysis), len(lengths)
    moments = steps.steady.start + np.cumsum([0, *lengths])  # no kernel repeats in so short a time
    counted = np.full(count, 9)
    launched = IterationLaunches(counted, counted, counted)
    drift = iteration_drift(analysis.trace, steps, moments, launched, [0])
    assert (drift is not None) == drifts
