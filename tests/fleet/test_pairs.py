"""The longest pairs against a dictionary of all of them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.fleet import pairs
from traceview.fleet.pairs import Arrivals, longest_pairs

RANKS = 6


@st.composite
def groups(draw: st.DrawFn) -> Arrivals:
    """Return the waits of some of the ranks in some collectives; ties and zeros are common."""
    ranks = sorted(draw(st.sets(st.integers(0, RANKS - 1), min_size=2)))
    count = draw(st.integers(1, 5))
    waits = st.lists(st.integers(0, 3), min_size=count, max_size=count)
    wait = [draw(waits) for _ in ranks]
    latest = draw(st.lists(st.integers(0, len(ranks) - 1), min_size=count, max_size=count))
    return Arrivals(np.array(ranks, np.int64), np.array(latest, np.int64), np.array(wait, np.int64))


@given(st.lists(groups(), max_size=4), st.integers(1, 8))
def test_they_are_those_that_a_matrix_of_all_pairs_gives(given_groups: list[Arrivals], kept: int) -> None:
    waited: Counter[tuple[int, int]] = Counter()
    times: Counter[tuple[int, int]] = Counter()
    for group in given_groups:
        for row, rank in enumerate(group.ranks.tolist()):
            for column, last in enumerate(group.ranks[group.latest].tolist()):
                waited[rank, last] += int(group.wait[row, column])
                times[rank, last] += int(group.wait[row, column] > 0)
    every = sorted((-sum_, *pair) for pair, sum_ in waited.items() if sum_)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pairs, "PAIRS", kept)
        patch.setattr(pairs, "PRUNED_AT", kept)
        found, count = longest_pairs(given_groups, RANKS)
    assert count == len(every)
    assert [(-one.waited, one.waiter, one.last) for one in found] == every[:kept]
    assert [one.count for one in found] == [times[one.waiter, one.last] for one in found]
