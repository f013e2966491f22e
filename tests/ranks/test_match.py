"""Matching by order, by communicator and by common ends. Hand-made ranks."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranks.hand_made import MS, rank, report
from traceview.model.fleet import Fleet, RankResult
from traceview.ranks.merge import merge

Calls = list[tuple[int, str, int, int, int]]


def fleet_of(*ranks: RankResult) -> Fleet:
    return merge([f"rank{index}.sqlite" for index in range(len(ranks))], [report(each) for each in ranks])


def in_one_report(*ranks: RankResult) -> Fleet:
    return merge(["all.sqlite"], [report(*ranks)])


def calls(steps: range, kinds: str, late: int = 0, channel: int = 0, shift: int = 0) -> Calls:
    """Return one call per letter and iteration, which starts `late` ns later but ends with the others."""
    names = {"a": "AllReduce", "g": "AllGather", "b": "Broadcast"}
    rows = []
    for step in steps:
        for place, letter in enumerate(kinds):
            start = shift + step * 100 * MS + place * 10 * MS
            rows.append((step, names[letter], channel, start + late, start + 8 * MS))
    return rows


def test_ranks_wait_for_the_last_arrival() -> None:
    steps = range(4)
    fleet = in_one_report(*(rank(calls(steps, "aa", late), steps=steps) for late in (0, 3 * MS, MS)))
    assert [row.wait for row in fleet.ranks] == [6 * MS, 0, 4 * MS]
    assert [row.caused for row in fleet.ranks] == [0, 10 * MS, 0]
    assert [row.last_count for row in fleet.ranks] == [0, 8, 0]
    assert [(pair.waiter, pair.last, pair.waited) for pair in fleet.pairs] == [(0, 1, 24 * MS), (2, 1, 16 * MS)]
    (group,) = fleet.groups
    assert (group.skew_median, group.transfer, group.last, group.last_count) == (3 * MS, 5 * MS, 1, 8)


def test_only_common_iterations_match() -> None:
    early, later = range(10), range(6, 16)
    fleet = fleet_of(rank(calls(early, "ag"), steps=early), rank(calls(later, "ag", MS), steps=later))
    assert sum(group.count for group in fleet.groups) == 8 and fleet.unmatched == 40 - 16
    assert any("12 iterations are not in all captures" in note.text for note in fleet.notes)


def test_iteration_with_different_collectives_is_left_out() -> None:
    steps = range(6)
    other = [call for call in calls(steps, "aa", MS) if not (call[0] == 3 and call[3] % (100 * MS) >= 10 * MS)]
    fleet = in_one_report(rank(calls(steps, "aa"), steps=steps), rank(other, steps=steps))
    assert fleet.groups[0].count == 10
    assert any("different collectives in 1 iterations (first in iteration 3)" in note.text for note in fleet.notes)


def test_without_iterations_only_the_common_prefix_matches() -> None:
    begin = -(1 << 62)
    first = [(begin, *call[1:]) for call in calls(range(1), "aaag")]
    second = [(begin, *call[1:]) for call in calls(range(1), "aaaa", MS)]
    fleet = in_one_report(rank(first), rank(second))
    # Streams with different kinds do not match at all.
    assert fleet.groups == () and fleet.unmatched == 8
    longer = [(begin, *call[1:]) for call in calls(range(1), "aaaaaa", MS)]
    fleet = in_one_report(rank(second), rank(longer))
    assert fleet.groups[0].count == 4 and fleet.unmatched == 2
    assert any("only the first 4 of each rank match" in note.text for note in fleet.notes)


def test_ranks_that_end_apart_form_separate_groups() -> None:
    # Two tensor-parallel pairs, 0 with 1 and 2 with 3; the time between the pairs varies.
    steps = range(8)
    rows = []
    for index in range(4):
        rank_calls = calls(steps, "aa", (index % 2) * MS)
        drift = [(step * step % 7) * MS if index > 1 else 0 for step, *_ in rank_calls]
        moved = [(s, k, c, start + by, end + by) for (s, k, c, start, end), by in zip(rank_calls, drift, strict=True)]
        rows.append(rank(moved, steps=steps))
    fleet = in_one_report(*rows)
    assert [group.ranks for group in fleet.groups] == [(0, 1), (2, 3)]
    assert [row.last_count for row in fleet.ranks] == [0, 16, 0, 16]


def test_one_stream_splits_into_groups_with_common_ends() -> None:
    steps = range(4)
    ranks = [
        rank(
            [call for s in steps for call in calls(range(s, s + 1), "aa", own * MS, shift=own % 2 * s**2 * MS)],
            steps=steps,
        )
        for own in range(6)
    ]
    assert [group.ranks for group in fleet_of(*ranks).groups] == [(0, 2, 4), (1, 3, 5)]


def test_clocks_are_known_by_way_of_others() -> None:
    """Pairs of neighbours, and two groups of every second rank; one capture has fewer iterations."""
    ranks = []
    for index in range(8):
        shift, late, steps = index * 1_000 * MS, index % 3 * MS, range(4 if index != 5 else 3)
        pair = calls(steps, "ag", late, channel=0, shift=shift + index // 2 * 7 * MS)
        spread = calls(steps, "a", 2 * late, channel=1, shift=shift + 50 * MS + index % 2 * 5 * MS)
        names = (f"pair {index // 2}", f"spread {index % 2}")
        ranks.append(rank(sorted(pair + spread), communicators=names, steps=steps))
    fleet = fleet_of(*ranks)
    assert [clock.offset for clock in fleet.clocks] == [index * 1_000 * MS for index in range(8)]
    assert [clock.method for clock in fleet.clocks] == ["reference"] + 7 * ["collectives"]
    assert len({group.name for group in fleet.groups}) == 6


def test_communicators_form_groups() -> None:
    steps = range(5)
    tensor = [calls(steps, "a", late, channel=0) for late in (0, MS, 0, 2 * MS)]
    data = [calls(steps, "a", late, channel=1, shift=50 * MS) for late in (0, 0, 3 * MS, 3 * MS)]
    names = (("aa", "cc"), ("aa", "dd"), ("bb", "cc"), ("bb", "dd"))
    rows = [
        rank(sorted([*tensor[index], *data[index]], key=lambda call: call[3]), communicators=names[index], steps=steps)
        for index in range(4)
    ]
    fleet = in_one_report(*rows)
    assert {(group.name, group.ranks) for group in fleet.groups} == {
        ("communicator aa", (0, 1)),
        ("communicator bb", (2, 3)),
        ("communicator cc", (0, 2)),
        ("communicator dd", (1, 3)),
    }
    assert {group.how for group in fleet.groups} == {"communicator"}
    assert not any("do not name communicators" in note.text for note in fleet.notes)


def test_impossible_match_is_refused() -> None:
    # The communicator is the same, but the first rank ends before the second begins.
    steps = range(6)
    second = [(step, kind, 0, start + 20 * MS, end + 20 * MS) for step, kind, _, start, end in calls(steps, "a")]
    fleet = in_one_report(
        rank(calls(steps, "a"), communicators=("aa",), steps=steps), rank(second, communicators=("aa",), steps=steps)
    )
    assert fleet.groups == () and fleet.unmatched == 12
    assert any("6 of 6 matched collectives end on one rank before another begins" in note.text for note in fleet.notes)


def test_reports_without_common_iterations_do_not_match() -> None:
    fleet = fleet_of(
        rank(calls(range(5), "a"), steps=range(5)), rank(calls(range(20, 25), "a", MS), steps=range(20, 25))
    )
    assert fleet.groups == ()
    assert any("no iteration is in all captures: 0 to 4, 20 to 24" in note.text for note in fleet.notes)


@settings(max_examples=40, deadline=None)
@given(
    arrivals=st.integers(2, 5).flatmap(
        lambda ranks: st.lists(
            st.lists(st.integers(0, 5 * MS), min_size=ranks, max_size=ranks), min_size=4, max_size=12
        )
    ),
    shifts=st.lists(st.integers(-(10**12), 10**12), min_size=5, max_size=5),
)
def test_waits_equal_a_loop_for_any_clocks(arrivals: list[list[int]], shifts: list[int]) -> None:
    ranks = len(arrivals[0])
    steps = range(len(arrivals))
    rows = [
        rank(
            [
                (step, "AllReduce", 0, zero[step] + arrivals[step][index], zero[step] + 9 * MS)
                for zero in [[step * 100 * MS + shifts[index] for step in steps]]
                for step in steps
            ],
            steps=steps,
        )
        for index in range(ranks)
    ]
    fleet = fleet_of(*rows)
    assert [clock.offset for clock in fleet.clocks] == [shift - shifts[0] for shift in shifts[:ranks]]
    expected = [sum(max(row) - row[index] for row in arrivals) // len(arrivals) for index in range(ranks)]
    assert [row.wait for row in fleet.ranks] == expected
    assert sum(row.last_count for row in fleet.ranks) == len(arrivals)
    assert sum(pair.waited for pair in fleet.pairs) == sum(max(row) - value for row in arrivals for value in row)
    heat = fleet.heat
    assert heat is not None
    assert np.array_equal(heat.wait, np.array([[max(row) - row[index] for row in arrivals] for index in range(ranks)]))
