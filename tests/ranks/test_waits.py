"""Arrivals and waits, compared with a loop over every wait."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceview.ranks import waits as module
from traceview.ranks.match import MatchedCollectives
from traceview.ranks.waits import FleetIterations, Waits, measure_arrivals, measure_waits

RANKS = 6
NUMBERS = np.arange(3)
STEADY = np.array([1, 2])
PRESENT = np.ones((RANKS, 3), np.bool_)
PRESENT[1, 2] = PRESENT[4] = False  # rank 1 lacks an iteration, rank 4 all
ITERATIONS = FleetIterations(NUMBERS, STEADY, PRESENT)
KINDS = np.array(["AllGather", "AllReduce"])


@st.composite
def matched(draw: st.DrawFn) -> list[MatchedCollectives]:
    """Draw groups of collectives, often with ties and waits of zero."""
    groups = []
    for _ in range(draw(st.integers(0, 4))):
        ranks = sorted(draw(st.sets(st.integers(0, RANKS - 1), min_size=2)))
        count = draw(st.integers(1, 5))
        values = st.lists(st.integers(0, 3), min_size=count, max_size=count).map(np.array)
        rows = st.lists(values, min_size=len(ranks), max_size=len(ranks)).map(np.stack)
        start = 10 * np.arange(count) + draw(rows)
        kinds, steps = KINDS[draw(values) % 2], draw(values)  # the iteration 3 is none of NUMBERS
        groups.append(
            MatchedCollectives("g", "order", np.array(ranks), steps, kinds, start, start + draw(rows), draw(rows))
        )
    return groups


@settings(deadline=None)
@given(matched(), st.integers(1, 8))
def test_waits_equal_a_loop(groups: list[MatchedCollectives], kept: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_PAIRS", kept)
        waits = measure_waits([measure_arrivals(group, ITERATIONS) for group in groups], ITERATIONS)
    check_against_loop(groups, waits, kept)


def check_against_loop(groups: list[MatchedCollectives], waits: Waits, kept: int) -> None:
    """Compare with a loop over every rank of every collective."""
    sums: Counter[tuple[str, int]] = Counter()
    by_iteration: Counter[tuple[int, int]] = Counter()
    waited: Counter[tuple[int, int]] = Counter()
    times: Counter[tuple[int, int]] = Counter()
    by_kind: Counter[tuple[int, str]] = Counter()
    for number, group in enumerate(groups):
        for place, step in enumerate(group.step.tolist()):
            arrivals = group.start[:, place].tolist()
            last = int(group.ranks[arrivals.index(max(arrivals))])
            for row, own in enumerate(group.ranks.tolist()):
                length = int(group.end[row, place] - group.start[row, place])
                wait = min(max(arrivals) - arrivals[row], length)
                bare = max(wait - int(group.hidden[row, place]), 0)
                by_iteration[own, step] += wait
                for name, at, value in (
                    ("wait", own, wait),
                    ("bare", own, bare),
                    ("caused", last, wait),
                    ("bare_caused", last, bare),
                ):
                    sums[name, at] += value if step in STEADY else 0
                    sums[f"mean_{name}", at] += value if step in STEADY and PRESENT[at, step] else 0
                if step in STEADY:
                    sums["matched", own] += 1
                    sums["last", own] += own == last
                    waited[own, last] += wait
                    times[own, last] += wait > 0
                    by_kind[number, str(group.kind[place])] += wait
    for name in module.RANK_SUMS:
        assert waits.sums[name].tolist() == [sums[name, at] for at in range(RANKS)]
    assert waits.by_iteration.tolist() == [[by_iteration[at, step] for step in NUMBERS] for at in range(RANKS)]
    assert [figure.waited for figure in waits.figures] == [by_kind[key] for key in sorted(by_kind)]
    longest = sorted((-total, *pair) for pair, total in waited.items() if total)
    assert waits.pair_count == len(longest)
    assert [(-pair.waited, pair.waiter, pair.last) for pair in waits.pairs] == longest[:kept]
    assert [pair.count for pair in waits.pairs] == [times[pair.waiter, pair.last] for pair in waits.pairs]
