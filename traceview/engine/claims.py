"""What rules collect in a part of a capture, and the part's ledgers with the claims of all drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from traceview.engine.facts import FindingContext, capture_part
from traceview.engine.iterations import own_operations
from traceview.engine.ledgers import PartLedger, WholeLedger, compact_ledger
from traceview.engine.part import PartTrace
from traceview.measure.shared_work import measuring_threads
from traceview.model.trace import Window
from traceview.pricing import ledger as accounts
from traceview.pricing.accounts import EndOfWork, WorkEnds, exposed_work, open_ledger, work_ends
from traceview.pricing.base import DevicePart
from traceview.pricing.claims import Claim, Collected, Group, resolve
from traceview.pricing.describe import GrantSums
from traceview.pricing.ledger import Ledger
from traceview.pricing.packages import Failure, PackageRule, guarded

NOTHING = GrantSums(0, 0, 0, ())
Key = tuple[int, int, str, str]  # number of the rule, device, FindingDraft.id and .key
Claims = Mapping[Key, Sequence[Claim]]


class Decision(NamedTuple):
    """A draft that is granted its claims, or `ns` of them in this part."""

    key: Key
    ns: int | None = None


@dataclass(frozen=True)
class PartSums:
    """The sums of a part: those of rules by number and device, the ends of its work by device, and its sizes.

    `groups` has the names of the groups that each rule collected, by its number.
    """

    rules: Mapping[tuple[int, int], Any]
    groups: Mapping[int, frozenset[str]]
    failures: Mapping[int, Failure]
    ends: Mapping[int, WorkEnds]
    sizes: Mapping[str, int]


class _Collection(NamedTuple):
    """The sums of a part, and the groups of members that stay in it, by number of the rule and device."""

    sums: PartSums
    groups: Mapping[tuple[int, int], Mapping[str, Group]]


def collect_in_part(part: PartTrace, context: FindingContext) -> PartSums:
    """Run the first half of each rule in a part."""
    return _collected(part, context).sums


def _collected(part: PartTrace, context: FindingContext) -> _Collection:
    return part.once("collected", partial(_collect, part, context), context.windows)


def _collect(part: PartTrace, context: FindingContext) -> _Collection:
    rows = capture_part(part, context)
    jobs = [(number, device) for number in range(len(context.rules)) for device in rows.devices]

    def collect(job: tuple[int, DevicePart]) -> Collected[Any] | Failure:
        rule = context.rules[job[0]]
        return guarded(rule, partial(rule.collect, rows, job[1]))

    sums, groups, failures = {}, {}, {}
    with measuring_threads(len(part.trace.operations)) as pool:
        for (number, device), collected in zip(jobs, pool.map(collect, jobs), strict=True):
            if isinstance(collected, Failure):
                failures[number] = collected
            else:
                sums[number, device.row], groups[number, device.row] = collected.sums, collected.groups
    ends = {device.row: work_ends(device, _exposed(part, device)) for device in rows.devices}
    sizes = {"operations": len(own_operations(part.trace).operations), "calls": len(part.trace.api)}
    names = {number: _group_names(number, groups) for number, _ in groups}
    return _Collection(PartSums(sums, names, failures, ends, sizes), groups)


def _group_names(number: int, groups: Mapping[tuple[int, int], Mapping[str, Group]]) -> frozenset[str]:
    """Return the names of the groups of a rule on all devices."""
    return frozenset(name for (rule, _), own in groups.items() if rule == number for name in own)


def _exposed(part: PartTrace, device: DevicePart) -> Mapping[str, Any]:
    work = device.activity
    return part.once(("exposed", device.row), lambda: exposed_work(work, device.copies), work.window)


@dataclass
class PartClaims:
    """The ledgers of a part by device, and the place of each draft's claims in the ledger of its device.

    `granted` has the sums of the last decision in the part.
    """

    window: Window
    ledgers: dict[int, PartLedger]
    place: dict[Key, int]
    failures: dict[int, Failure]
    granted: GrantSums = NOTHING


@dataclass(frozen=True)
class Request:
    """The claims of all drafts, and the end of each device's work. `compact` asks for small ledgers."""

    context: FindingContext
    claims: Claims
    until: Mapping[int, EndOfWork | None]
    compact: bool


def claims_of_part(part: PartTrace, request: Request, decisions: Sequence[Decision] = ()) -> PartClaims:
    """Return the ledgers of a part after `decisions` in this order, with the claims of the other drafts."""
    assert part.trace.window is not None, "a part has a window"
    result = PartClaims(part.trace.window, {}, {}, {})
    decided = {decision.key for decision in decisions}
    for device in capture_part(part, request.context).devices:
        ledger, claims, failures = open_part_ledger(part, request, device)
        grants = deduct_decided(ledger, claims, decisions)
        if decisions and (last := decisions[-1].key) in grants:  # decisions of several devices follow each other
            result.granted = _sums(grants[last], ledger, claims[last], device)
        left = {key: each for key, each in claims.items() if key not in decided}
        result.place |= {key: number for number, key in enumerate(left)}
        result.failures |= failures
        build = compact_ledger if request.compact else WholeLedger
        result.ledgers[device.row] = build(ledger, list(left.values()), device.steady_gaps, device.steady)
    return result


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
    groups = _collected(part, request.context).groups
    ledger = open_ledger(device, _exposed(part, device), request.until[device.row])
    rules, claims, failures = request.context.rules, {}, dict[int, Failure]()

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
