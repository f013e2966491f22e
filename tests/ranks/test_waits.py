"""Arrivals and waits: ranks measured apart and merged in any grouping, compared with a loop over every wait."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranks.hand_made import rank, report
from traceview.model.fleet import Clock, PackedColumn, ReportResult
from traceview.ranks import waits as module
from traceview.ranks.match import MatchedCollectives
from traceview.ranks.waits import (
    Arrivals,
    ArrivedGroup,
    FleetIterations,
    Waits,
    WaitSums,
    arrived_group,
    measure_arrivals,
)

RANKS = 6
NUMBERS = np.arange(3)
STEADY = np.array([1, 2])
PRESENT = np.ones((RANKS, 3), np.bool_)
PRESENT[1, 2] = PRESENT[4] = False  # rank 1 lacks an iteration, rank 4 all
ITERATIONS = FleetIterations(NUMBERS, STEADY, PRESENT)
KINDS = ("AllGather", "AllReduce")


@dataclass(frozen=True, slots=True)
class Drawn:
    """Groups, and the reports and clocks of RANKS ranks; the collectives of a rank are those of its groups in turn."""

    groups: tuple[MatchedCollectives, ...]
    reports: tuple[ReportResult, ...]
    clocks: tuple[Clock, ...]

    def some(self, ranks: Sequence[int]) -> list[tuple[int, ReportResult]]:
        """Return some reports with the index of their rank."""
        return [(index, self.reports[index]) for index in ranks]


@st.composite
def matched(draw: st.DrawFn) -> Drawn:
    """Draw collectives on clocks of their own, often with ties and waits of zero."""
    calls: list[list[tuple[int, str, int, int, int]]] = [[] for _ in range(RANKS)]
    hidden: list[list[int]] = [[] for _ in range(RANKS)]
    groups = []
    for _ in range(draw(st.integers(0, 4))):
        ranks = sorted(draw(st.sets(st.integers(0, RANKS - 1), min_size=2)))
        count = draw(st.integers(1, 5))
        values = st.lists(st.integers(0, 3), min_size=count, max_size=count)
        kinds = [KINDS[code % 2] for code in draw(values)]
        steps = draw(values)  # the iteration 3 is none of NUMBERS
        places = []
        for own in ranks:
            places.append(PackedColumn.pack(len(calls[own]) + np.arange(count)))
            hidden[own] += draw(values)
            calls[own] += [
                (step, kind, 0, 10 * place + start, 10 * place + start + length)
                for place, (step, kind, start, length) in enumerate(
                    zip(steps, kinds, draw(values), draw(values), strict=True)
                )
            ]
        groups.append(MatchedCollectives("g", "order", np.array(ranks), tuple(places), np.array(steps), tuple(kinds)))
    clocks = tuple(
        Clock("", "collectives", draw(st.integers(-5, 5)), draw(st.sampled_from([0, 10**8])), 0, 1, None)
        for _ in range(RANKS)
    )
    return Drawn(tuple(groups), tuple(map(report_with, calls, hidden)), clocks)


def report_with(calls: list[tuple[int, str, int, int, int]], hidden: list[int]) -> ReportResult:
    own = rank(calls)
    columns = (*own.collectives.columns[:-1], PackedColumn.pack(np.array(hidden, np.int64)))
    return report(replace(own, collectives=replace(own.collectives, columns=columns)))


def same(one_way: Waits, other: Waits) -> bool:
    columns = ("by_rank", "by_figure")
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


def merged_by_pairs(parts: list[Any], merges: list[int]) -> Any:
    left = list(parts)
    for at in merges:
        left[at : at + 2] = [left[at].merged(left[at + 1])]
    return left[0]


@settings(deadline=None)
@given(matched(), groupings(), st.integers(1, 8))
def test_any_grouping_of_ranks(drawn: Drawn, grouping: tuple[list[list[int]], list[int]], kept: int) -> None:
    parts, merges = grouping
    numbered = dict(enumerate(drawn.groups))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MAX_PAIRS", kept)
        patch.setattr(module, "PRUNE_AT", kept)
        together = measure_arrivals(numbered, drawn.clocks, drawn.some(range(RANKS)))
        apart = merged_by_pairs([measure_arrivals(numbered, drawn.clocks, drawn.some(part)) for part in parts], merges)
        assert together.keys() == apart.keys() == numbered.keys()
        assert all(columns(together[number]) == columns(apart[number]) for number in numbered)
        groups = [arrived_group(group, together[number], ITERATIONS) for number, group in numbered.items()]
        waits, by_iteration = waits_of(drawn, groups, range(RANKS))
        shares = [waits_of(drawn, groups, part)[0] for part in parts]
        assert same(waits, merged_by_pairs(shares, merges))
        check_against_loop(drawn, waits, by_iteration, kept)


def waits_of(drawn: Drawn, groups: list[ArrivedGroup], ranks: Iterable[int]) -> tuple[Waits, list[list[int]]]:
    """Return the waits of some ranks, and those of each of them in each iteration."""
    sums = WaitSums(groups, ITERATIONS)
    rows = [sums.add(own, drawn.reports[own].ranks[0].collectives, drawn.clocks[own]).tolist() for own in ranks]
    return sums.total(), rows


def columns(arrivals: Arrivals) -> list[list[int]]:
    return [
        column.tolist()
        for column in (arrivals.first, arrivals.last, arrivals.latest, arrivals.first_end, arrivals.shortest)
    ]


def check_against_loop(drawn: Drawn, waits: Waits, rows_by_iteration: list[list[int]], kept: int) -> None:
    """Compare with a loop over every rank of every collective."""
    sums: Counter[tuple[str, int]] = Counter()
    by_iteration: Counter[tuple[int, int]] = Counter()
    waited: Counter[tuple[int, int]] = Counter()
    times: Counter[tuple[int, int]] = Counter()
    for group in drawn.groups:
        rows = []
        for own, places in zip(group.ranks.tolist(), group.places, strict=True):
            collectives = drawn.reports[own].ranks[0].collectives
            rows.append((*collectives.times(places, drawn.clocks[own]), collectives.hidden(places)))
        for place, step in enumerate(group.step.tolist()):
            arrivals = [int(start[place]) for start, _, _ in rows]
            last = int(group.ranks[arrivals.index(max(arrivals))])
            for own, (start, end, hidden) in zip(group.ranks.tolist(), rows, strict=True):
                wait = int(min(max(arrivals) - start[place], end[place] - start[place]))
                bare = max(wait - int(hidden[place]), 0)
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
    for name in module.RANK_SUMS:
        assert waits.rank_sum(name).tolist() == [sums[name, at] for at in range(RANKS)]
    assert rows_by_iteration == [[by_iteration[at, step] for step in NUMBERS.tolist()] for at in range(RANKS)]
    assert waits.by_figure.sum() == sum(waited.values())
    longest = sorted((-total, *pair) for pair, total in waited.items() if total)
    assert waits.pair_count == len(longest)
    assert [(-pair.waited, pair.waiter, pair.last) for pair in waits.longest_pairs()] == longest[:kept]
    assert [pair.count for pair in waits.longest_pairs()] == [
        times[pair.waiter, pair.last] for pair in waits.longest_pairs()
    ]
