"""compare --fail-if: parsing, and the lines of conditions that hold."""

from __future__ import annotations

import pytest

from tests.comparison.test_captures import compare_samples
from traceview.cli.conditions.comparison import QUANTITIES, failures, parse
from traceview.errors import RequestError
from traceview.model.units import exact_duration


def failed(text: str, *names: str) -> list[str]:
    return list(failures([parse(text)], compare_samples(*(names or ("dual", "serial")))))


@pytest.mark.parametrize(
    ("text", "line_start"),
    [
        ("wall > 3%", "wall changed by +15.539121 ms (+110.58%) per iteration in serial.sqlite"),
        ("wall>=110%", "wall changed by"),
        ("exposed_h2d > 1ms", "exposed_h2d changed by"),
        ("exposed_h2d > 100%", "exposed_h2d changed by"),
        ("sync.count > 1", "sync.count changed by +1.90 (+172.73%) per iteration in serial.sqlite"),
        ("sync.count > 100%", "sync.count changed by"),
        ("kernels == 0", "kernels changed by +0.00"),
        ("implicit_sync.count > 500%", "implicit_sync.count changed by +1.00 per iteration in serial.sqlite"),
        ("exposed_communication == 0", "exposed_communication changed by 0 ms (+0.00%)"),
    ],
)
def test_condition_that_holds_shows_the_change(text: str, line_start: str) -> None:
    (line,) = failed(text)
    assert line.startswith(f"{text}: {line_start}")


@pytest.mark.parametrize("text", ["wall > 120%", "wall < 0", "exposed_h2d > 1s", "kernels > 0", "sync.count < 0"])
def test_condition_that_does_not_hold(text: str) -> None:
    assert failed(text) == []


def test_negative_bound_requires_an_improvement() -> None:
    assert failed("wall > -10%", "serial", "dual") == []
    assert len(failed("wall > -90%", "serial", "dual")) == 1


def test_kernels_of_a_name() -> None:
    comparison = compare_samples("dual", "ddp2")
    kernels = [kernel for kernel in comparison.against[0].kernels if kernel.name == "vectorized_elementwise_kernel"]
    assert len(kernels) > 2
    cost = sum(kernel.cost_ns for kernel in kernels)
    quantity = 'kernel:"vectorized_elementwise_kernel"'
    (line,) = failed(f"{quantity} == {cost}", "dual", "ddp2")
    assert f"changed by +{exact_duration(cost)}" in line and line.endswith("per iteration in ddp2.sqlite")
    label = 'kernel:"elementwise_kernel<threshold_kernel_impl>"'
    (slow,) = [kernel for kernel in kernels if kernel.label == "elementwise_kernel<threshold_kernel_impl>"]
    change = slow.per_call.mean_after - slow.per_call.mean_before
    (line,) = failed(f"{label}.per_call == {change}ns", "dual", "ddp2")
    assert line.endswith("per call in ddp2.sqlite")
    assert failed(f"{label}.per_call > {100 * change / slow.per_call.mean_before + 0.01:.2f}%", "dual", "ddp2") == []
    assert len(failed('kernel:"ncclDevKernel_AllReduce_Sum_f32_RING_LL" > 1000%', "dual", "ddp2")) == 1
    with pytest.raises(RequestError, match="no kernel has this name; did you mean"):
        failed('kernel:"vectorised_elementwise_kernel" > 0', "dual", "ddp2")


def test_every_capture_is_checked() -> None:
    assert [line.rsplit(" ", 1)[1] for line in failed("wall < -1%", "serial", "dual", "quad")] == [
        "dual.sqlite",
        "quad.sqlite",
    ]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not a condition; write QUANTITY > NUMBER"),
        ("wall", "is not a condition"),
        ("wall > 5 apples", "is not a condition"),
        ("__import__('os') > 1", "is not a condition"),
        ("exposed_hd2 > 5%", "did you mean exposed_h2d"),
        ("zzz > 1", "use one of time, wall, idle, compute"),
        ("sync.count > 5ms", "sync.count is a count"),
        ('kernel:"gemm".total > 5%', 'use kernel:"NAME" or .per_call'),
    ],
)
def test_invalid_conditions(text: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason):
        parse(text)


def test_every_quantity_has_a_change() -> None:
    for quantity in QUANTITIES:
        assert len(failed(f"{quantity} >= -999999999999")) == 1, quantity
