"""Sets of ranks that share collectives, compared with a search from rank to rank."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from traceview.ranks.match import rank_sets, set_notes

RANKS = 9
groups = st.lists(st.sets(st.integers(0, RANKS - 1), min_size=2, max_size=4), max_size=6)


@given(groups)
def test_rank_sets(given_groups: list[set[int]]) -> None:
    sets = rank_sets([np.array(sorted(ranks)) for ranks in given_groups], RANKS)
    reached = []
    for rank in range(RANKS):
        seen = {rank}
        while (more := seen.union(*(group for group in given_groups if group & seen))) != seen:
            seen = more
        reached.append(frozenset(seen))
    joined = {ranks for ranks in reached if len(ranks) > 1}
    if len(joined) < 2:
        assert sets.tolist() == [0] * RANKS and not list(set_notes(sets))
        return
    for rank in range(RANKS):
        alone = {other for other in range(RANKS) if len(reached[other]) == 1}
        others = reached[rank] if len(reached[rank]) > 1 else alone
        assert set(np.flatnonzero(sets == sets[rank]).tolist()) == set(others)
    assert sorted(set(sets.tolist())) == list(range(len(set(sets.tolist()))))
    assert next(set_notes(sets)).startswith(f"the ranks form {len(set(sets.tolist()))} sets")
