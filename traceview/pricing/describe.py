"""The finding of a draft that costs enough: its price, texts and places."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from traceview.model.analysis import NotMeasured
from traceview.model.devices import DeviceUse, Gaps
from traceview.model.findings import Finding, Place
from traceview.model.trace import Note
from traceview.pricing.base import MIN_SHARE, CaptureFacts, FindingDraft, severity_from_share
from traceview.pricing.host_places import FindingPlace, IdleHost, name_place
from traceview.units import duration, share

FIND = {  # the remedy in one line where the place is unknown, by whether the program is in Python
    True: "Find the line first: `traceview record --python`, or NVTX ranges.",
    False: "Find the code first: add NVTX ranges, or sample its stacks.",
}
TO_FIND = re.compile(r"(?:: [^.:]*)?\. Add NVTX ranges or sample the process \(.*?\) to find it\. Then move")


class GrantSums(NamedTuple):
    """The sums of a grant: its ns, the gaps that it comes from, the ns in the steady part, and idle ns by cause.

    `causes` has a pair for each cause of each idle claim. The sums of the slices of a capture add up.
    """

    total: int
    gaps: int
    steady: int
    causes: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Price:
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


def describe(facts: CaptureFacts, draft: FindingDraft, device: str, price: Price, details: Details) -> Finding:
    """Return the finding of a draft that costs enough; `device` is the id of its device."""
    place = name_place(facts.analysis.trace.evidence, draft, details.host)
    # Code that helps to find an unknown place is left out if the place is known.
    code = "" if place.where and TO_FIND.search(draft.advice) else draft.code
    return Finding(
        id=draft.id,
        severity=severity_from_share(price.unprofiled_share),
        title=fill_in(draft.title, price) + place.where,
        evidence=draft.evidence or details.places,
        cost_ns=price.total,
        advice=place.advice + fill_in(_known_place(draft.advice, place), price) + _prediction(facts, draft),
        code=code,
        device=device,
        cost_fraction=price.share,
        cost_per_iteration_ns=_cost_per_iteration(facts, price),
        unprofiled_cost_ns=None if price.profiler is None else price.total - price.profiler,
        unprofiled_cost_per_iteration_ns=_unprofiled_cost_per_iteration(facts, price),
        unprofiled_cost_fraction=None if price.profiler is None else price.unprofiled_share,
        claims="compute" if details.computes else "waiting",
        host=place.place,
        change=draft.change if facts.counted else "",
        remedy=place.remedy
        or draft.remedy
        or ("" if place.where or not TO_FIND.search(draft.advice) else FIND[facts.program.python]),
    )


def _known_place(advice: str, place: FindingPlace) -> str:
    """Return advice without guesses at the place and the words on how to find it, if it is known."""
    return TO_FIND.sub(". Move", advice) if place.where else advice


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


def _prediction(facts: CaptureFacts, draft: FindingDraft) -> str:
    """Return a sentence that names the change of `traceview whatif`; "" without one or without iterations."""
    if not draft.change or not facts.counted:
        return ""
    return f" `traceview whatif` predicts the gain, as its change `{draft.change}`."


def fill_in(text: str, price: Price) -> str:
    """Return a text of a draft with its price."""
    # str.replace instead of str.format: names of kernels and ranges may contain braces.
    filled = text.replace("{cost}", duration(price.total)).replace("{share}", share(price.share, 1))
    return filled.replace("{gaps}", f"{price.gaps:,}")


def note_of_draft(draft: FindingDraft, price: Price) -> Note:
    """Return the note of a draft that costs too little to be a finding."""
    return Note(draft.id, f"{fill_in(draft.title, price)}. {fill_in(draft.advice, price)}")
