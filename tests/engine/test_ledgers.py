"""Groups of equal members are granted what their members are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.engine import claims as ledgers
from traceview.engine.claims import compact_ledger
from traceview.intervals import Intervals, union
from traceview.model.analysis import CAUSES
from traceview.model.trace import Window
from traceview.pricing.ledger import Claim, GapClaim, KernelClaim, Ledger, TimeClaim

GAPS, OPERATIONS, SPAN = 12, 10, 60
KEYS = ("communication", "h2d pageable")
small = st.integers(0, 5)


@st.composite
def made_ledgers(draw: st.DrawFn) -> Ledger:
    idle = {cause: np.array(draw(st.lists(small, min_size=GAPS, max_size=GAPS)), np.int64) for cause in CAUSES[1:4]}
    half = SPAN // 2
    exposed = {key: draw(unions(number * half, number * half + half)) for number, key in enumerate(KEYS)}
    own = np.array(draw(st.lists(small, min_size=OPERATIONS, max_size=OPERATIONS)), np.int64)
    return Ledger(GAPS, idle, exposed, own, own)


def unions(low: int, high: int) -> st.SearchStrategy[Intervals]:
    moments = st.lists(st.integers(low, high), max_size=8, unique=True).map(sorted)
    return moments.map(lambda edges: union(*np.array(edges[: len(edges) // 2 * 2], np.int64).reshape(-1, 2).T))


@st.composite
def made_claims(draw: st.DrawFn) -> Claim:
    kind = draw(st.integers(0, 2))
    if kind == 0:
        rows = np.array(sorted(draw(st.sets(st.integers(0, GAPS - 1)))), np.int64)
        causes = tuple(draw(st.lists(st.sampled_from(CAUSES[1:4]), min_size=1, max_size=3, unique=True)))
        constant = draw(st.booleans())
        limits = [3] * len(rows) if constant else draw(st.lists(small, min_size=len(rows), max_size=len(rows)))
        return GapClaim(causes, rows, np.array(limits, np.int64) if draw(st.booleans()) else None)
    if kind == 1:
        keys = tuple(draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True)))
        return TimeClaim(keys, draw(st.none() | unions(0, SPAN)))
    rows = np.array(sorted(draw(st.sets(st.integers(0, OPERATIONS - 1)))), np.int64)
    return KernelClaim(rows, np.array([draw(st.sampled_from((0.2, 0.5, 0.9, 1.0))) for _ in rows]))


drafts = st.lists(st.tuples(st.lists(made_claims(), min_size=1, max_size=3), st.booleans()), max_size=5)


@pytest.mark.parametrize("max_single", [0, 1000])
@given(ledger=made_ledgers(), made=drafts)
def test_groups_are_granted_what_their_members_are(ledger: Ledger, made: Any, max_single: int) -> None:
    claims = [_one_compute_claim(each) for each, _ in made]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledgers, "MAX_SINGLE", max_single)
        compact = compact_ledger(ledger, claims, slice(2, 7), Window(10, 40))
    for number, (_, accepted) in enumerate(made):
        whole, grouped = ledger.grant(tuple(claims[number])), compact.ledger.grant(compact.claims[number])
        sums = compact.sums(grouped)
        assert sums.total == whole.total
        assert [pair for pair in sums.causes if pair[1]] == [pair for pair in whole.causes if pair[1]]
        assert sums.steady == whole.total_inside(slice(2, 7), Window(10, 40))
        if max_single:
            assert sums.gaps == whole.gaps
        if accepted:
            ledger.deduct(whole)
            compact.ledger.deduct(grouped)


def _one_compute_claim(claims: list[Claim]) -> list[Claim]:
    """Return the claims of a draft: a grant has one array of operations."""
    compute = [claim for claim in claims if isinstance(claim, KernelClaim)][:1]
    return [claim for claim in claims if not isinstance(claim, KernelClaim)] + compute
