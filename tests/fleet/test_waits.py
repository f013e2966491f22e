"""The longest pairs compared with a dictionary of all pairs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.fleet import waits as module
from traceview.fleet.waits import GroupWaits, longest_pairs

RANKS = 6


@st.composite
def groups(draw: st.DrawFn) -> GroupWaits:
    """Draw the waits of some ranks in some collectives, often with ties and zeros."""
    ranks = sorted(draw(st.sets(st.integers(0, RANKS - 1), min_size=2)))
    count = draw(st.integers(1, 5))
    values = st.lists(st.integers(0, 3), min_size=count, max_size=count)
    wait = np.array([draw(values) for _ in ranks], np.int64)
    latest = draw(st.lists(st.integers(0, len(ranks) - 1), min_size=count, max_size=count))
    step = np.zeros(count, np.int64)
    return GroupWaits(np.array(ranks, np.int64), step, np.array(latest, np.int64), wait, wait)


@given(st.lists(groups(), max_size=4), st.integers(1, 8))
def test_longest_pairs(given_groups: list[GroupWaits], kept: int) -> None:
    waited: Counter[tuple[int, int]] = Counter()
    times: Counter[tuple[int, int]] = Counter()
    for group in given_groups:
        for row, rank in enumerate(group.ranks.tolist()):
            for column, last in enumerate(group.ranks[group.latest].tolist()):
                waited[rank, last] += int(group.wait[row, column])
                times[rank, last] += int(group.wait[row, column] > 0)
    expected = sorted((-total, *pair) for pair, total in waited.items() if total)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_PAIRS", kept)
        patch.setattr(module, "PRUNE_AT", kept)
        longest, count = longest_pairs(given_groups, RANKS)
    assert count == len(expected)
    assert [(-pair.waited, pair.waiter, pair.last) for pair in longest] == expected[:kept]
    assert [pair.count for pair in longest] == [times[pair.waiter, pair.last] for pair in longest]
