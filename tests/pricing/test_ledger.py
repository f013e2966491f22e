"""Tests of the ledger: no ns is granted twice, and grants and the rest add up to the total."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made_trace import made_trace
from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.measure.activity import Copies, device_activity
from traceview.model.analysis import CAUSES, Gaps
from traceview.model.trace import Window
from traceview.pipeline.findings import exposed_work
from traceview.pricing.ledger import Claim, GapClaim, Grant, Ledger, TimeClaim

KEYS = ("communication", "h2d pinned", "memset")
COUNT = 4


def made_gaps(ns: list[int]) -> Gaps:
    columns = {cause: ns[row * COUNT : (row + 1) * COUNT] for row, cause in enumerate(CAUSES)}
    sums = {cause: sum(column) for cause, column in columns.items()}
    return Gaps(COUNT, sum(ns), sums, pl.DataFrame(columns))


def made_ledger(ns: list[int]) -> Ledger:
    exposed = {
        key: Intervals(np.array([row * 100, row * 100 + 50]), np.array([row * 100 + 30, row * 100 + 90]))
        for row, key in enumerate(KEYS)
    }
    return Ledger.from_gaps(made_gaps(ns), exposed)


def total_of(ledger: Ledger) -> int:
    """Return all idle and exposed ns left."""
    idle = sum(int(left.sum()) for left in ledger.idle.values())
    return idle + sum(intervals.length(left) for left in ledger.exposed.values())


def each_gap(grant: Grant) -> Times:
    """Return the granted idle ns of every gap."""
    idle = np.zeros(COUNT, np.int64)
    idle[grant.rows] = grant.idle
    return idle


@st.composite
def idle_claims(draw: st.DrawFn) -> GapClaim:
    listed = st.lists(st.integers(0, COUNT - 1), unique=True).map(lambda rows: np.array(sorted(rows), np.int64))
    stretches = st.lists(st.integers(0, COUNT), min_size=2, max_size=2).map(lambda edges: slice(*sorted(edges)))
    rows = draw(st.none() | listed | stretches)
    length = len(np.arange(COUNT) if rows is None else np.arange(COUNT)[rows])
    bounds = st.lists(st.integers(0, 40), min_size=length, max_size=length).map(lambda most: np.array(most, np.int64))
    causes = draw(st.lists(st.sampled_from(CAUSES), unique=True, max_size=4))
    return GapClaim(tuple(causes), rows, draw(st.none() | bounds))


spans = st.tuples(st.integers(0, 300), st.integers(0, 300)).map(sorted)
exposed_claims = st.builds(
    TimeClaim,
    st.lists(st.sampled_from((*KEYS, "no such work")), unique=True, max_size=3).map(tuple),
    st.none() | spans.map(lambda span: intervals.union(np.array([span[0]]), np.array([span[1]]))),
)


@given(
    st.lists(st.integers(0, 50), min_size=COUNT * len(CAUSES), max_size=COUNT * len(CAUSES)),
    st.lists(
        st.tuples(st.lists(idle_claims() | exposed_claims, max_size=3).map(tuple), st.none() | st.integers(0, 200)),
        max_size=6,
    ),
)
def test_grants_and_rest_add_up(ns: list[int], rounds: list[tuple[tuple[Claim, ...], int | None]]) -> None:
    ledger = made_ledger(ns)
    before, granted = total_of(ledger), 0
    for claims, at_most in rounds:
        entire, grant = ledger.grant(claims), ledger.grant(claims, at_most)
        assert grant.total == (entire.total if at_most is None else min(entire.total, at_most))
        assert (each_gap(grant) <= claimable_ns(ledger, claims)).all()
        ledger.deduct(grant)
        granted += grant.total
        assert grant.total == int(each_gap(grant).sum()) + intervals.length(grant.exposed)
        assert grant.gaps == np.count_nonzero(each_gap(grant))
        assert grant.total_inside(slice(1, 3), Window(0, 300)) == int(each_gap(grant)[1:3].sum()) + intervals.length(
            grant.exposed
        )
        assert [grant.gap_row(at) for at in range(len(grant.idle))] == np.arange(COUNT)[grant.rows].tolist()
        assert (grant.idle >= 0).all()
        assert (grant.exposed.end > grant.exposed.start).all()
        assert (grant.exposed.start[1:] >= grant.exposed.end[:-1]).all()
    assert granted + total_of(ledger) == before
    assert all((left >= 0).all() for left in ledger.idle.values())


def claimable_ns(ledger: Ledger, claims: tuple[Claim, ...]) -> Times:
    """Return the largest possible grant of each gap: what is left of the claimed causes, within the limits."""
    most = np.zeros(COUNT, np.int64)
    for claim in claims:
        if isinstance(claim, GapClaim):
            rows = slice(0, COUNT) if claim.rows is None else claim.rows
            left = sum((ledger.idle.get(cause, np.zeros(COUNT, np.int64))[rows] for cause in claim.causes), np.int64(0))
            most[rows] += left if claim.at_most is None else np.minimum(left, claim.at_most)
    return most


def test_columns_of_the_measure_do_not_change() -> None:
    gaps = made_gaps([10] * COUNT * len(CAUSES))
    ledger = Ledger.from_gaps(gaps, {})
    ledger.deduct(ledger.grant((GapClaim(("host",), rows=np.array([1, 3])), GapClaim(("sync",), rows=slice(1, 2)))))
    ledger.deduct(ledger.grant((GapClaim(("host", "sync")),)))
    assert gaps.frame["host"].to_list() == gaps.frame["sync"].to_list() == [10] * COUNT


def test_granted_time_is_gone_for_the_next_rule() -> None:
    ledger = made_ledger([10] * COUNT * len(CAUSES))
    first = ledger.grant((GapClaim(("host",)), TimeClaim(("memset",))))
    ledger.deduct(first)
    second = ledger.grant((GapClaim(("host",)), TimeClaim(("memset",))))
    assert (first.total, second.total) == (10 * COUNT + 70, 0)


def test_limit_per_gap_over_all_causes() -> None:
    ledger = made_ledger([10] * COUNT * len(CAUSES))
    grant = ledger.grant((GapClaim(("sync", "host"), at_most=np.array([0, 5, 15, 99])),))
    ledger.deduct(grant)
    assert each_gap(grant).tolist() == [0, 5, 15, 20]
    assert ledger.idle["host"].tolist() == [10, 10, 5, 0]


def test_nothing_is_lost_after_the_end_of_work() -> None:
    starts = pl.Series("start", [0, 100, 200, 300])
    gaps = made_gaps([10] * COUNT * len(CAUSES))
    exposed = {"memset": Intervals(np.array([150, 250]), np.array([180, 290]))}
    ledger = Ledger.from_gaps(replace(gaps, frame=gaps.frame.with_columns(starts)), exposed, until=200)
    assert ledger.idle["host"].tolist() == [10, 10, 0, 0]
    assert intervals.length(ledger.exposed["memset"]) == 30
    later = Ledger.from_gaps(replace(gaps, frame=gaps.frame.with_columns(starts)), exposed, until=200, idle_until=250)
    assert later.idle["host"].tolist() == [10, 10, 10, 0] and intervals.length(later.exposed["memset"]) == 30


def test_claims_of_a_draft_do_not_overlap() -> None:
    ledger = made_ledger([10] * COUNT * len(CAUSES))
    memset = TimeClaim(("memset",))
    grant = ledger.grant((GapClaim(("host",)), GapClaim(("host", "sync")), memset, memset))
    assert each_gap(grant).tolist() == [20] * COUNT
    assert intervals.length(grant.exposed) == 70


def test_grant_does_not_change_the_ledger() -> None:
    ledger = made_ledger([10] * COUNT * len(CAUSES))
    before = total_of(ledger)
    ledger.grant((GapClaim(CAUSES), TimeClaim(KEYS)))
    assert total_of(ledger) == before


@pytest.mark.parametrize("window", [None, Window(25, 75)])
def test_exposed_work_adds_up(window: Window | None) -> None:
    trace = made_trace(
        operations=[
            (0, 40, "compute", 0, None),
            (30, 60, "communication", 1, None),
            (50, 80, "copy", 2, None),
            (70, 90, "memset", 0, None),
        ],
        window=window,
    )
    work = device_activity(trace, 0)
    assert work is not None
    exposed = exposed_work(work, Copies.from_activity(trace, work))
    lengths = {key: intervals.length(times) for key, times in exposed.items()}
    end = 90 if window is None else window.end
    assert lengths == {"communication": 20, "h2d pinned": min(end, 80) - 60, "memset": max(end - 80, 0)}
    assert sum(lengths.values()) == intervals.length(work.busy) - intervals.length(work.compute)
