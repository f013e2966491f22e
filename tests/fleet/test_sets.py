"""Which ranks share collectives, against a search from rank to rank."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview.fleet.match import Matched
from traceview.fleet.sets import note_of, sets_of

RANKS = 9
groups = st.lists(st.sets(st.integers(0, RANKS - 1), min_size=2, max_size=4), max_size=6)


def matched(ranks: set[int]) -> Matched:
    none = np.empty((len(ranks), 0), np.int64)
    return Matched("AllReduce", "order", np.array(sorted(ranks), np.int64), none, none, none, none[0], ())


@given(groups)
def test_a_set_is_what_can_be_reached(given_groups: list[set[int]]) -> None:
    found = sets_of([matched(ranks) for ranks in given_groups], RANKS)
    reached = []
    for rank in range(RANKS):
        seen = {rank}
        while (more := seen.union(*(group for group in given_groups if group & seen))) != seen:
            seen = more
        reached.append(frozenset(seen))
    joined = {one for one in reached if len(one) > 1}
    if len(joined) < 2:
        assert found.tolist() == [0] * RANKS and note_of(found) == []
        return
    for rank in range(RANKS):
        others = reached[rank] if len(reached[rank]) > 1 else {one for one in range(RANKS) if len(reached[one]) == 1}
        assert set(np.flatnonzero(found == found[rank]).tolist()) == set(others)
    assert sorted(set(found.tolist())) == list(range(len(set(found.tolist()))))
    assert note_of(found)[0].startswith(f"the ranks are {len(set(found.tolist()))} sets")
