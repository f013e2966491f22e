"""Turn drafts into findings: grant their claims in order, price them, attach evidence and sort them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import NamedTuple

from traceview import intervals
from traceview.intervals import BEFORE_ALL, Intervals
from traceview.model.findings import Finding
from traceview.model.trace import Note
from traceview.pricing.accounts import COMMUNICATION, MEMSET, exposed_work, own_compute
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft, Rule
from traceview.pricing.describe import Details, GrantSums, Price, describe, note_of_draft
from traceview.pricing.ledger import ComputeClaim, IdleClaim, Ledger
from traceview.pricing.packages import PackageRule
from traceview.units import SIZES, TIMES

RULE_THREADS = 2
NOT_COPIES = (COMMUNICATION, MEMSET)
ALIKE = 0.5  # share of the highest cost; a device with less has another problem, such as a slow rank
UNITS = "|".join(unit for _, unit in (*TIMES, *SIZES))
FIGURE = re.compile(rf"\d[\d.,]*(?: ?(?:{UNITS}|%)(?!\w))?")  # a number with its unit in a title


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
        yield draft, describe(facts, draft, draft.device.use.id, price, Details.from_grant(facts, draft, grant))
    elif draft.note_without_cost:  # the claimed time stays available for later rules
        yield note_of_draft(draft, price)


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
