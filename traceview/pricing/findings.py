"""Turn drafts into findings: grant their claims in order, price them, attach evidence and sort them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from traceview import intervals
from traceview.frozen import frozen
from traceview.intervals import BEFORE_ALL, Intervals
from traceview.model.analysis import NotMeasured
from traceview.model.devices import DeviceUse, Gaps
from traceview.model.findings import Finding
from traceview.model.trace import Note
from traceview.pricing.accounts import COMMUNICATION, MEMSET, exposed_work, own_compute
from traceview.pricing.base import MIN_SHARE, CaptureFacts, DeviceFacts, FindingDraft, Rule, severity_from_share
from traceview.pricing.evidence import largest_places
from traceview.pricing.host_places import FindingPlace, find_place
from traceview.pricing.ledger import ComputeClaim, Grant, IdleClaim, Ledger
from traceview.pricing.packages import PackageRule
from traceview.units import SIZES, TIMES, duration, share

RULE_THREADS = 2
NOT_COPIES = (COMMUNICATION, MEMSET)
ALIKE = 0.5  # share of the highest cost; a device with less has another problem, such as a slow rank
UNITS = "|".join(unit for _, unit in (*TIMES, *SIZES))
FIGURE = re.compile(rf"\d[\d.,]*(?: ?(?:{UNITS}|%)(?!\w))?")  # a number with its unit in a title
FIND = {  # the remedy in one line where the place is unknown, by whether the program is in Python
    True: "Find the line first: `traceview record --python`, or NVTX ranges.",
    False: "Find the code first: add NVTX ranges, or sample its stacks.",
}
TO_FIND = re.compile(r"(?:: [^.]*)?\. Add NVTX ranges or sample the process \(.*?\) to find it\. Then move")


def build_findings(facts: CaptureFacts, rules: Sequence[Rule]) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    """Run the rules and grant their claims in order; return findings, the costliest first, and notes."""
    # The drafts depend on the facts alone, so rules run in parallel. Only granting has an order.
    with ThreadPoolExecutor(RULE_THREADS) as pool:
        drafts_by_rule = pool.map(lambda rule: list(rule(facts)), rules)
        ledgers = {device.use.device: _ledger(device) for device in facts.devices}
        priced = [
            result
            for rule, drafts in zip(rules, drafts_by_rule, strict=True)
            for result in _price_drafts(facts, rule, drafts, ledgers)
        ]
    notes = tuple(result for result in priced if isinstance(result, Note))
    doubts = [note for note in (*facts.analysis.notes, *notes) if note.affects]
    pairs = [result for result in priced if not isinstance(result, Note)]
    doubted = [(draft, replace(finding, unsure_because=stated_doubt(draft, doubts))) for draft, finding in pairs]
    return tuple(join_devices(sorted(doubted, key=lambda pair: -decisive_cost(pair[1])))), notes


def join_devices(pairs: Sequence[tuple[FindingDraft, Finding]]) -> Iterator[Finding]:
    """Join findings that differ in the device and in figures alone, and cost at least ALIKE of the costliest one.

    The place may differ too if the remedy is the same everywhere.
    """
    groups: dict[tuple[object, ...], list[Finding]] = {}
    for draft, finding in pairs:
        place = finding.host and finding.host.stack and finding.host.stack[finding.host.own]
        base: tuple[object, ...] = (finding.id, FIGURE.sub("#", finding.title), place)
        if draft.same_everywhere:
            base = (finding.id, FIGURE.sub("#", draft.title))
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


def _ledger(device: DeviceFacts) -> Ledger:
    work = exposed_work(device.activity, device.copies)
    return open_ledger(device, work, end_of_work([work_ends(device, work)]))


class EndOfWork(NamedTuple):
    """Until when exposed work and idle time of a device count as lost."""

    exposed: int
    idle: int


def open_ledger(device: DeviceFacts, exposed: Mapping[str, Intervals], until: EndOfWork | None) -> Ledger:
    """Open the accounts of the time that a device lost. Time after the end of its work is not lost."""
    ends = until or (None, None)
    return Ledger.from_gaps(device.use.gaps, exposed, own_compute(device.activity), *ends)


class WorkEnds(NamedTuple):
    """The last end of kernels and of copies that nothing hides, and the ns of such copies and of compute."""

    kernel: int
    copy: int
    copying_ns: int
    compute_ns: int


def work_ends(device: DeviceFacts, exposed: Mapping[str, Intervals]) -> WorkEnds:
    """Return the ends of a device's work. Migrations of managed memory and memsets are not the program's work."""
    work = device.activity
    copying = [times for key, times in exposed.items() if key not in NOT_COPIES and not key.startswith("um_")]
    kernels, copies = (
        max((int(times.end[-1]) for times in unions if len(times.end)), default=BEFORE_ALL)
        for unions in ((work.compute, work.communication), copying)
    )
    return WorkEnds(kernels, copies, sum(map(intervals.length, copying)), intervals.length(work.compute))


def end_of_work(parts: Sequence[WorkEnds]) -> EndOfWork | None:
    """Return until when time counts as lost; None if the device runs neither kernels nor such copies.

    `parts` are those of one device in each slice of a capture. Work counts until the last kernel; if copies take longer
    than compute, until the last copy or kernel. Idle time counts until both, because the host keeps a copy of results
    waiting.
    """
    is_copying = sum(part.copying_ns for part in parts) > sum(part.compute_ns for part in parts)
    kernel, copy = (max((part[column] for part in parts), default=BEFORE_ALL) for column in range(2))
    last = max(kernel, copy) if is_copying else kernel
    return None if last == BEFORE_ALL else EndOfWork(last, max(kernel, copy))


def _price_drafts(
    facts: CaptureFacts, rule: Rule, drafts: Sequence[FindingDraft | Note], ledgers: dict[int, Ledger]
) -> Iterator[tuple[FindingDraft, Finding] | Note]:
    """Yield the findings and notes of a rule. A draft of another package can have claims that do not fit the device."""
    try:
        for draft in drafts:
            yield from _price_draft(facts, draft, ledgers)
    except BaseException as error:
        if not isinstance(rule, PackageRule):
            raise
        yield rule.failure(error)


def _price_draft(
    facts: CaptureFacts, draft: FindingDraft | Note, ledgers: dict[int, Ledger]
) -> Iterator[tuple[FindingDraft, Finding] | Note]:
    if isinstance(draft, Note):
        yield draft
        return
    ledger = ledgers[draft.device.use.device]
    grant = ledger.grant(draft.claims, draft.at_most)
    steady = grant.total_inside(draft.device.steady_gaps, draft.device.steady)
    price = Price.from_sums(draft.device.use, GrantSums(grant.total, grant.gaps, steady, grant.causes))
    if price.is_enough_for(draft):
        ledger.deduct(grant)
        yield draft, describe(facts, draft, grant, price)
    elif draft.note_without_cost:  # the claimed time stays available for later rules
        yield Note(draft.id, f"{fill_in(draft.title, price)}. {fill_in(draft.advice, price)}")


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


class GrantSums(NamedTuple):
    """The sums of a grant: its ns, the gaps that it comes from, the ns in the steady part, and idle ns by cause.

    `causes` has a pair for each cause of each idle claim. The sums of the slices of a capture add up.
    """

    total: int
    gaps: int
    steady: int
    causes: tuple[tuple[str, int], ...]


@frozen
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


def describe(facts: CaptureFacts, draft: FindingDraft, grant: Grant, price: Price) -> Finding:
    """Return the finding of a draft that costs enough; `grant` shows its places."""
    place = find_place(facts.analysis, draft, grant)
    # Code that helps to find an unknown place is left out if the place is known.
    code = "" if place.where and TO_FIND.search(draft.advice) else draft.code
    return Finding(
        id=draft.id,
        severity=severity_from_share(price.unprofiled_share),
        title=fill_in(draft.title, price) + place.where,
        evidence=draft.evidence or largest_places(facts, draft.device, grant, draft.place_label),
        cost_ns=price.total,
        advice=place.advice + fill_in(_known_place(draft.advice, place), price) + _prediction(facts, draft),
        code=code,
        device=draft.device.use.id,
        cost_fraction=price.share,
        cost_per_iteration_ns=_cost_per_iteration(facts, price),
        unprofiled_cost_ns=None if price.profiler is None else price.total - price.profiler,
        unprofiled_cost_per_iteration_ns=_unprofiled_cost_per_iteration(facts, price),
        unprofiled_cost_fraction=None if price.profiler is None else price.unprofiled_share,
        claims="compute" if len(grant.computing) else "waiting",
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
