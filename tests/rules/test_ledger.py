"""Nothing is granted twice: what rules are granted and what is left add up to what there was."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.made_trace import made_trace
from traceview import intervals
from traceview.intervals import Intervals
from traceview.measure.activity import activity
from traceview.model import CAUSES, Window
from traceview.rules.ledger import Claim, Exposed, Idle, Ledger, exposed_work

KEYS = ("communication", "h2d pinned", "memset")
COUNT = 4


def made_ledger(ns: list[int]) -> Ledger:
    columns = {cause: ns[row * COUNT : (row + 1) * COUNT] for row, cause in enumerate(CAUSES)}
    exposed = {
        key: Intervals(np.array([row * 100, row * 100 + 50]), np.array([row * 100 + 30, row * 100 + 90]))
        for row, key in enumerate(KEYS)
    }
    return Ledger.of(pl.DataFrame(columns), exposed)


idle_claims = st.builds(
    Idle,
    st.lists(st.sampled_from(CAUSES), unique=True, max_size=4).map(tuple),
    st.none() | st.lists(st.booleans(), min_size=COUNT, max_size=COUNT).map(np.array),
    st.none() | st.lists(st.integers(0, 40), min_size=COUNT, max_size=COUNT).map(np.array),
)
spans = st.tuples(st.integers(0, 300), st.integers(0, 300)).map(sorted)
exposed_claims = st.builds(
    Exposed,
    st.lists(st.sampled_from((*KEYS, "no such work")), unique=True, max_size=3).map(tuple),
    st.none() | spans.map(lambda span: intervals.union(np.array([span[0]]), np.array([span[1]]))),
)


@given(
    st.lists(st.integers(0, 50), min_size=COUNT * len(CAUSES), max_size=COUNT * len(CAUSES)),
    st.lists(st.lists(idle_claims | exposed_claims, max_size=3).map(tuple), max_size=6),
)
def test_what_is_granted_and_what_is_left_add_up(ns: list[int], rounds: list[tuple[Claim, ...]]) -> None:
    ledger = made_ledger(ns)
    before, granted = ledger.total, 0
    for claims in rounds:
        grant = ledger.grant(claims)
        ledger.take(grant)
        granted += grant.total
        assert grant.total == int(grant.idle.sum()) + intervals.length(grant.exposed)
        assert grant.gaps == np.count_nonzero(grant.idle)
        assert (grant.idle >= 0).all()
        assert (grant.exposed.end > grant.exposed.start).all()
        assert (grant.exposed.start[1:] >= grant.exposed.end[:-1]).all()
    assert granted + ledger.total == before
    assert all((left.ns > 0).all() for left in ledger.gaps.values())


def test_what_one_rule_was_granted_is_gone_for_the_next() -> None:
    ledger = made_ledger([10] * COUNT * len(CAUSES))
    first = ledger.grant((Idle(("host",)), Exposed(("memset",))))
    ledger.take(first)
    second = ledger.grant((Idle(("host",)), Exposed(("memset",))))
    assert (first.total, second.total) == (10 * COUNT + 70, 0)


def test_a_claim_may_be_bounded_in_each_gap_over_all_its_causes() -> None:
    ledger = made_ledger([10] * COUNT * len(CAUSES))
    grant = ledger.grant((Idle(("sync", "host"), at_most=np.array([0, 5, 15, 99])),))
    ledger.take(grant)
    assert grant.idle.tolist() == [0, 5, 15, 20]
    assert dict(zip(*(of.tolist() for of in ledger.gaps["host"]), strict=True)) == {0: 10, 1: 10, 2: 5}


def test_two_claims_of_one_rule_do_not_get_the_same_ns() -> None:
    ledger = made_ledger([10] * COUNT * len(CAUSES))
    grant = ledger.grant((Idle(("host",)), Idle(("host", "sync")), Exposed(("memset",)), Exposed(("memset",))))
    assert grant.idle.tolist() == [20] * COUNT
    assert intervals.length(grant.exposed) == 70


def test_asking_leaves_the_ledger_as_it_was() -> None:
    ledger = made_ledger([10] * COUNT * len(CAUSES))
    before = ledger.total
    ledger.grant((Idle(CAUSES), Exposed(KEYS)))
    assert ledger.total == before


@pytest.mark.parametrize("window", [None, Window(25, 75)])
def test_exposed_work_is_busy_less_compute_each_ns_once(window: Window | None) -> None:
    trace = made_trace(
        operations=[
            (0, 40, "compute", 0, None),
            (30, 60, "communication", 1, None),
            (50, 80, "copy", 2, None),
            (70, 90, "memset", 0, None),
        ],
        window=window,
    )
    work = activity(trace, 0)
    assert work is not None
    found = {key: intervals.length(of) for key, of in exposed_work(trace, work).items()}
    end = 90 if window is None else window.end
    assert found == {"communication": 20, "h2d pinned": min(end, 80) - 60, "memset": max(end - 80, 0)}
    assert sum(found.values()) == intervals.length(work.busy) - intervals.length(work.compute)
