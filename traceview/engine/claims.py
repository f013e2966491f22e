"""The ledgers of a part of a capture with the claims of all drafts.

A ledger leaves its part in a small form: gaps, exposed times and kernels that all claims treat alike share one entry.

What a finding costs is decided over all parts, rule after rule. A decision depends on sums alone, so a part sends the
sums of each group of equal members (`CompactLedger`), and the claims as rows of groups.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from traceview import intervals
from traceview.engine.details import PartDetails, details_of_grant
from traceview.engine.facts import Rules, capture_part, collected_in_part, exposed_in_part, forget_collected
from traceview.engine.part import PartTrace
from traceview.intervals import EMPTY, Intervals, Positions, Rows, Times, first_equal_rows, number_distinct, row_hashes
from traceview.model.analysis import CAUSES
from traceview.model.trace import Window
from traceview.pricing import ledger as accounts
from traceview.pricing.accounts import EndOfWork, open_ledger
from traceview.pricing.base import Covered, DevicePart
from traceview.pricing.claims import Claim, resolve
from traceview.pricing.describe import GrantSums
from traceview.pricing.ledger import GapClaim, Grant, KernelClaim, Ledger, TimeClaim
from traceview.pricing.packages import Failure, PackageRule, guarded

NO_LIMIT = np.int64(1 << 62)
MAX_SINGLE = 1_000  # gaps of a limited claim that stay single
MAX_PATTERNS = 6  # claims on one kernel whose combinations stay apart
DraftClaims = Sequence[Sequence[accounts.Claim]]  # by draft
Kind = TypeVar("Kind", GapClaim, TimeClaim, KernelClaim)


@dataclass(frozen=True, slots=True)
class AmountClaim(KernelClaim):
    """A claim on groups of kernels: `amounts` are the ns that it asks of each of `rows`."""

    amounts: Times = field(default_factory=lambda: EMPTY.start)

    def wanted(self, own: Times) -> Times:
        """Return the ns that the claim asks of each of `rows`."""
        return self.amounts


class WholeLedger(NamedTuple):
    """The accounts of a device in a part, with the claims of each draft: an entry for each member.

    `steady_gaps` begin in the steady part, whose window is `steady`.
    """

    ledger: Ledger
    claims: list[tuple[accounts.Claim, ...]]
    steady_gaps: slice
    steady: Window

    def sums(self, grant: Grant) -> GrantSums:
        """Return the sums of a grant on this ledger."""
        return GrantSums(grant.total, grant.gaps, grant.total_inside(self.steady_gaps, self.steady), grant.causes)


class CompactLedger(NamedTuple):
    """A ledger with an entry for each group of members that all claims treat alike.

    `weights` is the number of gaps of each group, `steady` marks groups of gaps in the steady part, and
    `steady_exposed` has the exposed times in it. `claims` has those of each draft.
    """

    ledger: Ledger
    claims: list[tuple[accounts.Claim, ...]]
    weights: Times
    steady: NDArray[np.bool_]
    steady_exposed: Intervals

    def sums(self, grant: Grant) -> GrantSums:
        """Return the sums of a grant on this ledger."""
        rows = np.arange(len(self.weights))[grant.rows] if isinstance(grant.rows, slice) else grant.rows
        granted = grant.idle > 0
        steady = int(grant.idle[self.steady[rows]].sum()) + int(grant.compute.sum())
        steady += intervals.overlap_length(grant.exposed, self.steady_exposed)
        return GrantSums(grant.total, int(self.weights[rows][granted].sum()), steady, grant.causes)


PartLedger: TypeAlias = WholeLedger | CompactLedger


class _Groups(NamedTuple):
    """Groups of gaps: ns by cause, number of gaps, whether in the steady part, and the claims on them."""

    idle: dict[str, Times]
    weights: Times
    steady: NDArray[np.bool_]
    claims: dict[tuple[int, int], GapClaim]


def compact_ledger(ledger: Ledger, claims: DraftClaims, steady_gaps: slice, steady: Window) -> CompactLedger:
    """Return a ledger with one entry for each group of members that every claim treats alike.

    `steady_gaps` begin in the steady part, whose window is `steady`.
    """
    groups = _group_gaps(ledger, claims, steady_gaps)
    exposed, exposed_claims, steady_exposed = _group_exposed(ledger, claims, steady)
    left, compute_claims = _group_kernels(ledger, claims)
    every: dict[tuple[int, int], accounts.Claim] = {**groups.claims, **exposed_claims, **compute_claims}
    compact = Ledger(len(groups.weights), groups.idle, exposed, left, left)
    of_drafts = [tuple(every[number, place] for place in range(len(draft))) for number, draft in enumerate(claims)]
    return CompactLedger(compact, of_drafts, groups.weights, groups.steady, steady_exposed)


def _numbered(claims: DraftClaims, kind: type[Kind]) -> list[tuple[int, int, Kind]]:
    """Return the claims of a kind, each with the number of its draft and its place there."""
    return [
        (number, place, claim)
        for number, draft in enumerate(claims)
        for place, claim in enumerate(draft)
        if isinstance(claim, kind)
    ]


def _group_gaps(ledger: Ledger, claims: DraftClaims, steady: slice) -> _Groups:
    count, idle = ledger.count, _numbered(claims, GapClaim)
    words = _claim_bits([slice(None) if claim.rows is None else claim.rows for _, _, claim in idle], count)
    limit: dict[int, Times] = {}
    for at, (_, _, claim) in enumerate(idle):
        if claim.at_most is not None:
            limit[at] = np.zeros(count, np.int64)
            limit[at][claim.rows] = claim.at_most
    single, layered = _layers(idle, words, limit)
    row = np.where(single, np.arange(count), -1)
    in_steady = np.zeros(count, np.bool_)
    in_steady[steady] = True
    # Split gaps: what the limited claim takes, and behind all gaps the rest, which it cannot take.
    split = np.concatenate([EMPTY.start, *layered.values()])
    words, in_steady = np.append(words, words[:, split], axis=1), np.append(in_steady, in_steady[split])
    row, none = np.append(row, np.full(len(split), -1)), np.zeros(len(split), np.int64)
    claimed = dict.fromkeys(cause for _, _, claim in idle for cause in claim.causes if cause in ledger.idle)
    accounts = {cause: np.append(ledger.idle[cause], none) for cause in claimed}
    end = count
    for at, rows in layered.items():
        rest, room = slice(end, end + len(rows)), limit[at][rows]
        end = rest.stop
        words[at // 64, rest] &= ~_bit(at)
        for cause in idle[at][2].causes:
            if cause in accounts:
                taken = np.minimum(accounts[cause][rows], room)
                accounts[cause][rest] = accounts[cause][rows] - taken
                accounts[cause][rows] = taken
                room = room - taken
    mask = in_steady.astype(np.int64)
    for code, ns in enumerate(accounts.values()):
        mask |= (ns > 0).astype(np.int64) << (code + 1)
    first, group = _equal_rows([*words, mask, row])
    keys = words[:, first]
    grouped = {}
    for at, (number, place, claim) in enumerate(idle):
        rows = np.flatnonzero(keys[at // 64] & _bit(at))
        at_most = None
        if at in limit:
            at_most = np.where(row[first[rows]] >= 0, limit[at].take(first[rows], mode="clip"), NO_LIMIT)
        grouped[number, place] = GapClaim(claim.causes, rows, at_most)
    return _Groups(
        {cause: _sums_of_entries(group, len(first), accounts.get(cause, 0)) for cause in CAUSES},
        np.bincount(group[:count], minlength=len(first)),
        in_steady[first],
        grouped,
    )


def _bit(claim: int) -> np.uint64:
    return np.uint64(1 << claim % 64)


def _claim_bits(rows: Sequence[Times | Rows | slice], count: int) -> NDArray[np.uint64]:
    """Return the claims on each of `count` members as bits, in words of 64 claims; `rows` are those of each claim."""
    words = np.zeros((len(rows) // 64 + 1, count), np.uint64)
    for at, members in enumerate(rows):
        words[at // 64, members] |= _bit(at)
    return words


def _equal_rows(keys: Sequence[NDArray[Any]]) -> tuple[Positions, Positions]:
    """Return the first of the rows with equal keys, in the order of rows, and for each row the index of that one."""
    return number_distinct(first_equal_rows(row_hashes(keys)))


def _sums_of_entries(group: Positions, count: int, ns: Times | int) -> Times:
    """Return the sum of ns for each of `count` groups."""
    sums = np.zeros(count, np.int64)
    if not isinstance(ns, int):
        np.add.at(sums, group, ns.astype(np.int64, copy=False))
    return sums


def _layers(
    idle: Sequence[tuple[int, int, GapClaim]], words: NDArray[np.uint64], limit: Mapping[int, Times]
) -> tuple[NDArray[np.bool_], dict[int, Times]]:
    """Return the gaps that stay single, and by limited claim those that can be split into two layers.

    A gap can be split if three conditions hold: exactly one limited claim includes it; this claim has one limit, and
    includes more than MAX_SINGLE gaps; no earlier claim on the gap takes from the same causes.
    """
    member = {at: (words[at // 64] & _bit(at)) > 0 for at in limit}
    single = np.sum([np.zeros(words.shape[1], np.int64), *member.values()], axis=0) > 1
    layered = {}
    for at in limit:
        rows = np.flatnonzero(member[at])
        taken = np.zeros(len(rows), np.bool_)
        for earlier in range(at):
            if set(idle[earlier][2].causes) & set(idle[at][2].causes):
                taken |= (words[earlier // 64, rows] & _bit(earlier)) > 0
        limits = limit[at][rows]
        can_split = len(limits) > MAX_SINGLE and limits.min() == limits.max()
        single[rows] |= taken | (not can_split)
        layered[at] = rows
    return single, {at: rows[~single[rows]] for at, rows in layered.items()}


def _group_exposed(
    ledger: Ledger, claims: DraftClaims, part: Window
) -> tuple[dict[str, Intervals], dict[tuple[int, int], TimeClaim], Intervals]:
    """Return the exposed times by account, the claims on them and the steady ones, on an axis of their own."""
    exposed = _numbered(claims, TimeClaim)
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
        (number, place): TimeClaim(claim.keys, None if claim.within is None else _intervals(within[at]))
        for at, (number, place, claim) in enumerate(exposed)
    }
    return accounts, grouped, _intervals(steady)


def _atoms(times: Intervals, limits: Sequence[Intervals]) -> list[tuple[tuple[bool, ...], int]]:
    """Return the ns of times by the unions that contain them: a flag for each union."""
    pieces: list[tuple[tuple[bool, ...], Intervals]] = [((), times)]
    for union in limits:
        inside = [((*flags, True), intervals.intersect(piece, union)) for flags, piece in pieces]
        outside = [((*flags, False), intervals.subtract(piece, union)) for flags, piece in pieces]
        pieces = [(flags, piece) for flags, piece in (*inside, *outside) if len(piece.start)]
    return [(flags, intervals.length(piece)) for flags, piece in pieces if len(piece.start)]


def _intervals(pieces: Sequence[tuple[int, int]]) -> Intervals:
    edges = np.array(sorted(pieces), np.int64).reshape(-1, 2)
    return Intervals(edges[:, 0].copy(), edges[:, 1].copy())


def _group_kernels(ledger: Ledger, claims: DraftClaims) -> tuple[Times, dict[tuple[int, int], AmountClaim]]:
    """Return what is left of groups of kernels, and the claims on them."""
    compute = _numbered(claims, KernelClaim)
    left, count = ledger.compute, len(ledger.compute)
    claimed = _claim_bits([claim.rows for _, _, claim in compute], count)[0]
    amounts = np.zeros((len(compute), count), np.int64)
    for ns, (_, _, claim) in zip(amounts, compute, strict=True):
        ns[claim.rows] = np.minimum(claim.wanted(ledger.own_compute).astype(np.int64), left[claim.rows])
    first, group = _equal_rows([claimed, *_too_little_left(claimed, amounts, left)])
    grouped = {}
    for at, (number, place, _) in enumerate(compute):
        chosen = np.flatnonzero(claimed[first] & _bit(at))
        grouped[number, place] = AmountClaim(
            chosen, np.ones(len(chosen)), _sums_of_entries(group, len(first), amounts[at])[chosen]
        )
    return _sums_of_entries(group, len(first), left), grouped


def _too_little_left(
    claimed: NDArray[np.uint64], amounts: NDArray[np.int64], left: Times
) -> tuple[NDArray[np.uint64], Times]:
    """Return which claims find too little left of a kernel, for each choice of claims that are granted before.

    No kernel has too little for its first claim. Kernels with more than MAX_PATTERNS claims stay single: the second
    result is their row, -1 for others.
    """
    binding, single = np.zeros(len(left), np.uint64), np.full(len(left), -1)
    for value in _distinct(claimed):
        own, rows = [at for at in range(len(amounts)) if value >> at & 1], np.flatnonzero(claimed == np.uint64(value))
        if len(own) > MAX_PATTERNS:
            single[rows] = rows
        elif len(own) > 1:
            asked = amounts[own][:, rows]
            short = binding[rows]
            for choice in product((False, True), repeat=len(own) - 1):
                rest = left[rows]
                for ns, granted in zip(asked, (*choice, False), strict=True):
                    # A different random-looking mix for each pattern keeps the keys apart.
                    short = short * np.uint64(0x9E3779B97F4A7C15) + (rest < ns) + np.uint64(1)
                    rest = rest - np.minimum(rest, ns) if granted else rest
            binding[rows] = short
    return binding, single


def _distinct(values: NDArray[np.uint64]) -> list[int]:
    """Return the distinct values; a few are fast."""
    different: list[int] = []
    while len(values):
        different.append(int(values[0]))
        values = values[values != values[0]]
    return different


NOTHING = GrantSums(0, 0, 0, ())
Key = tuple[int, int, str, str]  # number of the rule, device, FindingDraft.id and .key
Claims = Mapping[Key, Sequence[Claim]]


class Decision(NamedTuple):
    """A draft that is granted its claims, or `ns` of them in this part."""

    key: Key
    ns: int | None = None


@dataclass
class PartClaims:
    """The ledgers of a part by device, and the place of each draft's claims in the ledger of its device.

    `details` has what the part shows of each draft if it is granted all that it claims, after the `likely` findings
    before it. `granted` has the sums of the last decision in the part.
    """

    window: Window
    ledgers: dict[int, PartLedger]
    place: dict[Key, int]
    failures: dict[int, Failure]
    details: dict[Key, PartDetails] = field(default_factory=dict)
    likely: set[Key] = field(default_factory=set)
    granted: GrantSums = NOTHING


class Request(NamedTuple):
    """The claims of all drafts, and the end of each device's work. `compact` asks for small ledgers.

    `likely` has the ns in a part from which a draft is likely a finding of the capture.
    """

    covered: Covered
    rules: Rules
    claims: Claims
    until: Mapping[int, EndOfWork | None]
    compact: bool
    likely: Mapping[Key, float]


def claims_of_part(part: PartTrace, request: Request, decisions: Sequence[Decision] = ()) -> PartClaims:
    """Return the ledgers of a part after `decisions` in this order, with the claims of the drafts after these.

    Small ledgers come with details, also of the last decision.
    """
    assert part.trace.window is not None, "a part has a window"
    result = PartClaims(part.trace.window, {}, {}, {})
    order = list(request.claims)
    undecided = set(order[order.index(decisions[-1].key) + 1 :] if decisions else order)
    for device in capture_part(part, request.covered).devices:
        ledger, claims, failures = open_part_ledger(part, request, device)
        grants = deduct_decided(ledger, claims, decisions)
        if decisions and (last := decisions[-1].key) in grants:  # decisions of several devices follow each other
            result.granted = _sums(grants[last], ledger, claims[last], device)
            result.details[last] = details_of_grant(part, request.covered, last[1], request.claims[last], grants[last])
        left = {key: each for key, each in claims.items() if key in undecided}
        result.place |= {key: number for number, key in enumerate(left)}
        result.failures |= failures
        build = compact_ledger if request.compact else WholeLedger
        result.ledgers[device.row] = build(ledger, list(left.values()), device.steady_gaps, device.steady)
        if request.compact:
            _collect_details(result, part, request, ledger, left)
    if not request.compact:
        forget_collected(part, request.covered)  # the claims on the only part are resolved once
    return result


def _collect_details(
    result: PartClaims,
    part: PartTrace,
    request: Request,
    ledger: Ledger,
    claims: Mapping[Key, tuple[accounts.Claim, ...]],
) -> None:
    """Add what a part shows of drafts. The ledger loses what the likely findings claim."""
    for key, own in claims.items():
        grant = ledger.grant(own)
        if grant.total:
            result.details[key] = details_of_grant(part, request.covered, key[1], request.claims[key], grant)
        if grant.total >= request.likely[key]:
            result.likely.add(key)
            ledger.deduct(grant)


def details_in_part(
    part: PartTrace, request: Request, decided: Mapping[Window, tuple[Sequence[Decision], Collection[Key]]]
) -> dict[Key, PartDetails]:
    """Return what a part shows of findings; `decided` has the decisions of parts by window, and the findings."""
    assert part.trace.window is not None, "a part has a window"
    (decisions, keys), details = decided[part.trace.window], dict[Key, PartDetails]()
    for device in capture_part(part, request.covered).devices:
        ledger, claims, _ = open_part_ledger(part, request, device)
        for key, grant in deduct_decided(ledger, claims, decisions).items():
            if key in keys:
                details[key] = details_of_grant(part, request.covered, key[1], request.claims[key], grant)
    return details


def deduct_decided(
    ledger: Ledger, claims: Mapping[Key, tuple[accounts.Claim, ...]], decisions: Sequence[Decision]
) -> dict[Key, accounts.Grant]:
    """Grant the claims of each decided draft in this order, deduct the grants from the ledger, and return them."""
    grants = dict[Key, accounts.Grant]()
    for key, ns in decisions:
        if key in claims:
            grants[key] = ledger.grant(claims[key], ns)
            ledger.deduct(grants[key])
    return grants


def _sums(grant: accounts.Grant, ledger: Ledger, claims: Sequence[accounts.Claim], device: DevicePart) -> GrantSums:
    """Return the sums of a grant, with a pair for each cause of each claim on gaps, as in a compact ledger."""
    idle, causes = iter(grant.idle_grants), list[tuple[str, int]]()
    for claim in claims:
        if isinstance(claim, accounts.GapClaim):
            known = next(idle).ns if any(cause in ledger.idle for cause in claim.causes) else {}
            causes += [(cause, int(known[cause].sum()) if cause in known else 0) for cause in claim.causes]
    return GrantSums(grant.total, grant.gaps, grant.total_inside(device.steady_gaps, device.steady), tuple(causes))


def open_part_ledger(
    part: PartTrace, request: Request, device: DevicePart
) -> tuple[Ledger, dict[Key, tuple[accounts.Claim, ...]], dict[int, Failure]]:
    """Return the ledger of a device in a part, the claims on it by draft, and the rules whose claims do not fit."""
    groups = collected_in_part(part, request.covered, request.rules).groups
    ledger = open_ledger(device, exposed_in_part(part, device), request.until[device.row])
    rules, claims, failures = request.rules, {}, dict[int, Failure]()

    def claims_of(key: Key) -> tuple[accounts.Claim, ...]:
        own = tuple(resolve(claim, groups.get(key[:2], {}), device.steady_gaps) for claim in request.claims[key])
        if isinstance(rules[key[0]], PackageRule):
            ledger.grant(own)  # raises an error if rows do not exist
        return own

    for key in request.claims:
        if key[1] == device.row:
            resolved = guarded(rules[key[0]], partial(claims_of, key))
            if isinstance(resolved, Failure):
                failures[key[0]] = resolved
            else:
                claims[key] = resolved
    return ledger, claims, failures
