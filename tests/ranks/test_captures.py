"""Real runs with a deliberate straggler, and one whose waits are recomputed here row by row."""

from __future__ import annotations

import lzma
import re
import sqlite3
from bisect import bisect_right
from collections import defaultdict
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.captures import original, sample
from tests.ranks.reports import merged, ranks_of, result_of
from traceview.model.fleet import Fleet
from traceview.ranks.merge import merge
from traceview.report.fleet.terminal import render


def test_rank_with_a_slow_host(slow_host: Fleet) -> None:
    (straggler,) = slow_host.stragglers
    late = slow_host.ranks[straggler.rank]
    assert (late.label, straggler.part) == ("slowhost_rank1", "host")
    assert late.last_count == late.matched == 64
    others = [rank for rank in slow_host.ranks if rank is not late]
    assert straggler.cost == late.bare_caused == pytest.approx(sum(rank.bare_wait for rank in others), abs=3)
    # The others wait as long as it takes longer.
    assert straggler.lag == pytest.approx(straggler.cost_each, rel=0.15)
    assert "data loading" in slow_host.advice[0].text and slow_host.advice[0].rank == straggler.rank


def test_iterations_without_ranges(slow_gpu: Fleet, tmp_path: Path) -> None:
    """Without ranges, the repeating launches give the same straggler, waits and time of an iteration."""
    stripped = []
    for path in ranks_of("slowgpu"):
        copy = tmp_path / path.name.removesuffix(".xz")
        copy.write_bytes(lzma.decompress(path.read_bytes()))
        with closing(sqlite3.connect(copy)) as connection, connection:
            connection.execute("DELETE FROM NVTX_EVENTS")
        stripped.append(copy)
    fleet = merged(stripped)
    assert [rank.label for rank in fleet.ranks] == [rank.label for rank in slow_gpu.ranks]
    assert any("periods of the launch sequence" in note.text for note in fleet.notes)
    for mine, theirs in zip(fleet.ranks, slow_gpu.ranks, strict=True):
        assert mine.time == pytest.approx(theirs.time, rel=0.02) and mine.own == pytest.approx(theirs.own, rel=0.02)
    assert [(one.rank, one.part) for one in fleet.stragglers] == [(one.rank, one.part) for one in slow_gpu.stragglers]
    assert fleet.advice[0].each == pytest.approx(slow_gpu.advice[0].each, rel=0.05)


def test_rank_with_a_shared_gpu(slow_gpu: Fleet) -> None:
    (straggler,) = slow_gpu.stragglers
    label = slow_gpu.ranks[straggler.rank].label
    assert (label, straggler.part, straggler.more_kernels) == ("slowgpu_rank2", "compute", 0)
    assert 0.15 < straggler.share < 0.35
    assert slow_gpu.advice[0].title.startswith("slowgpu_rank2: own time is 23.8% longer than the others'")


def test_wide_margin_gives_no_straggler(slow_gpu: Fleet) -> None:
    wide = merged(ranks_of("slowgpu"), margin=0.3)
    assert wide.stragglers == ()
    assert [rank.lag for rank in wide.ranks] == [rank.lag for rank in slow_gpu.ranks]
    # The advice still names the waits.
    assert "wait in collectives" in wide.advice[0].title


@pytest.mark.parametrize("name", ["slow_host", "slow_gpu", "two_in_one"])
def test_ranks_take_equally_long_and_parts_add_up(name: str, request: pytest.FixtureRequest) -> None:
    fleet: Fleet = request.getfixturevalue(name)
    walls = [rank.wall for rank in fleet.ranks]
    # Each iteration ends with a collective, so the ranks stay together.
    assert max(walls) < 1.005 * min(walls)
    for rank in fleet.ranks:
        assert rank.own + rank.exposed_communication == rank.wall
        assert rank.compute + rank.exposed_communication + rank.copies + rank.idle == rank.wall
        assert sum(rank.causes) == rank.idle and rank.copies >= 0


