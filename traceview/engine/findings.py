"""Findings of a capture: rules collect in each part, decide once, and are granted time from all parts together.

The details of a finding are what each part of a capture shows of it, and what all parts show together.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import polars as pl

from traceview import intervals
from traceview.engine.claims import (
    NOTHING,
    Decision,
    Key,
    PartClaims,
    PartSums,
    Request,
    Rules,
    claims_of_part,
    collect_in_part,
    deduct_decided,
    open_part_ledger,
)
from traceview.engine.facts import FindingContext, capture_part
from traceview.engine.merge import merge_host_states, merge_totals
from traceview.engine.part import PartTrace, Runner
from traceview.intervals import largest_positions
from traceview.measure.activity import COMPUTE
from traceview.measure.host import LINES, HostIdle
from traceview.model.analysis import Analysis, HostStates
from traceview.model.findings import Finding, Place
from traceview.model.rows import SourceLine, StreamUse
from traceview.model.sums import merged_sums
from traceview.model.trace import Note, Window
from traceview.model.units import duration
from traceview.pricing.accounts import end_of_work
from traceview.pricing.base import CapturePart, DevicePart, FindingDraft
from traceview.pricing.claims import STEADY, Claim
from traceview.pricing.describe import (
    Details,
    GrantSums,
    IdleHost,
    Price,
    PricedFinding,
    ask_for_host,
    claimed_causes,
    decisive_cost,
    describe,
    granted_gaps,
    join_devices,
    stated_doubt,
    texts_of_draft,
    with_stall,
)
from traceview.pricing.ledger import Grant
from traceview.pricing.packages import AnyRule, Failure, UnfitRuleError, guarded
from traceview.pricing.texts import FindingTexts
from traceview.rules import all_rules

MIN_STATES_SHARE = 0.01  # share of a part's time from which the states of threads at a line are kept
MAX_PLACES = 5
CostedPlace = tuple[int, Place]  # with the ns that a finding is granted there
LineKey = tuple[str, int, str, str]


class HostSums(NamedTuple):
    """The parts of IdleHost that add up over the parts of a capture.

    `lines` is the result of HostIdle.line_sums. `states` has the states of threads by line; its key None has the sum of
    all lines.
    """

    idle_ns: int
    looked_ns: int
    lines: pl.DataFrame
    states: dict[LineKey | None, HostStates]


class PartDetails(NamedTuple):
    """What a part shows of a finding."""

    places: list[CostedPlace]
    computes: bool
    host: HostSums | None


def details_in_part(
    part: PartTrace, decisions: Mapping[Window, Sequence[Decision]], request: Request, labels: Mapping[Key, str | None]
) -> dict[Key, PartDetails]:
    """Return what a part shows of findings; `decisions` are those of all parts by window, in their order.

    `labels` have what happened at the places of each finding, None for a finding that has its places.
    """
    assert part.trace.window is not None, "a part has a window"
    details = dict[Key, PartDetails]()
    for device in capture_part(part, request.covered).devices:
        ledger, claims, _ = open_part_ledger(part, request, device)
        grants = deduct_decided(ledger, claims, decisions[part.trace.window])
        details |= {key: details_of_grant(part, request, key, grant, labels[key]) for key, grant in grants.items()}
    return details


def details_of_grant(part: PartTrace, request: Request, key: Key, grant: Grant, label: str | None) -> PartDetails:
    """Return what a part shows of a finding that is granted its members; `label` is an entry of details_in_part."""
    rows = capture_part(part, request.covered)
    device = next(device for device in rows.devices if device.row == key[1])
    places = [] if label is None else largest_places(rows, device, label, grant)
    host = _host_sums(part.host_idle, device, request.claims[key], grant)
    return PartDetails(places, len(grant.computing) > 0, host)


def _host_sums(
    host_idle: HostIdle | None, device: DevicePart, claims: Sequence[Claim], grant: Grant
) -> HostSums | None:
    if host_idle is None or not grant.idle.any() or not ask_for_host(claims):
        return None
    gaps, looked = granted_gaps(device, grant)
    sums, states = host_idle.line_sums([gaps]), dict[LineKey | None, HostStates]()
    if claimed_causes(claims) == {"host"}:
        states[None] = host_idle.states(gaps)
        for line in host_idle.lines_of_sums(sums):
            if line.host_ns >= MIN_STATES_SHARE * looked:
                states[_line_key(line)] = host_idle.states(gaps, line)
    return HostSums(int(grant.idle.sum()), looked, sums, states)


def _line_key(line: SourceLine | None) -> LineKey | None:
    """Return what decides which time HostIdle.states counts at a line."""
    if line is None:
        return None
    return ("", 0, "", line.until) if line.until else (line.file, line.line, "" if line.line else line.function, "")


def merge_details(parts: Sequence[PartDetails], host_idle: HostIdle | None) -> Details:
    """Return the details of a finding from those of parts; `host_idle` knows the resident tables."""
    places = select_places(place for part in parts for place in part.places)
    hosts = [part.host for part in parts if part.host is not None]
    host = None if host_idle is None or not hosts else _merge_hosts(hosts, host_idle)
    costly = tuple(replace(place, cost_ns=cost) for cost, place in places)
    return Details(costly, host, any(part.computes for part in parts))


def _merge_hosts(hosts: Sequence[HostSums], host_idle: HostIdle) -> IdleHost:
    def states(line: SourceLine | None) -> HostStates:
        key = _line_key(line)
        return merge_host_states([host.states[key] for host in hosts if key in host.states])

    return IdleHost(
        sum(host.idle_ns for host in hosts),
        sum(host.looked_ns for host in hosts),
        host_idle.lines_of_sums(merge_totals(LINES, [host.lines for host in hosts])),
        states,
    )


def largest_places(part: CapturePart, device: DevicePart, label: str, grant: Grant) -> list[CostedPlace]:
    """Return the MAX_PLACES places with the most granted time, largest first; `label` is what happened there."""
    costs = ((grant.gap_row(at), int(grant.idle[at])) for at in largest_positions(grant.idle, MAX_PLACES))
    places = [(cost, _idle_place(part, device, row, cost, label)) for row, cost in costs]
    for piece in largest_positions(grant.exposed.end - grant.exposed.start, MAX_PLACES):
        start, end = int(grant.exposed.start[piece]), int(grant.exposed.end[piece])
        places.append((end - start, _exposed_place(part, device, start, end, label)))
    for at in largest_positions(grant.compute, MAX_PLACES):
        places.append((int(grant.compute[at]), _compute_place(part, device, int(grant.computing[at]), label)))
    return select_places(places)


def select_places(places: Iterable[CostedPlace]) -> list[CostedPlace]:
    """Return the MAX_PLACES places with the most time, largest first; equal ones in the order of time."""
    return sorted(places, key=lambda pair: (-pair[0], pair[1].start_ns))[:MAX_PLACES]


def _idle_place(part: CapturePart, device: DevicePart, row: int, cost: int, label: str) -> Place:
    operation, thread = int(device.gap_operation[row]), int(device.gap_thread[row])
    start, end = int(device.gap_start[row]), int(device.gap_end[row])
    if cost < end - start:
        text = f"GPU idle for {duration(end - start)}, of which {duration(cost)}: {label}"
    else:
        text = f"GPU idle for {duration(cost)}: {label}"
    trace = part.trace
    if operation >= 0:
        text += f"; next operation: {trace.operations['name'][operation]}"
    return Place(
        text=text,
        start_ns=start,
        end_ns=end,
        device=device.id,
        stream=None if operation < 0 else int(trace.operations["stream"][operation]),
        thread=None if thread < 0 else thread,
    )


def _compute_place(part: CapturePart, device: DevicePart, position: int, label: str) -> Place:
    work, trace = device.activity, part.trace
    operation = trace.operations.row(int(work.rows[position]), named=True)
    start, end, launch = int(work.start[position]), int(work.end[position]), operation["launch"]
    return Place(
        text=f"{operation['name']}: {duration(end - start)}, {label}",
        start_ns=start,
        end_ns=end,
        device=device.id,
        stream=operation["stream"],
        thread=None if launch is None else int(trace.api["thread"][launch]),
    )


def _exposed_place(part: CapturePart, device: DevicePart, start: int, end: int, label: str) -> Place:
    work, trace = device.activity, part.trace
    begun = int(np.searchsorted(work.start, start, side="right"))
    running = np.flatnonzero((work.end[:begun] > start) & (work.codes[:begun] != COMPUTE))
    text, stream, thread = f"{duration(end - start)} without compute: {label}", None, None
    if len(running):
        # The same order as in the ledger: communication, copy, memset.
        first = running[np.argmin(work.codes[running])]
        operation = trace.operations.row(int(work.rows[first]), named=True)
        stream, launch = operation["stream"], operation["launch"]
        thread = None if launch is None else int(trace.api["thread"][launch])
        text = f"{operation['name']}: {text}"
    return Place(text=text, start_ns=start, end_ns=end, device=device.id, stream=stream, thread=thread)


Findings: TypeAlias = tuple[tuple[Finding, ...], tuple[Note, ...]]
FindingSteps: TypeAlias = Generator[Callable[[PartTrace], Any], list[Any], Findings]


def find_together(parts: Runner, steps: Sequence[FindingSteps]) -> list[Findings]:
    """Run the steps of several calls of `find`. A pass over the parts takes the next step of each."""
    ended, pending = dict[int, Findings](), dict[int, Callable[[PartTrace], Any]]()

    def advance(number: int, results: list[Any] | None) -> None:
        try:
            pending[number] = steps[number].send(results)  # type: ignore[arg-type]  # None starts a generator
        except StopIteration as end:
            ended[number] = end.value

    for number in range(len(steps)):
        advance(number, None)
    while pending:
        numbers, functions = list(pending), tuple(pending.values())
        pending.clear()
        results = list(parts.over_parts(partial(_results_of_each, functions=functions)))
        for number, own in zip(numbers, zip(*results, strict=True), strict=True):
            advance(number, list(own))
    return [ended[number] for number in range(len(steps))]


def _results_of_each(part: PartTrace, functions: Sequence[Callable[[PartTrace], Any]]) -> list[Any]:
    return [function(part) for function in functions]


def find(
    analysis: Analysis,
    steady: Mapping[int, Sequence[StreamUse]],
    parts: Runner,
    host_idle: HostIdle | None = None,
    priced: Callable[[], Analysis] | None = None,
    rules: Sequence[AnyRule] = (),
    sums: Sequence[PartSums] = (),
) -> FindingSteps:
    """Return the findings of a capture, the costliest first, and the notes of rules.

    This is a generator of functions over the parts, which gets their results (see find_together).

    `analysis` has the figures of the whole capture, with its notes, and the resident tables as its trace; `steady` has
    the streams of each device in its steady part. `host_idle` knows the resident tables. `priced` returns the analysis
    with the profiler's part of idle time, which prices need and claims do not. `rules` are all rules by default.
    `sums` are those that the rules collected in each part, if they did.
    """
    context, every = FindingContext.from_analysis(analysis, steady), tuple(rules) or all_rules()
    sums = sums or (yield partial(collect_in_part, covered=context.covered, rules=every))
    drafts, notes = _decide(context, every, sums)
    ends = {
        row: None if analysis.covers_run else end_of_work([part.ends[row] for part in sums]) for row in context.uses
    }
    claimed = {key: draft.claims for key, draft in drafts.items()}
    request = Request(context.covered, every, claimed, ends, parts.count > 1)
    claims = yield partial(claims_of_part, request=request)
    for part in claims:
        for number, failure in part.failures.items():
            notes.append((number, failure.note))
            drafts = {key: draft for key, draft in drafts.items() if key[0] != number}
    if priced is not None:
        analysis = priced()
        context = FindingContext.from_analysis(analysis, steady)
    pricing = _Pricing(context, request, parts, claims, [[] for _ in claims])
    prices = {key: price for key, draft in drafts.items() if (price := pricing.price(key, draft)) is not None}
    notes += [(key[0], Note(key[2], f"{texts['title']}. {texts['advice']}")) for key, texts in pricing.noted.items()]
    in_order = tuple(dict.fromkeys(note for _, note in sorted(notes, key=lambda pair: pair[0])))
    details = [pricing.details]
    if request.compact and prices:
        decisions = {part.window: tuple(own) for part, own in zip(pricing.parts, pricing.decisions, strict=True)}
        labels = {key: _place_label(drafts[key], texts) for key, (_, texts) in prices.items()}
        details = yield partial(details_in_part, decisions=decisions, request=request, labels=labels)
    findings = _describe(context, details, drafts, prices, in_order, host_idle)
    joined = join_devices(sorted(findings, key=lambda each: -decisive_cost(each.finding)))
    return tuple(with_stall(finding, analysis.iterations) for finding in joined), in_order


def _decide(
    context: FindingContext, rules: Rules, parts: Sequence[PartSums]
) -> tuple[dict[Key, FindingDraft], list[tuple[int, Note]]]:
    """Run the second half of each rule. Return the drafts, and notes with the numbers of their rules."""
    facts = context.facts({name: sum(part.sizes[name] for part in parts) for name in ("operations", "calls")})
    drafts, notes = dict[Key, FindingDraft](), list[tuple[int, Note]]()
    for number, rule in enumerate(rules):
        failure = next((part.failures[number] for part in parts if number in part.failures), None)
        if failure is None:
            sums = {row: merged_sums([part.rules[number, row] for part in parts]) for row in context.uses}
            groups = frozenset[str]().union(*(part.groups[number] for part in parts if number in part.groups))
            result = guarded(rule, lambda: _checked(rule.decide(facts, sums), groups))  # noqa: B023
            if not isinstance(result, Failure):
                notes += [(number, draft) for draft in result if isinstance(draft, Note)]
                own = [draft for draft in result if not isinstance(draft, Note)]
                drafts |= {(number, draft.device.row, draft.id, draft.key): draft for draft in own}
                continue
            failure = result
        notes.append((number, failure.note))
    return drafts, notes


def _checked(drafts: Iterable[FindingDraft | Note], groups: frozenset[str]) -> list[FindingDraft | Note]:
    """Return the drafts of a rule. Raises UnfitRuleError for a claim on a group that no part collected."""
    drafts = list(drafts)
    named = {claim.group for draft in drafts if isinstance(draft, FindingDraft) for claim in draft.claims}
    unknown = sorted(name for name in named if name is not None and name not in {STEADY, *groups})
    if unknown:
        raise UnfitRuleError(f"it claims the group {unknown[0]!r}, which collect does not return")
    return drafts


def _describe(
    context: FindingContext,
    details: Sequence[Mapping[Key, PartDetails]],
    drafts: Mapping[Key, FindingDraft],
    prices: Mapping[Key, tuple[Price, FindingTexts]],
    notes: Sequence[Note],
    host_idle: HostIdle | None,
) -> list[PricedFinding]:
    """Return the findings with what decides which of them are joined; `details` are those of each part."""
    doubts = [note for note in (*context.analysis.notes, *notes) if note.affects]
    facts, findings = context.facts({}), []
    for key, (price, texts) in prices.items():
        draft = drafts[key]
        merged = merge_details([part[key] for part in details if key in part], host_idle)
        finding = replace(describe(facts, draft, texts, price, merged), unsure_because=stated_doubt(draft, doubts))
        findings.append(PricedFinding(finding, texts["title"], draft.same_everywhere))
    return findings


def _place_label(draft: FindingDraft, texts: FindingTexts) -> str | None:
    """Return what happened at the places of a finding, None if the draft has its places."""
    return None if draft.evidence else texts["place"]


@dataclass
class _Pricing:
    """Grants the claims of drafts over all parts, in the order of rules.

    `decisions` are those in each part, `noted` has the texts of drafts that become notes. `details` has what the only
    part shows of findings: its grants have all members, and are too large to keep.
    """

    context: FindingContext
    request: Request
    runner: Runner
    parts: list[PartClaims]
    decisions: list[list[Decision]]
    noted: dict[Key, FindingTexts] = field(default_factory=dict)
    details: dict[Key, PartDetails] = field(default_factory=dict)

    def price(self, key: Key, draft: FindingDraft) -> tuple[Price, FindingTexts] | None:
        """Grant the claims of a draft. Return its price and texts.

        Return None if it costs too little or does not apply to the program; then nothing is granted.
        """
        uncut = [self._grant(part, key, None) for part in self.parts]
        shares = _shares(uncut, draft.at_most)
        grants = [
            whole if share is None else self._grant(part, key, share)
            for part, share, whole in zip(self.parts, shares, uncut, strict=True)
        ]
        sums = [
            NOTHING if grant is None else part.ledgers[key[1]].sums(grant)
            for part, grant in zip(self.parts, grants, strict=True)
        ]
        cut = _cut_part(shares, uncut) if self.request.compact else -1
        again = None if cut < 0 else self._part_after(cut, Decision(key, shares[cut]))
        if again is not None:
            sums[cut] = again.granted
        price = Price.from_sums(self.context.analysis, self.context.uses[key[1]], draft, _sum_grants(sums))
        enough = price.is_enough_for(draft)
        if not (enough or draft.note_without_cost):
            return None
        texts = texts_of_draft(self.request.rules[key[0]], draft, self.context.analysis.trace, price)
        if texts is not None and enough:
            if not self.request.compact and grants[0] is not None:
                label = _place_label(draft, texts)
                run = partial(details_of_grant, request=self.request, key=key, grant=grants[0], label=label)
                self.details[key] = self.runner.in_part(0, run)
            self._deduct(key, shares, grants, cut)
            if again is not None:
                self.parts[cut] = again
            return price, texts
        if texts is not None:
            self.noted[key] = texts
        return None

    def _grant(self, part: PartClaims, key: Key, ns: int | None) -> Grant | None:
        if key not in part.place:
            return None
        own = part.ledgers[key[1]]
        return own.ledger.grant(own.claims[part.place[key]], ns)

    def _part_after(self, number: int, decision: Decision) -> PartClaims:
        """Return the claims of a part after one more decision, with what it grants there.

        Groups of gaps and of exposed time do not show which of their ns come first.
        """
        decisions = (*self.decisions[number], decision)
        return self.runner.in_part(number, partial(claims_of_part, request=self.request, decisions=decisions))

    def _deduct(self, key: Key, shares: Sequence[int | None], grants: Sequence[Grant | None], cut: int) -> None:
        """Deduct what a draft gets, except in the part `cut`, which is looked at again."""
        for number, (part, share, grant) in enumerate(zip(self.parts, shares, grants, strict=True)):
            self.decisions[number].append(Decision(key, share))
            if grant is not None and number != cut:
                part.ledgers[key[1]].ledger.deduct(grant)


def _shares(uncut: Sequence[Grant | None], at_most: int | None) -> list[int | None]:
    """Return the ns that each part gets of what a draft can give at most; None for all that it claims."""
    total = sum(grant.total for grant in uncut if grant is not None)
    if at_most is None or total <= at_most:
        return [None] * len(uncut)
    left, shares = at_most, [0] * len(uncut)
    for column in _amounts(uncut):
        for number, ns in enumerate(column):
            given = min(ns, left)
            shares[number] += given
            left -= given
    return list(shares)


def _cut_part(shares: Sequence[int | None], uncut: Sequence[Grant | None]) -> int:
    """Return the number of the part in which a limited grant ends inside an account, -1 for none."""
    cut = -1
    if any(share is not None for share in shares):
        left = sum(share or 0 for share in shares)
        for column in _amounts(uncut):
            for number, ns in enumerate(column):
                if 0 < left < ns:
                    cut = number
                left -= min(ns, left)
    return cut


def _amounts(uncut: Sequence[Grant | None]) -> list[list[int]]:
    """Return the ns of each part by account, in the order in which accounts are granted."""
    first = next(grant for grant in uncut if grant is not None)
    exposed = [
        [0 if grant is None else intervals.length(grant.exposed_grants[at][1]) for grant in uncut]
        for at in range(len(first.exposed_grants))
    ]
    idle = [[0 if grant is None else grant.causes[at][1] for grant in uncut] for at in range(len(first.causes))]
    return [*exposed, *idle]


def _sum_grants(grants: Sequence[GrantSums]) -> GrantSums:
    longest = max((grant.causes for grant in grants), key=len, default=())
    some = [grant.causes for grant in grants if grant.causes]
    causes = tuple((cause, sum(each[at][1] for each in some)) for at, (cause, _) in enumerate(longest))
    total, gaps, steady = (sum(each) for each in zip(*(grant[:3] for grant in grants), strict=True))
    return GrantSums(total, gaps, steady, causes)
