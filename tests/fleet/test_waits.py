"""Arrivals and waits: ranks measured apart and merged in any grouping, compared with a loop over every wait."""

from __future__ import annotations

from collections import Counter
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fleet.hand_made import rank
from traceview.fleet import waits as module
from traceview.fleet.match import MatchedCollectives
from traceview.fleet.waits import Arrivals, ArrivedGroup, Waits, arrived_group, measure_arrivals, measure_waits
from traceview.intervals import Times
from traceview.model.collectives import Clock, Member, PackedColumn

RANKS = 6
NUMBERS = np.arange(3)
STEADY = np.array([1, 2])
KINDS = ("AllGather", "AllReduce")


@st.composite
def matched(draw: st.DrawFn) -> MatchedCollectives:
    """Draw collectives of some ranks on clocks of their own, often with ties and waits of zero."""
    ranks = sorted(draw(st.sets(st.integers(0, RANKS - 1), min_size=2)))
    count = draw(st.integers(1, 5))
    values = st.lists(st.integers(0, 3), min_size=count, max_size=count)
    kinds = [KINDS[code % 2] for code in draw(values)]
    steps = draw(values)  # the iteration 3 is none of NUMBERS
    members = []
    for _ in ranks:
        calls = [
            (step, kind, 0, 10 * place + start, 10 * place + start + length)
            for place, (step, kind, start, length) in enumerate(
                zip(steps, kinds, draw(values), draw(values), strict=True)
            )
        ]
        drift = draw(st.sampled_from([0, 10**8]))
        clock = Clock("", "collectives", draw(st.integers(-5, 5)), drift, 0, 1, None)
        collectives = rank(calls).collectives.with_column("hidden", np.array(draw(values), np.int64))
        members.append(Member(collectives, PackedColumn.pack(np.arange(count)), clock))
    return MatchedCollectives("g", "order", np.array(ranks), tuple(members), np.array(steps), tuple(kinds))


def arrived(group: MatchedCollectives, arrivals: Arrivals) -> ArrivedGroup:
    return arrived_group(group, arrivals, NUMBERS, STEADY)


def same(one_way: Waits, other: Waits) -> bool:
    columns = ("by_rank", "by_iteration", "by_figure")
    return all(np.array_equal(getattr(one_way, name), getattr(other, name)) for name in columns) and (
        one_way.longest_pairs(),
        one_way.pair_count,
    ) == (other.longest_pairs(), other.pair_count)


@st.composite
def groupings(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Draw a partition of the ranks in any order, and which two neighbours merge next, until one part is left."""
    order = draw(st.permutations(range(RANKS)))
    cuts = sorted(draw(st.sets(st.integers(1, RANKS - 1))))
    parts = [list(part) for part in np.split(np.array(order), cuts)]
    return parts, [draw(st.integers(0, left - 2)) for left in range(len(parts), 1, -1)]


def merged_by_pairs(parts: list[Waits] | list[Arrivals], merges: list[int]) -> Waits | Arrivals:
    left: list[object] = list(parts)
    for at in merges:
        left[at : at + 2] = [left[at].merged(left[at + 1])]  # type: ignore[attr-defined]
    return left[0]  # type: ignore[return-value]


@settings(deadline=None)
@given(st.lists(matched(), max_size=4), groupings(), st.integers(1, 8))
def test_any_grouping_of_ranks(
    drawn: list[MatchedCollectives], grouping: tuple[list[list[int]], list[int]], kept: int
) -> None:
    parts, merges = grouping
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_PAIRS", kept)
        patch.setattr(module, "PRUNE_AT", kept)
        groups = []
        for group in drawn:
            together = measure_arrivals(group, range(len(group.ranks)))
            rows = [[row for row, own in enumerate(group.ranks) if own in part] for part in parts]
            apart = reduce(Arrivals.merged, [measure_arrivals(group, some) for some in reversed(rows) if some])
            assert arrived(group, together).figures == arrived(group, apart).figures
            assert [column.tolist() for column in columns(together)] == [column.tolist() for column in columns(apart)]
            groups.append(arrived(group, together))
        at_once = measure_waits(groups, range(RANKS), RANKS, len(NUMBERS))
        shares = [measure_waits(groups, part, RANKS, len(NUMBERS)) for part in parts]
        assert same(at_once, merged_by_pairs(shares, merges))  # type: ignore[arg-type]
        check_against_loop(drawn, at_once, kept)


def columns(arrivals: Arrivals) -> list[Times]:
    return [arrivals.first, arrivals.last, arrivals.latest, arrivals.first_end, arrivals.shortest]


def check_against_loop(drawn: list[MatchedCollectives], waits: Waits, kept: int) -> None:
    """Compare with a loop over every rank of every collective."""
    sums: Counter[tuple[str, int]] = Counter()
    by_iteration: Counter[tuple[str, int, int]] = Counter()
    waited: Counter[tuple[int, int]] = Counter()
    times: Counter[tuple[int, int]] = Counter()
    for group in drawn:
        rows = [(*member.times(), member.hidden()) for member in group.members]
        for place, step in enumerate(group.step.tolist()):
            arrivals = [int(start[place]) for start, _, _ in rows]
            last = int(group.ranks[arrivals.index(max(arrivals))])
            for own, (start, end, hidden) in zip(group.ranks.tolist(), rows, strict=True):
                wait = int(min(max(arrivals) - start[place], end[place] - start[place]))
                bare = max(wait - int(hidden[place]), 0)
                each = [("wait", own, wait), ("bare", own, bare), ("caused", last, wait), ("bare_caused", last, bare)]
                for name, at, value in each:
                    by_iteration[name, at, step] += value
                    sums[name, at] += value if step in STEADY else 0
                if step in STEADY:
                    sums["matched", own] += 1
                    sums["last", own] += own == last
                    waited[own, last] += wait
                    times[own, last] += wait > 0
    for name in module.RANK_SUMS:
        assert waits.rank_sum(name).tolist() == [sums[name, at] for at in range(RANKS)]
    for name in module.ITERATION_SUMS:
        expected = [[by_iteration[name, at, step] for step in NUMBERS.tolist()] for at in range(RANKS)]
        assert waits.iteration_sum(name).tolist() == expected
    assert waits.by_figure.sum() == sum(waited.values())
    longest = sorted((-total, *pair) for pair, total in waited.items() if total)
    assert waits.pair_count == len(longest)
    assert [(-pair.waited, pair.waiter, pair.last) for pair in waits.longest_pairs()] == longest[:kept]
    assert [pair.count for pair in waits.longest_pairs()] == [
        times[pair.waiter, pair.last] for pair in waits.longest_pairs()
    ]