def test_waits_equal_a_simple_count(two_in_one: Fleet) -> None:
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
    pairs = {(pair.waiter, pair.last): pair.waited for pair in two_in_one.pairs}
    rows = {first: 0, second: 1}
    assert pairs == {(rows[early], rows[late]): ns for (early, late), ns in waited.items() if ns}


def _collectives(path: Path) -> tuple[dict[int, dict[tuple[int, int], int]], dict[int, dict[tuple[int, int], int]]]:
    """Return starts and ends by process, then by iteration and number within it."""
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
        if match := re.fullmatch(r"iteration (-?\d+)", name):
            steps[process].append((start, int(match[1])))
    starts: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    ends: dict[int, dict[tuple[int, int], int]] = defaultdict(dict)
    for process, start, end, launched in kernels:
        at = bisect_right(steps[process], (launched, 10**9)) - 1
        step = steps[process][at][1] if at >= 0 else -(10**9)
        number = sum(1 for known, _ in starts[process] if known == step)
        starts[process][step, number], ends[process][step, number] = start, end
    return starts, ends


def test_two_runs_in_one_folder(slow_host: Fleet) -> None:
    both = merged([*ranks_of("slowhost"), *ranks_of("slowgpu")])
    assert [group.ranks for group in both.groups] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert [clock.method for clock in both.clocks] == [
        "reference",
        *["collectives"] * 3,
        "unknown",
        *["collectives"] * 3,
    ]
    assert [rank.matched for rank in both.ranks] == [64] * 8
    assert any("2 sets without common collectives" in note.text for note in both.notes)
    assert [rank.wait for rank in both.ranks[:4]] == [rank.wait for rank in slow_host.ranks]
    # Each rank is compared with its own run, so stragglers and lags do not change.
    assert [rank.set for rank in both.ranks] == [0] * 4 + [1] * 4
    assert {both.ranks[straggler.rank].label for straggler in both.stragglers} == {"slowhost_rank1", "slowgpu_rank2"}
    assert [rank.lag for rank in both.ranks[:4]] == [rank.lag for rank in slow_host.ranks]
    assert [advice.waiting for advice in both.advice] == [3, 3]


def test_repeated_capture_gives_a_note() -> None:
    first = ranks_of("slowhost")[0]
    twice = merge(["a.sqlite", "b.sqlite"], [result_of(first)] * 2)
    assert twice.notes[0].text.startswith("b.sqlite contains the same capture as a.sqlite; ")
    alone = merge(["a.sqlite"], [result_of(first)])
    assert not any("the same capture" in note.text for note in alone.notes)


def test_no_cost_without_collectives() -> None:
    fleet = merged([sample("dual.sqlite"), sample("cudagraph.sqlite")])
    assert [straggler.cost for straggler in fleet.stragglers] == [0]
    assert "Cost to the other ranks unknown: no collective was matched" in render(fleet)
    assert "waits at least" not in render(fleet)


def test_rooted_collectives_are_left_out(two_in_one: Fleet) -> None:
    assert {group.kind for group in two_in_one.groups} == {"AllReduce"}
    assert two_in_one.unmatched == 8
    assert any("4 rooted collectives" in note.text for note in two_in_one.notes)


def test_different_stream_ids_and_iteration_names_match() -> None:
    fleet = merged([original("public/nsys2026.2_2gpu_nccl.sqlite")])
    (group,) = fleet.groups
    assert (group.kind, fleet.unmatched, group.how) == ("SendRecv", 0, "order")
    assert sum(rank.matched for rank in fleet.ranks) == 2 * group.count == 66  # layers are not steps


def test_rows_are_means_of_the_heat_map(slow_host: Fleet) -> None:
    heat = slow_host.heat
    assert heat is not None and heat.steps.tolist() == list(range(21, 30))
    for row, rank in enumerate(slow_host.ranks):
        steady = heat.steady == 1
        assert rank.iterations == int(steady.sum())
        for figure in ("wall", "compute", "wait"):
            assert getattr(rank, figure) == int(getattr(heat, figure)[row][steady].sum()) // rank.iterations
        lags = heat.own[row] - np.median(np.delete(heat.own, row, axis=0), axis=0)
        assert rank.lag == round(float(np.median(lags[steady])))
