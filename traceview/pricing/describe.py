"""The finding of a draft that costs enough: its price, texts, places and doubts, and equal ones of several devices."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from traceview.model.analysis import NotMeasured
from traceview.model.devices import DeviceUse, Gaps
from traceview.model.findings import Finding, Place
from traceview.model.program import Program
from traceview.model.trace import Note
from traceview.pricing.accounts import COMMUNICATION
from traceview.pricing.base import MIN_SHARE, CaptureFacts, FindingDraft, severity_from_share
from traceview.pricing.claims import ComputeClaim, IdleClaim
from traceview.pricing.host_places import IdleHost, name_place
from traceview.pricing.packages import AnyRule, entry_of
from traceview.pricing.texts import PRICED, FindingTexts, texts_for
from traceview.units import SIZES, TIMES, duration, share

ALIKE = 0.5  # share of the highest cost; a device with less has another problem, such as a slow rank
UNITS = "|".join(unit for _, unit in (*TIMES, *SIZES))
FIGURE = re.compile(rf"\d[\d.,]*(?: ?(?:{UNITS}|%)(?!\w))?")  # a number with its unit in a title


class GrantSums(NamedTuple):
    """The sums of a grant: its ns, the gaps that it comes from, the ns in the steady part, and idle ns by cause.

    `causes` has a pair for each cause of each idle claim. The sums of the parts of a capture add up.
    """

    total: int
    gaps: int
    steady: int
    causes: tuple[tuple[str, int], ...]


class Price(NamedTuple):
    """The price of a grant in ns, its gaps, its part in the steady part, and its share of the device's time.

    `profiler` is the part of the price that a run without the profiler does not pay, None if it is unknown.
    `unprofiled_share` is the share in that run, or `share`.
    """

    total: int
    gaps: int
    steady: int
    share: float
    profiler: int | None
    unprofiled_share: float

    @classmethod
    def from_sums(cls, use: DeviceUse, granted: GrantSums) -> Price:
        """Price the grant of a draft on a device with these figures."""
        whole, profiler = use.window.length, _profiler_part(use.gaps, granted)
        left = whole - sum((use.gaps.profiler or {}).values())
        return cls(
            total=granted.total,
            gaps=granted.gaps,
            steady=granted.steady,
            share=granted.total / whole if whole else 0.0,
            profiler=profiler,
            unprofiled_share=(granted.total - (profiler or 0)) / left if left else 0.0,
        )

    def is_enough_for(self, draft: FindingDraft) -> bool:
        """Return whether the price makes a draft a finding."""
        return self.share >= MIN_SHARE and self.gaps >= draft.min_gaps and self.total >= draft.min_ns


def _profiler_part(gaps: Gaps, granted: GrantSums) -> int | None:
    """Return the part of a grant that a run without the profiler does not lose; None if it is unknown."""
    if gaps.profiler is None:
        return None
    return sum(ns * gaps.profiler[cause] // max(gaps.causes[cause], 1) for cause, ns in granted.causes)


class Details(NamedTuple):
    """What shows a finding: the places with the most time, what the host did, and whether compute is claimed."""

    places: tuple[Place, ...]
    host: IdleHost | None
    computes: bool


def describe(facts: CaptureFacts, draft: FindingDraft, texts: FindingTexts, price: Price, details: Details) -> Finding:
    """Return the finding of a draft that costs enough."""
    # The part is one of the cost. A title without it has another figure, which can be less.
    whole = "it" if "{cost}" in texts.templates["title"] else "the cost"
    place = name_place(facts.analysis.trace.evidence, draft.claims, details.host, whole)
    texts = texts.at_known_place() if place.where else texts
    return Finding(
        id=draft.id,
        severity=severity_from_share(price.unprofiled_share),
        title=texts["title"] + place.where,
        evidence=draft.evidence or details.places,
        cost_ns=price.total,
        advice=place.advice + texts["advice"] + _prediction(facts, texts["change"]),
        code=texts.code,
        device=draft.device.use.id,
        cost_fraction=price.share,
        cost_per_iteration_ns=_cost_per_iteration(facts, price),
        unprofiled_cost_ns=None if price.profiler is None else price.total - price.profiler,
        unprofiled_cost_per_iteration_ns=_unprofiled_cost_per_iteration(facts, price),
        unprofiled_cost_fraction=None if price.profiler is None else price.unprofiled_share,
        claims="compute" if details.computes else "waiting",
        host=place.place,
        change=texts["change"] if facts.counted else "",
        remedy=place.remedy or texts["remedy"],
    )


def _cost_per_iteration(facts: CaptureFacts, price: Price) -> int | None:
    """Return the mean cost in an iteration, at most the time of an iteration; None without iterations or cost."""
    iterations = facts.analysis.iterations
    if isinstance(iterations, NotMeasured) or not facts.counted or not price.steady:
        return None
    return min(price.steady // facts.counted, iterations.time_ns)


def _unprofiled_cost_per_iteration(facts: CaptureFacts, price: Price) -> int | None:
    """Return the mean cost in an iteration without the profiler, at most the time of an iteration then."""
    iterations, each = facts.analysis.iterations, _cost_per_iteration(facts, price)
    if isinstance(iterations, NotMeasured) or iterations.unprofiled is None or price.profiler is None or each is None:
        return None
    return min(each * (price.total - price.profiler) // max(price.total, 1), iterations.unprofiled.mean_ns)


def _prediction(facts: CaptureFacts, change: str) -> str:
    """Return a sentence that names the change of `traceview whatif`; "" without one or without iterations."""
    if not change or not facts.counted:
        return ""
    return f" `traceview whatif` predicts the gain, as its change `{change}`."


def texts_of_draft(rule: AnyRule, draft: FindingDraft, program: Program, price: Price) -> FindingTexts | None:
    """Return the texts of a draft at a price; None if its remedy does not apply to the program."""
    words = zip(PRICED, (duration(price.total), share(price.share, 1), f"{price.gaps:,}"), strict=True)
    return texts_for(entry_of(rule, draft.id), draft.case, program, {**draft.values, **dict(words)})


class PricedFinding(NamedTuple):
    """A finding with its title before the place of the host, and FindingDraft.same_everywhere."""

    finding: Finding
    title: str
    same_everywhere: bool


def join_devices(priced: Sequence[PricedFinding]) -> Iterator[Finding]:
    """Join findings that differ in the device and in figures alone, and cost at least ALIKE of the costliest one.

    The place may differ too if the remedy is the same everywhere.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for finding, title, same_everywhere in priced:
        place = finding.host and finding.host.stack and finding.host.stack[finding.host.own]
        base: tuple[object, ...] = (finding.id, FIGURE.sub("#", finding.title), place)
        if same_everywhere:
            base = (finding.id, FIGURE.sub("#", title))
        number = 0
        while not _joins(finding, groups.get((*base, number), ())):
            number += 1
        groups.setdefault((*base, number), []).append(finding)
    for first, *others in groups.values():
        yield replace(first, others=tuple(others))


def _joins(finding: Finding, group: Sequence[Finding]) -> bool:
    """Return whether a finding can join a group, whose first finding is the costliest."""
    if any(other.device == finding.device for other in group):
        return False
    return not group or decisive_cost(finding) >= ALIKE * decisive_cost(group[0])


def decisive_cost(finding: Finding) -> int:
    """Return the cost that findings are ordered by: without the profiler if that is known."""
    return finding.cost_ns if finding.unprofiled_cost_ns is None else finding.unprofiled_cost_ns


def stated_doubt(draft: FindingDraft, doubts: Sequence[Note]) -> str | None:
    """Return the first statement of a note that affects the finding or the time that it claims; None without one."""
    words = {draft.id, "findings"}
    for claim in draft.claims:
        if isinstance(claim, IdleClaim):
            words |= {"idle", *(f"idle.{cause}" for cause in claim.causes)}
        elif isinstance(claim, ComputeClaim):
            words.add("compute")
        else:
            words |= {COMMUNICATION if key == COMMUNICATION else "copies" for key in claim.keys}
    text = next((note.text for note in doubts if not words.isdisjoint(note.affects)), None)
    return None if text is None else re.split(r"[:;.] ", text, maxsplit=1)[0]
