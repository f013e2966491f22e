"""Clocks of a real report of two processes, split by hand into two reports with different clocks."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.captures import ALL, sample, shared
from tests.ranks.reports import merged, process_alone, result_of
from traceview.model.fleet import Fleet
from traceview.ranks.clocks import estimate_clocks
from traceview.ranks.match import match_collectives, split_by_common_ends

# The ends of one collective differ: by 7 µs in this run, whose processes share a clock.
TOLERANCE_NS = 25_000
PROCESSES = (701, 702)


def split(folder: Path, **clock: int) -> Fleet:
    first = process_alone(sample("ddp2.sqlite"), folder / "rank0.sqlite", PROCESSES[0])
    return merged([first, process_alone(sample("ddp2.sqlite"), folder / "rank1.sqlite", PROCESSES[1], **clock)])


@pytest.mark.parametrize("shift", [0, 3_141_592_653, -5_000_000_000])
def test_shifted_clock(tmp_path: Path, two_in_one: Fleet, shift: int) -> None:
    fleet = split(tmp_path, shift=shift)
    reference, other = fleet.clocks
    assert (reference.method, other.method, other.drift) == ("reference", "collectives", 0)
    assert abs(other.offset - shift) < TOLERANCE_NS
    assert other.uncertainty is not None and abs(other.offset - shift) <= other.uncertainty < 2 * TOLERANCE_NS
    assert other.scatter < TOLERANCE_NS
    assert other.session is None  # a redacted sample has no session start
    for alone, together in zip(fleet.ranks, two_in_one.ranks, strict=True):
        assert alone.last_count == together.last_count
        assert alone.own == together.own
        # Each of the seven collectives per iteration is off by no more than the clock.
        assert abs(alone.wait - together.wait) < 7 * TOLERANCE_NS
    assert [late.rank for late in fleet.stragglers] == [late.rank for late in two_in_one.stragglers]


@pytest.mark.parametrize("name", ["ddp2.sqlite", "trainer/ddp.sqlite", "public/nsys2026.2_2gpu_nccl.sqlite"])
def test_uncertainty_bounds_the_error(name: str) -> None:
    """Two GPUs of one report share its clock, so the true offset is 0."""
    result = result_of(shared(name) if name in ALL else sample(name))
    files = ["first", "second"]
    matches, _ = match_collectives(result.ranks, files, anchored=False)
    groups = [group for match in matches for group in split_by_common_ends(match, np.zeros(2, np.int64), files, [])]
    _, clock = estimate_clocks(groups, np.arange(2), [None, None], files)
    assert clock.method == "collectives"
    assert abs(clock.offset) <= (clock.uncertainty or 0) < 150_000


def test_drifting_clock(tmp_path: Path, two_in_one: Fleet) -> None:
    drift = 400_000  # ns per second, far more than a real clock
    fleet = split(tmp_path, shift=1_000_000_000, drift=drift)
    assert fleet.clocks[1].drift == pytest.approx(drift, rel=0.2)
    assert abs(fleet.ranks[1].wait - two_in_one.ranks[1].wait) < 7 * 3 * TOLERANCE_NS


def test_reports_without_shared_collectives(tmp_path: Path) -> None:
    fleet = merged([sample("dual.sqlite"), sample("quad.sqlite")])
    assert [clock.method for clock in fleet.clocks] == ["reference", "unknown"]
    assert fleet.groups == () and fleet.pairs == ()
    assert any("no rank ran collectives" in note.text for note in fleet.notes)
