"""Tests of the bootstrap interval: symmetry, scaling, exactness and coverage."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceview.comparison import change
from traceview.intervals import Times

TIMES = st.lists(st.integers(0, 1 << 55), min_size=change.MIN_VALUES, max_size=40).map(
    lambda each: np.array(each, np.int64)
)


def bounds(before: Times, after: Times) -> tuple[int, int]:
    interval = change.difference_interval(before, after)
    assert interval is not None
    return interval.low, interval.high


@settings(max_examples=30)
@given(TIMES, TIMES)
def test_swapping_negates_the_interval(before: Times, after: Times) -> None:
    low, high = bounds(before, after)
    assert bounds(after, before) == (-high, -low)
    interval, swapped = change.difference_interval(before, after), change.difference_interval(after, before)
    assert interval is not None and swapped is not None
    assert (interval.below, interval.above) == (swapped.above, swapped.below)


@settings(max_examples=30)
@given(TIMES)
def test_equal_samples(values: Times) -> None:
    low, high = bounds(values, values)
    assert low == -high <= 0


@settings(max_examples=30)
@given(TIMES, TIMES, st.integers(0, 1 << 40))
def test_adding_a_constant_moves_the_interval(before: Times, after: Times, more: int) -> None:
    low, high = bounds(before, after)
    assert bounds(before, after + more) == (low + more, high + more)
    assert bounds(before + more, after + more) == (low, high)


@settings(max_examples=30)
@given(TIMES, TIMES, st.integers(1, 100))
def test_interval_scales_with_the_values(before: Times, after: Times, factor: int) -> None:
    # Medians and differences of even values are whole, so nothing is rounded.
    low, high = bounds(before // 256 * 2, after // 256 * 2)
    assert bounds(before // 256 * 2 * factor, after // 256 * 2 * factor) == (low * factor, high * factor)


@settings(max_examples=30)
@given(TIMES, st.randoms(use_true_random=False))
def test_order_of_iterations_does_not_matter(values: Times, random: np.random.Generator) -> None:
    mixed = values.tolist()
    random.shuffle(mixed)
    assert bounds(values, values + 5) == bounds(np.array(mixed, np.int64), values + 5)


@pytest.mark.parametrize("count", [6, 7, 20, 51])
def test_medians_by_rank_match_plain_resampling(count: int) -> None:
    """Ranks drawn directly have the distribution of the medians of plain resamples."""
    values = np.sort(np.random.default_rng(count).integers(0, 10**9, count)).astype(np.int64)
    medians = np.concatenate(change.resampled_medians(values)) / 2
    plain = np.median(np.random.default_rng(1).choice(values, (20_000, count)), axis=1)
    shares = (2.5, 25, 50, 75, 97.5)
    ranks = [np.searchsorted(np.sort(plain), np.percentile(medians, share)) / len(plain) for share in shares]
    reach = [
        np.searchsorted(np.sort(plain), np.percentile(medians, share), side="right") / len(plain) for share in shares
    ]
    # Medians of few values repeat, so a percentile of one sample lies in a range of percentiles of the other.
    for low, high, share in zip(ranks, reach, shares, strict=True):
        assert low - 0.02 <= share / 100 <= high + 0.02


@pytest.mark.parametrize(("before", "after"), [(6, 6), (10, 10), (10, 30), (60, 60)])
def test_coverage_of_the_interval(before: int, after: int) -> None:
    random = np.random.default_rng(before * 100 + after)

    def run(count: int) -> Times:  # two modes and a tail, like iterations
        slow = random.random(count) < 0.3
        return (1e7 * random.lognormal(0, 0.02, count) + slow * 3e6).astype(np.int64)

    missed = sum(not low <= 0 <= high for low, high in (bounds(run(before), run(after)) for _ in range(200)))
    assert missed / 200 <= 0.1


def test_too_few_values_have_no_interval() -> None:
    many, few = np.arange(10), np.arange(change.MIN_VALUES - 1)
    assert change.difference_interval(many, few) is None
    assert change.difference_interval(few, many) is None


@settings(max_examples=30)
@given(TIMES)
def test_median_is_rounded_down(values: Times) -> None:
    ordered = sorted(values.tolist())
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    assert change.median(values) == low + (high - low) // 2


@settings(max_examples=30)
@given(TIMES, TIMES)
def test_swapping_turns_the_interval_of_the_ratio_round(before: Times, after: Times) -> None:
    """Below five values there is none. The means have as many ns as an iteration."""
    old, new = (change.Series(values + 10**6, 1) for values in (before, after))
    forth, back = change.ratio_interval(old, new), change.ratio_interval(new, old)
    assert (forth is None) == (back is None) == (min(len(before), len(after)) < change.MIN_PERIODS)
    if forth is not None and back is not None:
        assert forth == pytest.approx((1 / back[1], 1 / back[0]))
        assert forth[0] <= new.mean / old.mean <= forth[1]
