"""Losses and times give the same records in any order of arrival."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from instrument.monitor import Sinks
from instrument.monitor.journal import Journal
from instrument.monitor.metrics import StepFigures
from tests.instrument.monitor.test_sink import Recorder


def journal(kept: Recorder, *, every: int = 10, first: int = 0, peak: float | None = None) -> Journal:
    return Journal(Sinks([kept]), every, peak, None, torch.device("cpu"), first=first)


def step(number: int) -> StepFigures:
    return StepFigures(number, step_ms=10.0, samples=4)


def loss(number: int) -> tuple[int, dict[str, float]]:
    return number, {"loss": float(number)}


def test_record_covers_its_window() -> None:
    kept = Recorder()
    one = journal(kept, every=3)
    one.add([loss(0), loss(1)], [step(0), step(1)])
    assert kept.records == []
    one.add([loss(2)], [step(2)])
    ((at, figures),) = kept.records
    assert at == 2
    assert figures["loss"] == 1.0
    assert figures["perf/samples_per_s"] == 400
    assert one.latest == figures


@given(st.integers(0, 40), st.integers(0, 15), st.integers(1, 7), st.data())
def test_every_step_is_in_exactly_one_record(steps: int, first: int, every: int, data: st.DataObject) -> None:
    kept = Recorder()
    one = journal(kept, every=every, first=first)
    losses = [loss(number) for number in range(first, first + steps)]
    times = [step(number) for number in range(first, first + steps)]
    while losses or times:
        some = data.draw(st.integers(0, 5))
        one.add(losses[:some], times[: 5 - some])
        del losses[:some], times[: 5 - some]
    one.finish()
    one.finish()
    numbers = range(first, first + steps)
    windows = {at: found["loss"] for at, found in kept.records if "loss" in found}
    expected: dict[int, list[int]] = {}
    for number in numbers:
        expected.setdefault(min((number // every + 1) * every, first + steps) - 1, []).append(number)
    assert windows == {at: sum(within) / len(within) for at, within in expected.items()}
    assert one.losses.tolist() == [float(number) for number in numbers]


def test_metrics_of_a_loss_function_are_means() -> None:
    kept = Recorder()
    one = journal(kept, every=2)
    one.add([(number, {"loss": 1.0, "accuracy": number / 2}) for number in range(2)], [step(0), step(1)])
    one.add([(2, {"loss": 1.0})], [step(2)])
    one.finish()
    assert [figures.get("accuracy") for _step, figures in kept.records] == [0.25, None]


def test_failed_step_is_in_no_record() -> None:
    """The times of the step arrive, but not its loss."""
    kept = Recorder()
    one = journal(kept, every=1)
    one.add([loss(0)], [step(0), step(1)])
    one.finish()
    assert [at for at, found in kept.records if "loss" in found] == [0]


def test_operations_and_memory_are_in_the_record() -> None:
    kept = Recorder()
    journal = Journal(Sinks([kept]), 1, 2000.0, 5, torch.device("cpu"))
    journal.add([loss(0)], [step(0)])
    ((_, figures),) = kept.records
    assert (figures["perf/flops_per_s"], figures["perf/mfu"]) == (500, 0.25)
    assert (figures["perf/host_rss_bytes"] or 0) > 1 << 20


def test_recent_loss_is_the_mean_of_the_last_steps() -> None:
    one = journal(Recorder(), every=2)
    assert one.recent_loss() is None
    one.add([loss(1)], [])
    assert one.recent_loss() == 1.0
    one.add([loss(5), loss(6)], [])
    assert one.recent_loss() == 5.5


def test_non_finite_loss_is_recorded() -> None:
    kept = Recorder()
    one = journal(kept, every=1)
    one.add([(0, {"loss": math.nan})], [step(0)])
    assert math.isnan(kept.records[0][1]["loss"] or 0)


def test_no_steps_no_record() -> None:
    kept = Recorder()
    journal(kept).finish()
    assert kept.records == []
