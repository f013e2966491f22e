"""Real runs whose straggler was made on purpose, and one whose waits are computed here again, row by row."""

from __future__ import annotations

import re
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.captures import original, sample
from tests.fleet.reports import merged, ranks_of, result_of
from traceview.fleet.merge import merge
from traceview.model.fleet import Fleet
from traceview.report.fleet.terminal import render


def test_a_rank_whose_host_is_slow_is_found_with_its_price(slow_host: Fleet) -> None:
    (one,) = slow_host.stragglers
    late = slow_host.ranks[one.rank]
    assert (late.label, one.part) == ("slowhost_rank1", "host")
    assert late.last_count == late.matched == 64
    others = [rank for rank in slow_host.ranks if rank is not late]
    assert one.cost == late.bare_caused == pytest.approx(sum(rank.bare_wait for rank in others), abs=3)
    # What it takes longer than the others is what they wait for it, and end with it.
    assert one.lag == pytest.approx(one.cost_each, rel=0.15)
    assert "data loading" in slow_host.advice[0].text and slow_host.advice[0].rank == one.rank


def test_a_rank_whose_gpu_is_shared_is_found_by_its_kernels(slow_gpu: Fleet) -> None:
    (one,) = slow_gpu.stragglers
    assert (slow_gpu.ranks[one.rank].label, one.part, one.more_kernels) == ("slowgpu_rank2", "compute", 0)
    assert 0.15 < one.share < 0.35
    assert slow_gpu.advice[0].title.startswith("slowgpu_rank2 takes 23.8% more time of its own")


def test_a_margin_that_is_wide_enough_finds_none(slow_gpu: Fleet) -> None:
    wide = merged(ranks_of("slowgpu"), margin=0.3)
    assert wide.stragglers == ()
    assert [rank.lag for rank in wide.ranks] == [rank.lag for rank in slow_gpu.ranks]
    # The waits are there all the same, and are told.
    assert "wait in collectives" in wide.advice[0].title


@pytest.mark.parametrize("name", ["slow_host", "slow_gpu", "two_in_one"])
def test_all_ranks_take_equally_long_and_parts_add_up(name: str, request: pytest.FixtureRequest) -> None:
    fleet: Fleet = request.getfixturevalue(name)
    walls = [rank.wall for rank in fleet.ranks]
    # Each iteration ends with a collective: the ranks cannot drift apart.
    assert max(walls) < 1.005 * min(walls)
    for rank in fleet.ranks:
        assert rank.own + rank.exposed_communication == rank.wall
        assert rank.compute + rank.exposed_communication + rank.copies + rank.idle == rank.wall
        assert sum(rank.causes) == rank.idle and rank.copies >= 0


def test_waits_are_those_of_a_slow_and_obvious_count(two_in_one: Fleet) -> None:
    path = sample("ddp2.sqlite")
    starts, ends = _collectives(path)
    assert two_in_one.heat is not None
    steady = set(two_in_one.heat.steps[two_in_one.heat.steady == 1].tolist())
    first, second = sorted(starts)
    waited: dict[tuple[int, int], int] = defaultdict(int)
    for step, number in starts[first]:
        if step in steady:
            places = (step, number)
            late = max((starts[process][places], process) for process in (first, second))[1]
            early = first if late == second else second
            own = ends[early][places] - starts[early][places]
            waited[early, late] += min(starts[late][places] - starts[early][places], own)
    found = {(pair.waiter, pair.last): pair.waited for pair in two_in_one.pairs}
    rows = {first: 0, second: 1}
    assert found == {(rows[early], rows[late]): ns for (early, late), ns in waited.items() if ns}


