"""Fleets whose reports are measured apart: any grouping gives the bytes of one pass over all of them."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ranks.hand_made import rank, report
from tests.ranks.reports import ranks_of, result_of
from tests.ranks.test_match import calls
from traceview.model.fleet import Fleet, ReportResult
from traceview.ranks import clocks
from traceview.ranks import merge as module
from traceview.ranks.merge import merge, merge_reports
from traceview.ranks.partials import FleetReports, Work, header
from traceview.ranks.worker import Job, Report, loaded
from traceview.report.fleet import render, to_json

MS = 1_000_000
STEPS = range(4)


def slow_reports() -> list[ReportResult]:
    """Return eight reports of two real runs that share no collective."""
    return [result_of(path) for name in ("slowhost", "slowgpu") for path in ranks_of(name)]


def grid_reports() -> list[ReportResult]:
    """Return eight ranks by hand, each on a clock of its own: pairs of neighbours, and two groups of every second one.

    The clock of a pair's second rank is known only by way of its neighbour, and one capture has fewer iterations.
    """
    made = []
    for index in range(8):
        shift, late = index * 1_000 * MS, index % 3 * MS
        steps = STEPS if index != 5 else STEPS[:3]
        pair = calls(steps, "ag", late, channel=0, shift=shift + index // 2 * 7 * MS)
        spread = calls(steps, "a", 2 * late, channel=1, shift=shift + 50 * MS + index % 2 * 5 * MS)
        names = (f"pair {index // 2}", f"spread {index % 2}")
        made.append(report(rank(sorted(pair + spread), communicators=names, steps=steps, own=(10 + index) * MS)))
    return made


def one_stream_reports() -> list[ReportResult]:
    """Return two groups of three ranks by hand, told apart by their common ends."""
    return [
        report(
            rank(
                [
                    call
                    for step in STEPS
                    for call in calls(range(step, step + 1), "aa", index * MS, shift=index % 2 * step**2 * MS)
                ],
                steps=STEPS,
            )
        )
        for index in range(6)
    ]


def run_split(cuts: Sequence[int], work: Work[Any], kept: Sequence[tuple[int, Report]]) -> Any:
    """Measure the results one by one, as another process would receive them, and merge neighbours as `cuts` say."""
    parts = [work(loaded([each])) for each in kept]
    for cut in cuts:
        if len(parts) > 1:
            at = cut % (len(parts) - 1)
            parts[at : at + 2] = [parts[at].merged(parts[at + 1])]
    while len(parts) > 1:
        parts[:2] = [parts[1].merged(parts[0])]
    return parts[0]


def run_in_pairs(work: Work[Any], kept: Sequence[tuple[int, Report]]) -> Any:
    """Measure two results at a time and merge in levels of a binary tree."""
    parts = [work(loaded(kept[first : first + 2])) for first in range(0, len(kept), 2)]
    while len(parts) > 1:
        merged = [left.merged(right) for left, right in zip(parts[::2], parts[1::2], strict=False)]
        parts = merged + parts[len(merged) * 2 :]
    return parts[0]


def texts(fleet: Fleet) -> tuple[str, str]:
    return to_json(fleet), render(fleet)


FLEETS = {made.__name__: made for made in (slow_reports, grid_reports, one_stream_reports)}


@pytest.mark.parametrize("name", list(FLEETS))
def test_any_grouping_of_reports_gives_the_same_bytes(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where ranks are missing or repeated, or only one is there."""
    results = FLEETS[name]()
    complete = range(len(results))
    flat = merge([f"rank{index}.sqlite" for index in complete], results)
    assert flat.groups and any(row.wait for row in flat.ranks)
    kept = [Report("", Job(), index, tmp_path) for index in complete]
    for index, result in enumerate(results):
        (tmp_path / str(index)).write_bytes(pickle.dumps(result))
    headers = [pickle.loads(pickle.dumps(header(result))) for result in results]

    def check(chosen: Sequence[int], run: Any) -> None:
        files = [f"rank{place}_{index}.sqlite" for place, index in enumerate(chosen)]
        reports = FleetReports([headers[index] for index in chosen], [kept[index] for index in chosen], run)
        expected = texts(merge(files, [results[index] for index in chosen]))
        with monkeypatch.context() as patch:
            patch.setattr(module, "MAX_AT_ONCE", 1)  # the arrivals of one group at a time
            patch.setattr(clocks, "MAX_TIMES", 1)  # the clocks of ranks are compared with one other at a time
            assert texts(merge_reports(files, reports)) == expected

    check(complete, run_in_pairs)
    check([3], run_in_pairs)

    @settings(deadline=None, max_examples=5)
    @given(st.lists(st.sampled_from(complete), min_size=1, max_size=len(complete)), st.lists(st.integers(0, 50)))
    def check_random_tree(chosen: list[int], cuts: list[int]) -> None:
        check(chosen, partial(run_split, cuts))

    check_random_tree()


def test_grid_has_clocks_by_way_of_others() -> None:
    fleet = merge([f"rank{index}.sqlite" for index in range(8)], grid_reports())
    assert [clock.method for clock in fleet.clocks] == ["reference"] + 7 * ["collectives"]
    assert len({group.name for group in fleet.groups}) == 6


def test_one_stream_splits_into_groups_with_common_ends() -> None:
    fleet = merge([f"rank{index}.sqlite" for index in range(6)], one_stream_reports())
    assert [group.ranks for group in fleet.groups] == [(0, 2, 4), (1, 3, 5)]


def test_header_is_small() -> None:
    """A header has what ranks have in common, and no times of collectives."""
    result = slow_reports()[0]
    [own] = header(result).ranks
    assert len(pickle.dumps(header(result))) < len(pickle.dumps(result)) / 3
    assert len(own.collectives) == len(result.ranks[0].collectives) and own.work is None
