"""Findings of a capture that is analysed in slices: ids, costs and order are those of the complete capture.

Rules run in each slice, with the figures of the whole capture. First they collect sums that decide what they claim
(pricing.base.RuleSums). Then they claim, and each slice sends its accounts in groups (ledgers.py). The parent grants
the claims of one draft after the other over all slices. If a draft gets only a part of what it claims, the slice in
which that part ends is looked at again. At last each slice shows the details of the findings (details.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from traceview import intervals
from traceview.model.analysis import Analysis
from traceview.model.findings import Finding
from traceview.model.trace import Note, Window
from traceview.pricing.base import FindingDraft, collect_facts
from traceview.pricing.describe import GrantSums, Price, describe, note_of_draft
from traceview.pricing.findings import decisive_cost, join_devices, stated_doubt
from traceview.pricing.ledger import Grant
from traceview.slices.claims import (
    Decision,
    Key,
    SliceClaims,
    claims_of_slice,
    collect_sums,
    merge_sums,
    with_border_gap,
    with_sums,
)
from traceview.slices.details import details_in_slice, merge_details
from traceview.slices.facts import SliceContext
from traceview.slices.slice import InSlice, OverSlices


def findings_of_slices(
    analysis: Analysis, over_slices: OverSlices, in_slice: InSlice, priced: Callable[[], Analysis] | None = None
) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """Return the findings of a capture, the costliest first, and the notes of rules.

    `analysis` has the figures of the whole capture, with its notes, and the resident tables as its trace. `priced`
    returns it with the profiler's part of idle time, which prices need and claims do not.
    """
    context = SliceContext.from_analysis(analysis)
    sums = list(over_slices(partial(collect_sums, context=context)))
    context = with_sums(context, sums)
    slices = list(over_slices(partial(claims_of_slice, context=context)))
    if priced is not None:
        analysis = priced()
        context = with_sums(SliceContext.from_analysis(analysis), sums)
    context = replace(context, shown=merge_sums([part.shown for part in slices]))
    pricing = _Pricing(context, in_slice, slices)
    prices, noted = pricing.prices()
    function = partial(
        details_in_slice,
        context=context,
        decisions={part.window: tuple(own) for part, own in zip(slices, pricing.decisions, strict=True)},
        borders={part.window: after for part, after in zip(slices, [*pricing.borders[1:], {}], strict=True)},
        keys=frozenset((*prices, *noted)),
        texts=pricing.rules_with_texts((*prices, *noted)),
    )
    details = list(over_slices(function)) if prices or noted else []
    shown = {key: [part[key] for part in details if key in part] for key in (*prices, *noted)}
    notes = _notes(slices, {key: (shown[key][0].draft, price) for key, price in noted.items()})
    doubts = [note for note in (*analysis.notes, *notes) if note.affects]
    facts = collect_facts(replace(analysis, devices=()))
    facts = replace(facts, counted=context.counted, sizes=context.sizes)
    pairs = []
    for key, price in prices.items():
        draft = shown[key][0].draft
        merged = merge_details(shown[key], analysis.host_time)
        finding = describe(facts, draft, context.uses[key[1]].id, price, merged)
        pairs.append((draft, replace(finding, unsure_because=stated_doubt(draft, doubts))))
    return tuple(join_devices(sorted(pairs, key=lambda pair: -decisive_cost(pair[1])))), notes


def _notes(slices: Sequence[SliceClaims], drafts: Mapping[Key, tuple[FindingDraft, Price]]) -> tuple[Note, ...]:
    """Return the notes of rules, in the order of rules: of drafts that cost nothing, and others."""
    notes = [(key[0], note_of_draft(draft, price)) for key, (draft, price) in drafts.items()]
    notes += dict.fromkeys(note for part in slices for note in part.notes)
    return tuple(note for _, note in sorted(notes, key=lambda pair: pair[0]))


NOTHING = GrantSums(0, 0, 0, ())


class _Pricing:
    """Grants the claims of drafts over all slices, in the order of rules."""

    def __init__(self, context: SliceContext, in_slice: InSlice, slices: list[SliceClaims]) -> None:
        self.context, self.in_slice, self.slices = context, in_slice, slices
        self.decisions: list[list[Decision]] = [[] for _ in slices]
        self.drafts: dict[Key, FindingDraft] = {}
        self.first: dict[Key, Window] = {}  # the first slice that has each draft: its texts are shown
        for part in slices:
            for key, draft in part.drafts.items():
                self.drafts.setdefault(key, draft)
                self.first.setdefault(key, part.window)
        self.drafts = dict(sorted(self.drafts.items(), key=lambda pair: pair[0][0]))
        self.borders = [part.borders for part in slices]
        for number in range(len(slices) - 1):
            self._join_border(number)

    def _join_border(self, number: int) -> None:
        """Add to a slice's last gap the claims that the next slice's first operation has on it."""
        part, after = self.slices[number], self.borders[number + 1]
        for key, places in after.items():
            compact = part.ledgers.get(key[1])
            if compact is None or compact.border < 0 or key not in part.place:
                continue
            place = part.place[key]
            compact.claims[place] = with_border_gap(compact.claims[place], places, compact.border)

    def rules_with_texts(self, keys: Iterable[Key]) -> dict[Window, set[int]]:
        """Return the numbers of the rules whose texts each slice shows, for some drafts."""
        numbers: dict[Window, set[int]] = {part.window: set() for part in self.slices}
        for key in keys:
            numbers[self.first[key]].add(key[0])
        return numbers

    def prices(self) -> tuple[dict[Key, Price], dict[Key, Price]]:
        """Grant the claims of all drafts. Return the prices of findings, and those of drafts that become notes."""
        prices, noted = {}, {}
        for key, draft in self.drafts.items():
            uncut = [self._grant(part, key, None) for part in self.slices]
            shares = self._shares(key, uncut, draft.at_most)
            grants = [
                whole if share is None else self._grant(part, key, share)
                for part, share, whole in zip(self.slices, shares, uncut, strict=True)
            ]
            sums = [
                NOTHING if grant is None else part.ledgers[key[1]].sums(grant)
                for part, grant in zip(self.slices, grants, strict=True)
            ]
            price = Price.from_sums(self.context.uses[key[1]], _sum_grants(sums))
            if price.is_enough_for(draft):
                prices[key] = price
                self._deduct(key, shares, uncut, grants)
            elif draft.note_without_cost:
                noted[key] = price
        return prices, noted

    def _grant(self, part: SliceClaims, key: Key, ns: int | None) -> Grant | None:
        if key not in part.place:
            return None
        compact = part.ledgers[key[1]]
        return compact.ledger.grant(compact.claims[part.place[key]], ns)

    def _shares(self, key: Key, uncut: Sequence[Grant | None], at_most: int | None) -> list[int | None]:
        """Return the ns that each slice gets of what a draft can give at most; None for all that it claims."""
        total = sum(grant.total for grant in uncut if grant is not None)
        if at_most is None or total <= at_most:
            return [None] * len(uncut)
        amounts = self._amounts(uncut)
        left, shares = at_most, [0] * len(uncut)
        for column in amounts:
            for number, ns in enumerate(column):
                given = min(ns, left)
                shares[number] += given
                left -= given
        return list(shares)

    def _amounts(self, uncut: Sequence[Grant | None]) -> list[list[int]]:
        """Return the ns of each slice by account, in the order in which accounts are granted."""
        first = next(grant for grant in uncut if grant is not None)
        exposed = [
            [0 if grant is None else intervals.length(grant.exposed_grants[at][1]) for grant in uncut]
            for at in range(len(first.exposed_grants))
        ]
        idle = [[0 if grant is None else grant.causes[at][1] for grant in uncut] for at in range(len(first.causes))]
        return [*exposed, *idle]

    def _deduct(
        self, key: Key, shares: Sequence[int | None], uncut: Sequence[Grant | None], grants: Sequence[Grant | None]
    ) -> None:
        """Deduct what a draft gets, and look again at the slice in which its grant ends inside an account."""
        cut = -1
        if any(share is not None for share in shares):
            left = sum(share or 0 for share in shares)
            for column in self._amounts(uncut):
                for number, ns in enumerate(column):
                    if 0 < left < ns:
                        cut = number
                    left -= min(ns, left)
        for number, (part, share, grant) in enumerate(zip(self.slices, shares, grants, strict=True)):
            self.decisions[number].append(Decision(key, share))
            if grant is not None and number != cut:
                part.ledgers[key[1]].ledger.deduct(grant)
        if cut >= 0:
            after = self.borders[cut + 1] if cut + 1 < len(self.slices) else {}
            again = partial(claims_of_slice, context=self.context, decisions=tuple(self.decisions[cut]), borders=after)
            self.slices[cut] = self.in_slice(cut, again)
            if after:
                self._join_border(cut)


def _sum_grants(grants: Sequence[GrantSums]) -> GrantSums:
    longest = max((grant.causes for grant in grants), key=len, default=())
    some = [grant.causes for grant in grants if grant.causes]
    causes = tuple((cause, sum(each[at][1] for each in some)) for at, (cause, _) in enumerate(longest))
    total, gaps, steady = (sum(each) for each in zip(*(grant[:3] for grant in grants), strict=True))
    return GrantSums(total, gaps, steady, causes)
