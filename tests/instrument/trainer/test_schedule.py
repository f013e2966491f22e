"""The learning rate of each step."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from instrument.config.schema import Training
from instrument.trainer.optimizer import LearningRateSchedule

SHAPES = ("constant", "linear", "cosine")


def optimizer(*, on_device: bool = False, groups: int = 1) -> torch.optim.Optimizer:
    rate = torch.tensor(7.0) if on_device else 7.0
    # As a captured graph needs it: `capturable` is for GPUs alone, a rate that is a tensor is not.
    return torch.optim.AdamW(
        [{"params": [torch.nn.Parameter(torch.zeros(1))], "lr": rate} for _ in range(groups)], foreach=False
    )


def training(shape: str, warmup: int = 0) -> Training:
    return Training(schedule=shape, warmup=warmup, learning_rate=0.5)  # type: ignore[arg-type]


def rates(shape: str, steps: int, warmup: int = 0, *, on_device: bool = False) -> list[float]:
    of = optimizer(on_device=on_device)
    schedule, found = LearningRateSchedule(of, training(shape, warmup), steps), []
    for _ in range(steps):
        found.append(float(of.param_groups[0]["lr"]))
        schedule.step()
    return found


@pytest.mark.parametrize("on_device", [False, True])
def test_shapes(on_device: bool) -> None:
    assert rates("constant", 4, on_device=on_device) == [0.5] * 4
    assert rates("linear", 4, on_device=on_device) == [0.5, 0.375, 0.25, 0.125]
    expected = [0.25 * (1 + math.cos(math.pi * step / 4)) for step in range(4)]
    assert rates("cosine", 4, on_device=on_device) == pytest.approx(expected)


@pytest.mark.parametrize("shape", SHAPES)
def test_warm_up_starts_above_zero(shape: str) -> None:
    assert rates(shape, 10, warmup=4)[:5] == [0.125, 0.25, 0.375, 0.5, 0.5]


@given(st.sampled_from(SHAPES), st.integers(0, 30), st.integers(0, 30))
def test_rate_falls_after_warm_up(shape: str, steps: int, warmup: int) -> None:
    schedule = LearningRateSchedule(optimizer(), training(shape, warmup), steps)
    shares = [schedule.rate_fraction(step) for step in range(80)]
    assert all(0 <= share <= 1 for share in shares)
    assert shares[:warmup] == sorted(shares[:warmup])
    assert shares[warmup:] == sorted(shares[warmup:], reverse=True)


@given(st.sampled_from(SHAPES), st.integers(1, 30))
def test_rate_is_positive_in_every_step(shape: str, steps: int) -> None:
    assert all(rate > 0 for rate in rates(shape, steps))


def test_rate_of_every_parameter_group_is_set() -> None:
    of = optimizer(groups=3)
    LearningRateSchedule(of, training("linear"), 2).step()
    assert [group["lr"] for group in of.param_groups] == [0.25] * 3


@pytest.mark.parametrize("on_device", [False, True])
def test_tensor_rate_is_updated_in_place(on_device: bool) -> None:
    of = optimizer(on_device=on_device)
    held = of.param_groups[0]["lr"]
    LearningRateSchedule(of, training("linear"), 4).step()
    assert (of.param_groups[0]["lr"] is held) == on_device
    assert float(of.param_groups[0]["lr"]) == 0.375


@pytest.mark.parametrize("shape", SHAPES)
def test_resumed_run_has_the_same_rates(shape: str) -> None:
    first = LearningRateSchedule(optimizer(), training(shape, 3), 12)
    for _ in range(5):
        first.step()
    of = optimizer()
    second = LearningRateSchedule(of, training(shape, 3), 12)
    second.load_state_dict(first.state_dict())
    found = []
    for _ in range(7):
        found.append(of.param_groups[0]["lr"])
        second.step()
    assert found == rates(shape, 12, 3)[5:]


def test_resumed_run_uses_its_own_rate() -> None:
    first, faster = LearningRateSchedule(optimizer(), training("constant"), 12), optimizer()
    second = LearningRateSchedule(faster, replace(training("constant"), learning_rate=2.0), 12)
    second.load_state_dict(first.state_dict())
    assert faster.param_groups[0]["lr"] == 2.0
