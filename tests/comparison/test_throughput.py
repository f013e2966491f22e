"""Tests of the mean time per iteration: block bootstrap against a plain loop, coverage, verdicts and work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from tests.comparison.made_samples import made_samples
from tests.made_trace import made_trace
from traceview import compare
from traceview.comparison import change
from traceview.comparison.change import (
    Series,
    block_length,
    mean_change,
    mean_interval,
)
from traceview.comparison.kernels import KernelSamples, KernelShape, iteration_work
from traceview.intervals import Times
from traceview.model.analysis import Analysis, Iterations
from traceview.model.comparison import CaptureDifference
from traceview.model.trace import Trace
from traceview.report.comparison.tables import notes
from traceview.report.comparison.terminal import render

MS = 1_000_000
VALUES = st.lists(st.integers(0, 1 << 50), min_size=change.MIN_PERIODS, max_size=40).map(
    lambda each: np.array(each, np.int64)
)


def series(values: Times) -> Series:
    return Series(values, block_length(values))


def bounds(before: Times, after: Times) -> tuple[int, int]:
    interval = mean_interval(series(before), series(after))
    assert interval is not None
    return interval.low, interval.high


def plain_block_length(values: list[int]) -> float:
    """Politis and White (2004) as written, one sum at a time, without limits; 1 without correlation."""
    count, mean = len(values), sum(values) / len(values)

    def covariance(lag: int) -> float:
        return sum((values[at] - mean) * (values[at + lag] - mean) for at in range(count - lag)) / count

    run, most = max(5, math.ceil(math.sqrt(math.log10(count)))), math.ceil(math.sqrt(count))
    bound = 2 * math.sqrt(math.log10(count) / count)
    reach = most
    for lag in range(most):
        if all(abs(covariance(lag + step) / covariance(0)) < bound for step in range(1, run + 1)):
            reach = lag
            break
    if not reach:
        return 1
    zero, slope = 0.0, 0.0
    for lag in range(-2 * reach, 2 * reach + 1):
        share = abs(lag) / (2 * reach)
        weight = 1.0 if share <= 0.5 else 2 * (1 - share)
        zero += weight * covariance(abs(lag))
        slope += weight * abs(lag) * covariance(abs(lag))
    return (2 * slope**2 / (4 / 3 * zero**2)) ** (1 / 3) * count ** (1 / 3) if zero > 0 else math.inf


@pytest.mark.parametrize("carried", [0.0, 0.5, 0.9, -0.7])
@pytest.mark.parametrize("count", [30, 97, 199])
def test_block_length_matches_a_plain_sum(carried: float, count: int) -> None:
    random, value, values = np.random.default_rng(count), 0.0, []
    for _ in range(count):
        value = carried * value + float(random.normal())
        values.append(int(1e7 + 1e5 * value))
    limit = math.floor(3 * math.sqrt(count))
    optimal = plain_block_length(values)
    expected = min(count // 5, limit if optimal > limit else round(optimal))
    assert block_length(np.array(values, np.int64)) == max(round(count ** (1 / 3)), expected)


def test_blocks_are_multiples_of_a_period() -> None:
    """Hand-made: two loader workers deliver two batches at once, so that every second iteration waits."""
    assert block_length(np.array([20, 400] * 20, np.int64) * MS) % 2 == 0
    assert block_length(np.array([20, 20, 20, 20, 20, 20, 400] * 9, np.int64) * MS) % 7 == 0
    low, high = bounds(np.array([20, 400] * 20, np.int64) * MS, np.array([18, 396] * 20, np.int64) * MS)
    assert low == high == -3 * MS


@settings(max_examples=20)
@given(VALUES, VALUES)
def test_swapping_negates_the_interval(before: Times, after: Times) -> None:
    low, high = bounds(before, after)
    assert bounds(after, before) == (-high, -low)


@settings(max_examples=20)
@given(VALUES, VALUES, st.integers(0, 1 << 40))
def test_adding_a_constant_moves_the_interval(before: Times, after: Times, more: int) -> None:
    low, high = bounds(before, after)
    assert bounds(before, after + more) == (low + more, high + more)


def test_constant_times_have_no_width() -> None:
    ten, eleven = (np.full(9, ms * MS, np.int64) for ms in (10, 11))
    assert bounds(ten, eleven) == (MS, MS)


Run = Callable[[np.random.Generator, int], Times]


def autocorrelated(random: np.random.Generator, count: int, carried: float = 0.4) -> Times:
    value, values = float(random.normal()), []
    for _ in range(count):
        value = carried * value + math.sqrt(1 - carried**2) * float(random.normal())
        values.append(1e7 + 5e5 * value)
    return np.array(values).astype(np.int64)


def independent(random: np.random.Generator, count: int) -> Times:
    return autocorrelated(random, count, 0.0)


def two_peaked(random: np.random.Generator, count: int) -> Times:
    """Every third iteration waits for the loader, and starts anywhere in that pattern."""
    place = np.arange(count) + int(random.integers(3))
    values: Times = (1e7 * random.lognormal(0, 0.02, count) + (place % 3 == 0) * 4e7).astype(np.int64)
    return values


@pytest.mark.parametrize("count", [6, 10, 30, 120])
@pytest.mark.parametrize("run", [independent, autocorrelated, two_peaked])
def test_coverage_of_the_interval(run: Run, count: int) -> None:
    random = np.random.default_rng(count)
    pairs = [(run(random, count), run(random, count)) for _ in range(150)]
    missed = sum(not low <= 0 <= high for low, high in (bounds(*pair) for pair in pairs))
    # Few iterations do not show that they are autocorrelated.
    assert missed / len(pairs) <= (0.25 if count == 6 else 0.13)


def test_few_iterations_give_a_wide_interval() -> None:
    random = np.random.default_rng(7)
    many = autocorrelated(random, 200, 0.0)
    few, some, all_of_it = (
        high - low for low, high in (bounds(many[:count], many[count : 2 * count]) for count in (5, 20, 100))
    )
    assert few > 1.5 * some > 3 * all_of_it


def steps(lengths_ms: list[float], kernels: int = 1, name: str = "compute") -> Trace:
    """Hand-made: each range holds `kernels` kernels of 1 ms; then the host waits outside the range."""
    operations, api, ranges, at = [], [], [], 0
    for number, length in enumerate(lengths_ms):
        ranges.append((at, at + 2 * MS, f"step {number}", 0))
        for kernel in range(kernels):
            begin = at + 10_000 * (kernel + 1)
            api.append((begin, begin + 5_000, "api", 0))
            each = MS // kernels
            start = at + 100_000 + kernel * each
            operations.append((start, start + each - 1000, name, 0, len(api) - 1))
        at += int(length * MS)
    return made_trace(operations, api, ranges)


def only(before: Analysis, after: Analysis) -> CaptureDifference:
    (against,) = compare(before, after).against
    return against


def test_throughput_decides_where_the_median_disagrees() -> None:
    """Hand-made, like a ResNet-50 with 2 and 14 loader workers: 213 and 66 ms a step, and 2 of 3 steps are equal."""
    slow = steps([20.0, 20.0, 600.0] * 12 + [20.0])
    fast = steps([64.0, 66.0, 68.0] * 12 + [64.0])
    comparison = compare(slow, fast)
    against = comparison.against[0]
    assert (against.verdict, against.capture.quantiles_ns["p50"] // MS) == ("faster", 66)
    assert against.ratio == pytest.approx(66 / 213, rel=0.05) and (against.confidence or 0) > 0.99
    assert "median 20.0 ms, now 66.0 ms; the median moved in the opposite direction" in render(comparison).lower()


@pytest.mark.parametrize("name", ["serial", "dual", "quad", "ddp2", "cudagraph", "trainer/graph", "mpi/ring"])
def test_time_is_that_of_the_analysis(name: str) -> None:
    analysis = analyzed(sample(f"{name}.sqlite"))
    assert isinstance(analysis.iterations, Iterations)
    against = only(analysis, analyzed(sample("serial.sqlite")))
    assert against.time.before == analysis.iterations.time_ns
    assert sum(part.before for part in against.mean_parts) == against.time.before
    assert sum(part.after for part in against.mean_parts) == against.time.after
    assert sum(part.difference for part in against.mean_parts) == against.time.difference


def samples(**counts: int) -> KernelSamples:
    shapes = {KernelShape(name, name, (1,), (1,)): [(count, count * 1000)] * 4 for name, count in counts.items()}
    return made_samples(shapes, iterations=4)


def test_multiple_of_the_same_work() -> None:
    """Hand-made counts: three micro-batches against one, a fused step, and another program."""
    one = samples(gemm=10, norm=4, add=20)
    three = iteration_work(one, samples(gemm=30, norm=12, add=60))
    assert three.multiple == 3 and not three.is_same
    assert iteration_work(samples(gemm=30, norm=12, add=60), one).multiple == pytest.approx(0.33, abs=0.01)
    fused = iteration_work(one, samples(gemm=10, norm=4, fused=3))
    assert fused.is_same and fused.common_fraction == pytest.approx(14 / 34, abs=1e-3)
    assert iteration_work(one, samples(spmv=7)).common_fraction == 0
    assert iteration_work(one, samples()).is_same


def test_different_work_is_not_judged() -> None:
    one = steps([3.0] * 12, kernels=2)
    three = steps([9.0] * 12, kernels=6)
    comparison = compare(one, three)
    against = comparison.against[0]
    assert against.verdict == "unjudged" and "3 times as often" in against.why
    assert any("an iteration of one is several of the other" in note for note in notes(comparison))


def test_period_iterations_are_named() -> None:
    """Hand-made: the iterations of a capture without ranges."""
    analysis = analyzed(sample("dual.sqlite"))
    assert isinstance(analysis.iterations, Iterations)
    period = replace(analysis.iterations, source="period", confidence=0.7, range="period of 300 launches (gemm)")
    comparison = compare(replace(analysis, iterations=period), analysis)
    text = render(comparison)
    assert "20 iterations (period of 300 launches (gemm))" in text
    assert "an iteration is a period of 300 launches (gemm) (confidence low)" in " ".join(text.split())
    assert comparison.base.iterations.source == "period" and comparison.base.iterations.time_ns == period.time_ns


def test_equal_series_are_noise() -> None:
    values = np.random.default_rng(3).integers(9 * MS, 11 * MS, 20)
    change = mean_change("time", series(values), series(values))
    assert change.difference == 0 and change.verdict == "noise" and change.low == -(change.high or 0)
