"""A counter in steps, against a value for each nanosecond."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.model import sizes
from traceview.model.sizes import CounterSeries, counter_steps

LENGTH = 200
STARTS = st.lists(st.integers(-20, LENGTH + 20), unique=True, max_size=60).map(sorted)


@given(STARTS, st.integers(1, 1 << 30))
def test_steps_agree_with_every_nanosecond(starts: list[int], seed: int) -> None:
    value = np.random.default_rng(seed).integers(-5, 100, len(starts))
    counter = CounterSeries("memory", "bytes", np.array(starts, np.int64), value)
    for most in (4096, 7):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sizes, "MAX_STEPS", most)
            steps = counter_steps(counter, 0, LENGTH)
        each = {at: value[i] for i, start in enumerate(starts) for at in range(max(start, 0), LENGTH)}
        covered = [at for start, end in zip(steps.start, steps.end, strict=True) for at in range(start, end)]
        assert covered == sorted(each)
        assert len(steps.start) <= most
        for start, end, mean, low, high in zip(steps.start, steps.end, steps.mean, steps.low, steps.high, strict=True):
            inside = [each[at] for at in range(start, end)]
            if inside:
                assert (low, high) == (min(inside), max(inside))
                assert mean == pytest.approx(np.mean(inside))
