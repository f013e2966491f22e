"""The ledger of a slice in a small form: gaps, exposed times and kernels that all claims treat alike share one entry.

What a finding costs is decided over all slices, rule after rule. A decision depends on sums alone, so a slice sends the
sums of each group of equal members (`CompactLedger`), and the claims as rows of groups.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple, TypeVar

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview import intervals
from traceview.frozen import frozen
from traceview.intervals import EMPTY, Intervals, Times
from traceview.model.devices import CAUSES
from traceview.model.trace import Window
from traceview.pricing.findings import GrantSums
from traceview.pricing.ledger import Claim, ComputeClaim, ExposedClaim, Grant, IdleClaim, Ledger

NO_LIMIT = np.int64(1 << 62)
MAX_SINGLE = 1_000  # gaps of a limited claim that stay single
MAX_PATTERNS = 6  # claims on one kernel whose combinations stay apart
Claims = Sequence[Sequence[Claim]]  # by draft
Kind = TypeVar("Kind", IdleClaim, ExposedClaim, ComputeClaim)


@frozen
class AmountClaim(ComputeClaim):
    """A claim on groups of kernels: `amounts` are the ns that it asks of each of `rows`."""

    amounts: Times = field(default_factory=lambda: EMPTY.start)

    def wanted(self, own: Times) -> Times:
        """Return the ns that the claim asks of each of `rows`."""
        return self.amounts


@dataclass(slots=True)
class CompactLedger:
    """The accounts of a device in a slice, by groups.

    `weights` is the number of gaps of each group, `steady` marks groups of gaps in the steady part, and
    `steady_exposed` has the exposed times in it. `claims` has those of each draft. `border` is the row of the gap that
    ends where the slice ends, -1 for none.
    """

    ledger: Ledger
    weights: Times
    steady: NDArray[np.bool_]
    steady_exposed: Intervals
    claims: list[tuple[Claim, ...]]
    border: int

    def sums(self, grant: Grant) -> GrantSums:
        """Return the sums of a grant on this ledger."""
        rows = np.arange(len(self.weights))[grant.rows] if isinstance(grant.rows, slice) else grant.rows
        granted = grant.idle > 0
        steady = int(grant.idle[self.steady[rows]].sum()) + int(grant.compute.sum())
        steady += intervals.overlap_length(grant.exposed, self.steady_exposed)
        return GrantSums(grant.total, int(self.weights[rows][granted].sum()), steady, grant.causes)


class _Groups(NamedTuple):
    """Groups of gaps: ns by cause, number of gaps, whether in the steady part, and the claims on them."""

    idle: dict[str, Times]
    weights: Times
    steady: NDArray[np.bool_]
    claims: dict[tuple[int, int], IdleClaim]
    border: int


def compact_ledger(ledger: Ledger, claims: Claims, steady: slice, part: Window, border: int) -> CompactLedger:
    """Return a ledger with one entry for each group of members that every claim treats alike.

    `steady` are the gaps that begin in the steady part and `part` is its window. `border` is the gap that ends where
    the slice ends, -1 for none.
    """
    groups = _group_gaps(ledger, claims, steady, border)
    exposed, exposed_claims, steady_exposed = _group_exposed(ledger, claims, part)
    own, left, compute_claims = _group_kernels(ledger, claims)
    every: dict[tuple[int, int], Claim] = {**groups.claims, **exposed_claims, **compute_claims}
    compact = Ledger(len(groups.weights), groups.idle, exposed, own, left)
    of_drafts = [tuple(every[number, place] for place in range(len(draft))) for number, draft in enumerate(claims)]
    return CompactLedger(compact, groups.weights, groups.steady, steady_exposed, of_drafts, groups.border)


def _numbered(claims: Claims, kind: type[Kind]) -> list[tuple[int, int, Kind]]:
    """Return the claims of a kind, each with the number of its draft and its place there."""
    return [
        (number, place, claim)
        for number, draft in enumerate(claims)
        for place, claim in enumerate(draft)
        if isinstance(claim, kind)
    ]


def _group_gaps(ledger: Ledger, claims: Claims, steady: slice, border: int) -> _Groups:
    count = ledger.count
    accounts = {cause: ledger.idle.get(cause, np.zeros(count, np.int64)) for cause in CAUSES}
    idle = _numbered(claims, IdleClaim)
    member = np.zeros((len(idle), count), np.bool_)
    limit: dict[int, Times] = {}
    for at, (_, _, claim) in enumerate(idle):
        member[at, slice(None) if claim.rows is None else claim.rows] = True
        if claim.at_most is not None:
            limit[at] = np.zeros(count, np.int64)
            limit[at][claim.rows] = claim.at_most
    single, layered = _layers(idle, member, limit)
    if border >= 0:
        single[border] = True
    in_steady = np.zeros(count, np.bool_)
    in_steady[steady] = True
    first = {cause: ns.copy() for cause, ns in accounts.items()}
    pieces = []
    for at, rows in layered.items():
        # Split these gaps: what the limited claim takes, and the rest, which it cannot.
        rest, room = {cause: np.zeros(len(rows), np.int64) for cause in CAUSES}, limit[at][rows]
        for cause in idle[at][2].causes:
            taken = np.minimum(accounts[cause][rows], room)
            room = room - taken
            rest[cause] = accounts[cause][rows] - taken
            first[cause][rows] = taken
        others = member[:, rows]
        others[at] = False
        pieces.append(_keyed(rest, others, in_steady[rows], np.zeros(len(rows), np.int64), single[rows]))
    pieces = [_keyed(first, member, in_steady, np.ones(count, np.int64), single), *pieces]
    table = pl.concat(pieces).filter(pl.any_horizontal(pl.col(CAUSES) > 0) | (pl.col("row") >= 0))
    keys = [name for name in table.columns if name not in (*CAUSES, "weight")]
    table = table.group_by(keys, maintain_order=True).agg(pl.col(*CAUSES, "weight").sum())
    row = table["row"].to_numpy()
    grouped = {}
    for at, (number, place, claim) in enumerate(idle):
        word = table[f"word{at // 64}"].to_numpy()
        rows = np.flatnonzero((word >> np.uint64(at % 64)) & np.uint64(1))
        at_most = None
        if at in limit:
            at_most = np.where(row[rows] >= 0, limit[at][np.maximum(row[rows], 0)] if count else 0, NO_LIMIT)
        grouped[number, place] = IdleClaim(claim.causes, rows, at_most)
    return _Groups(
        {cause: table[cause].to_numpy().copy() for cause in CAUSES},
        table["weight"].to_numpy(),
        table["steady"].to_numpy(),
        grouped,
        int(np.flatnonzero(row == border)[0]) if border >= 0 else -1,
    )


def _layers(
    idle: Sequence[tuple[int, int, IdleClaim]], member: NDArray[np.bool_], limit: Mapping[int, Times]
) -> tuple[NDArray[np.bool_], dict[int, Times]]:
    """Return the gaps that stay single, and by limited claim those that can be split into two layers.

    A gap can be split on three conditions: exactly one limited claim has it, this claim has the same limit for more
    than MAX_SINGLE gaps, and no earlier claim takes from the same causes.
    """
    count = member.shape[1]
    limited = member[list(limit)].sum(axis=0) if limit else np.zeros(count, np.int64)
    single = limited > 1
    layered = {}
    for at in limit:
        earlier = [n for n in range(at) if set(idle[n][2].causes) & set(idle[at][2].causes)]
        taken = member[earlier].any(axis=0) if earlier else np.zeros(count, np.bool_)
        limits = limit[at][member[at]]
        can_split = len(limits) > MAX_SINGLE and limits.min() == limits.max()
        single |= member[at] & (taken | (not can_split))
        layered[at] = np.flatnonzero(member[at] & ~single)
    return single, {at: rows[~single[rows]] for at, rows in layered.items() if len(rows[~single[rows]])}


def _keyed(
    accounts: Mapping[str, Times],
    member: NDArray[np.bool_],
    steady: NDArray[np.bool_],
    weight: Times,
    single: NDArray[np.bool_],
) -> pl.DataFrame:
    """Return the gaps with what groups them: claims as bits, causes as bits, and the row of those that stay single."""
    count = len(steady)
    words = {}
    for first in range(0, max(len(member), 1), 64):
        word = np.zeros(count, np.uint64)
        for at in range(first, min(first + 64, len(member))):
            word |= member[at].astype(np.uint64) << np.uint64(at % 64)
        words[f"word{first // 64}"] = word
    mask = np.zeros(count, np.uint16)
    for code, cause in enumerate(CAUSES):
        mask |= (accounts[cause] > 0).astype(np.uint16) << np.uint16(code)
    row = np.where(single, np.arange(count), -1)
    return pl.DataFrame({**words, "mask": mask, "steady": steady, "row": row, **accounts, "weight": weight})


def _group_exposed(
    ledger: Ledger, claims: Claims, part: Window
) -> tuple[dict[str, Intervals], dict[tuple[int, int], ExposedClaim], Intervals]:
    """Return the exposed times by account, the claims on them and the steady ones, on an axis of their own."""
    exposed = _numbered(claims, ExposedClaim)
    within: list[list[tuple[int, int]]] = [[] for _ in exposed]
    steady: list[tuple[int, int]] = []
    accounts, position = {}, 0
    window = Intervals(np.array([part.start]), np.array([part.end]))
    for key in dict.fromkeys([*ledger.exposed, *(key for _, _, claim in exposed for key in claim.keys)]):
        times, pieces = ledger.exposed.get(key, EMPTY), []
        limits = {at: c.within for at, (_, _, c) in enumerate(exposed) if c.within is not None and key in c.keys}
        for members, ns in _atoms(times, [*limits.values(), window]):
            piece = (position, position + ns)
            position += ns + 1  # atoms do not touch
            pieces.append(piece)
            for at, inside in zip([*limits, -1], members, strict=True):
                if inside:
                    (steady if at < 0 else within[at]).append(piece)
        accounts[key] = _intervals(pieces)
    grouped = {
        (number, place): ExposedClaim(claim.keys, None if claim.within is None else _intervals(within[at]))
        for at, (number, place, claim) in enumerate(exposed)
    }
    return accounts, grouped, _intervals(steady)


def _atoms(times: Intervals, limits: Sequence[Intervals]) -> list[tuple[tuple[bool, ...], int]]:
    """Return the ns of times by the unions that contain them: a flag for each union."""
    edges = np.unique(np.concatenate([*times, *(side for union in limits for side in union)]))
    inside = [_contains(union, edges[:-1]) for union in (times, *limits)]
    lengths: dict[tuple[bool, ...], int] = {}
    code = np.zeros(max(len(edges) - 1, 0), np.int64)
    for at, flags in enumerate(inside[1:]):
        code |= flags.astype(np.int64) << at
    ns = np.where(inside[0], np.diff(edges), 0)
    for value in np.unique(code[ns > 0]).tolist():
        lengths[tuple(bool(value >> at & 1) for at in range(len(limits)))] = int(ns[code == value].sum())
    return list(lengths.items())


def _contains(union: Intervals, moments: Times) -> NDArray[np.bool_]:
    place = np.searchsorted(union.start, moments, side="right") - 1
    if len(union.start) == 0:
        return np.zeros(len(moments), np.bool_)
    inside: NDArray[np.bool_] = (place >= 0) & (moments < union.end[np.maximum(place, 0)])
    return inside


def _intervals(pieces: Sequence[tuple[int, int]]) -> Intervals:
    edges = np.array(sorted(pieces), np.int64).reshape(-1, 2)
    return Intervals(edges[:, 0].copy(), edges[:, 1].copy())


def _group_kernels(ledger: Ledger, claims: Claims) -> tuple[Times, Times, dict[tuple[int, int], AmountClaim]]:
    """Return the own times of groups of kernels, what is left of them, and the claims on them."""
    compute = _numbered(claims, ComputeClaim)
    count = len(ledger.own_compute)
    amounts = np.zeros((len(compute), count), np.int64)
    member = np.zeros((len(compute), count), np.bool_)
    for at, (_, _, claim) in enumerate(compute):
        amounts[at, claim.rows] = claim.wanted(ledger.own_compute).astype(np.int64)
        member[at, claim.rows] = True
    rows = np.flatnonzero(member.any(axis=0))
    left = ledger.compute[rows]
    key, names = _compute_keys(amounts[:, rows], member[:, rows], left)
    table = pl.DataFrame({**key, "own": left, **{f"claim{at}": amounts[at, rows] for at in range(len(compute))}})
    table = table.group_by(names, maintain_order=True).agg(pl.exclude(names).sum()) if len(rows) else table
    grouped = {}
    for at, (number, place, _) in enumerate(compute):
        chosen = np.flatnonzero((table["claims"].to_numpy() >> np.uint64(at)) & np.uint64(1))
        wanted = table[f"claim{at}"].to_numpy()[chosen].copy()
        grouped[number, place] = AmountClaim(chosen, np.ones(len(chosen)), wanted)
    own = table["own"].to_numpy().copy()
    return own, own, grouped


def _compute_keys(
    amounts: NDArray[np.int64], member: NDArray[np.bool_], left: Times
) -> tuple[dict[str, NDArray[np.generic]], list[str]]:
    """Return what groups kernels: their claims, and which claims find too little left, for each choice of others.

    Kernels with more than MAX_PATTERNS claims stay single.
    """
    count = len(left)
    claims, binding = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    for at in range(len(member)):
        claims |= member[at].astype(np.uint64) << np.uint64(at)
    single = np.where(member.sum(axis=0) > MAX_PATTERNS, np.arange(count), -1)
    for value in np.unique(claims).tolist():
        own = [at for at in range(len(member)) if value >> at & 1]
        if not 1 < len(own) <= MAX_PATTERNS:
            continue
        rows = np.flatnonzero(claims == value)
        for choice in product((False, True), repeat=len(own) - 1):
            rest = left[rows].copy()
            for at, granted in zip(own, (*choice, False), strict=True):
                short = rest < amounts[at, rows]
                # A different random-looking mix for each pattern keeps the keys apart.
                binding[rows] = binding[rows] * np.uint64(0x9E3779B97F4A7C15) + short + np.uint64(1)
                rest -= np.minimum(rest, amounts[at, rows]) if granted else 0
    return {"claims": claims, "binding": binding, "single": single}, ["claims", "binding", "single"]