def _collectives(path: Path) -> tuple[dict[int, dict[tuple[int, int], int]], dict[int, dict[tuple[int, int], int]]]:
    """Return starts and ends by process, then by (iteration, n-th of it)."""
    with closing(sqlite3.connect(path)) as database:
        ranges = database.execute(
            "SELECT (globalTid >> 24) & 16777215, start, coalesce(text, value) FROM NVTX_EVENTS "
            "LEFT JOIN StringIds ON id = textId WHERE eventType = 59 ORDER BY start"
        ).fetchall()
        kernels = database.execute(
            "SELECT (k.globalPid >> 24) & 16777215, k.start, k.end, r.start FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "JOIN StringIds s ON s.id = k.shortName JOIN CUPTI_ACTIVITY_KIND_RUNTIME r "
            "ON r.correlationId = k.correlationId AND (r.globalTid >> 24) = (k.globalPid >> 24) "
            "WHERE s.value LIKE 'ncclDevKernel_All%' ORDER BY r.start"
        ).fetchall()
    steps = defaultdict(list)
    for process, start, name in ranges:
        if found := re.fullmatch(r"iteration (-?\d+)", name):
            steps[process].append((start, int(found[1])))
    starts: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    ends: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    for process, start, end, launched in kernels:
        at = bisect_right(steps[process], (launched, 10**9)) - 1
        step = steps[process][at][1] if at >= 0 else -(10**9)
        number = sum(1 for known, _ in starts[process] if known == step)
        starts[process][step, number], ends[process][step, number] = start, end
    return starts, ends


def test_two_runs_in_one_folder_are_told_apart(slow_host: Fleet) -> None:
    both = merged([*ranks_of("slowhost"), *ranks_of("slowgpu")])
    assert [group.ranks for group in both.groups] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [clock.method for clock in both.clocks] == [
        "reference",
        *["collectives"] * 3,
        "unknown",
        *["collectives"] * 3,
    ]
    assert [rank.matched for rank in both.ranks] == [64] * 8
    assert any("2 sets that share no collective" in note for note in both.notes)
    found = [rank.wait for rank in both.ranks[:4]]
    assert found == [rank.wait for rank in slow_host.ranks]
    # Each is compared with its own run, and so nothing else is a straggler, and nobody lags more or less.
    assert [rank.set for rank in both.ranks] == [0] * 4 + [1] * 4
    assert {both.ranks[one.rank].label for one in both.stragglers} == {"slowhost_rank1", "slowgpu_rank2"}
    assert [rank.lag for rank in both.ranks[:4]] == [rank.lag for rank in slow_host.ranks]
    assert [one.waiting for one in both.advice] == [3, 3]


def test_a_capture_that_comes_twice_is_named() -> None:
    first = ranks_of("slowhost")[0]
    twice = merge(["a.sqlite", "b.sqlite"], [result_of(first)] * 2)
    assert twice.notes[0].startswith("b.sqlite holds the same capture as a.sqlite: ")
    alone = merge(["a.sqlite"], [result_of(first)])
    assert alone.notes == ()


def test_without_collectives_no_price_is_made_up() -> None:
    fleet = merged([sample("dual.sqlite"), sample("cudagraph.sqlite")])
    assert [one.cost for one in fleet.stragglers] == [0]
    assert "cannot be told: no collective was matched" in render(fleet) and "It costs" not in render(fleet)


def test_rooted_collectives_are_left_out_and_said(two_in_one: Fleet) -> None:
    assert {group.kind for group in two_in_one.groups} == {"AllReduce"}
    assert two_in_one.unmatched == 8
    assert any("4 rooted collectives" in note for note in two_in_one.notes)


def test_streams_of_other_numbers_and_other_iteration_names_still_match() -> None:
    fleet = merged([original("public/nsys2026.2_2gpu_nccl.sqlite")])
    (group,) = fleet.groups
    assert (group.kind, fleet.unmatched, group.how) == ("SendRecv", 0, "order")
    assert sum(rank.matched for rank in fleet.ranks) == 2 * group.count == 56  # of 66: five steps are not on both


def test_the_heat_map_holds_what_the_rows_are_means_of(slow_host: Fleet) -> None:
    heat = slow_host.heat
    assert heat is not None and heat.steps.tolist() == list(range(21, 30))
    for row, rank in enumerate(slow_host.ranks):
        steady = heat.steady == 1
        assert rank.iterations == int(steady.sum())
        for figure in ("wall", "compute", "wait"):
            assert getattr(rank, figure) == int(getattr(heat, figure)[row][steady].sum()) // rank.iterations
        lags = heat.own[row] - np.median(np.delete(heat.own, row, axis=0), axis=0)
        assert rank.lag == round(float(np.median(lags[steady])))
