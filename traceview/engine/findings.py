"""Findings of a capture: rules collect in each part, decide once, and are granted time from all parts together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from traceview import intervals
from traceview.engine.claims import (
    NOTHING,
    Decision,
    Key,
    PartClaims,
    Request,
    claims_of_part,
    details_in_part,
)
from traceview.engine.details import PartDetails, details_of_grant, merge_details
from traceview.engine.facts import FindingContext, PartSums, Rules, collect_in_part
from traceview.engine.part import PartTrace, Runner
from traceview.measure.host import HostIdle
from traceview.model.analysis import Analysis
from traceview.model.findings import Finding
from traceview.model.rows import StreamUse
from traceview.model.sums import merged_sums
from traceview.model.trace import Note
from traceview.pricing.accounts import end_of_work
from traceview.pricing.base import FindingDraft
from traceview.pricing.claims import STEADY
from traceview.pricing.describe import (
    GrantSums,
    Price,
    PricedFinding,
    decisive_cost,
    describe,
    join_devices,
    least_ns,
    stated_doubt,
    texts_of_draft,
    with_stall,
)
from traceview.pricing.ledger import Grant, Ledger
from traceview.pricing.packages import AnyRule, Failure, UnfitRuleError, guarded
from traceview.pricing.texts import FindingTexts
from traceview.rules import all_rules

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
    least = {key: least_ns(analysis, context.uses[key[1]], draft) for key, draft in drafts.items()}
    likely = {key: ns / parts.count for key, ns in least.items()}
    request = Request(context.covered, every, claimed, ends, parts.count > 1, likely)
    claims = yield partial(claims_of_part, request=request)
    for part in claims:
        for number, failure in part.failures.items():
            notes.append((number, failure.note))
            drafts = {key: draft for key, draft in drafts.items() if key[0] != number}
    if any(part.failures for part in claims):  # the parts do not know of each other's failures
        claims = [replace(part, details={}) for part in claims]
    if priced is not None:
        analysis = priced()
        context = FindingContext.from_analysis(analysis, steady)
    pricing = _Pricing(context, request, parts, claims, [[] for _ in claims])
    prices = {key: price for key, draft in drafts.items() if (price := pricing.price(key, draft)) is not None}
    notes += [(key[0], Note(key[2], f"{texts['title']}. {texts['advice']}")) for key, texts in pricing.noted.items()]
    in_order = tuple(dict.fromkeys(note for _, note in sorted(notes, key=lambda pair: pair[0])))
    findings = _describe(context, pricing.all_details(), drafts, prices, in_order, host_idle)
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
        label = None if draft.evidence else texts["place"]
        merged = merge_details([part[key] for part in details if key in part], host_idle, label)
        finding = replace(describe(facts, draft, texts, price, merged), unsure_because=stated_doubt(draft, doubts))
        findings.append(PricedFinding(finding, texts["title"], draft.same_everywhere))
    return findings


@dataclass
class _Pricing:
    """Grants the claims of drafts over all parts, in the order of rules.

    `decisions` are those in each part, `noted` has the texts of drafts that become notes. `details` has what each part
    shows of findings. A part collects it with its claims, before the decisions; `likely` are copies of its ledgers that
    lose what PartClaims.likely claim. A finding that is granted something else in a part is in `unlike`.
    """

    context: FindingContext
    request: Request
    runner: Runner
    parts: list[PartClaims]
    decisions: list[list[Decision]]
    noted: dict[Key, FindingTexts] = field(default_factory=dict)
    details: list[dict[Key, PartDetails]] = field(init=False)
    likely: list[dict[int, Ledger]] = field(init=False)
    unlike: dict[int, list[Key]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        self.details = [dict[Key, PartDetails]() for _ in self.parts]
        self.likely = [_copies(part) for part in self.parts]

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
        texts, enough = None, price.is_enough_for(draft)
        if enough or draft.note_without_cost:
            texts = texts_of_draft(self.request.rules[key[0]], draft, self.context.analysis.trace, price)
        is_finding = texts is not None and enough
        for number, grant in enumerate(grants):
            if number != cut or not is_finding:
                self._collect_details(number, key, grant if is_finding else None)
        if is_finding:
            self._deduct(key, shares, grants, cut)
        if again is not None and is_finding:
            self.parts[cut], self.likely[cut] = again, _copies(again)
            self.details[cut][key] = again.details.pop(key)
        if texts is None or is_finding:
            return None if texts is None else (price, texts)
        self.noted[key] = texts
        return None

    def _collect_details(self, number: int, key: Key, grant: Grant | None) -> None:
        """Keep what a part shows of a draft that is granted this; None if the draft is not a finding."""
        part = self.parts[number]
        if not self.request.compact:
            if grant is not None:
                covered, claims = self.request.covered, self.request.claims[key]
                run = partial(details_of_grant, covered=covered, device=key[1], claims=claims, grant=grant)
                self.details[number][key] = self.runner.in_part(number, run)
            return
        expected = None
        if key in part.details:
            ledger = self.likely[number][key[1]]
            expected = ledger.grant(part.ledgers[key[1]].claims[part.place[key]])
            if key in part.likely:
                ledger.deduct(expected)
        if grant is None:
            return
        if grant.total == 0:
            self.details[number][key] = PartDetails([], len(grant.computing) > 0, None)
        elif expected is not None and expected.equals(grant):
            self.details[number][key] = part.details[key]
        else:
            self.unlike[number].append(key)

    def all_details(self) -> Sequence[Mapping[Key, PartDetails]]:
        """Return what each part shows of findings, after another look at parts whose likely findings are others."""
        numbers = sorted(self.unlike)
        decided = {self.parts[at].window: (tuple(self.decisions[at]), tuple(self.unlike[at])) for at in numbers}
        function = partial(details_in_part, request=self.request, decided=decided)
        for number, details in zip(numbers, self.runner.over_parts(function, numbers), strict=True):
            self.details[number] |= details
        return self.details

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


def _copies(part: PartClaims) -> dict[int, Ledger]:
    return {device: deepcopy(own.ledger) for device, own in part.ledgers.items()} if part.details else {}


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
