"""Findings of a capture: rules draft them, and the ledger grants each nanosecond once, in the order of the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from traceview.engine.measure import TraceWork
from traceview.measure.activity import Activity
from traceview.measure.host import HostIdle
from traceview.measure.nvtx import Nesting, annotating_threads
from traceview.measure.overlap import Copies
from traceview.measure.shared_work import measuring_threads
from traceview.model.analysis import Analysis, DeviceFigures, DeviceUse, NotMeasured
from traceview.model.findings import Finding
from traceview.model.trace import EVERYTHING, Note, Trace
from traceview.pricing.accounts import end_of_work, exposed_work, open_ledger, steady_use
from traceview.pricing.base import CaptureFacts, CapturePart, Covered, DeviceFacts, DevicePart, FindingDraft
from traceview.pricing.claims import STEADY, Collected, Group, resolve
from traceview.pricing.describe import (
    Details,
    GrantSums,
    IdleHost,
    Price,
    PricedFinding,
    ask_for_host,
    decisive_cost,
    describe,
    granted_gaps,
    join_devices,
    stated_doubt,
    texts_of_draft,
    with_stall,
)
from traceview.pricing.ledger import Claim, Grant, Ledger
from traceview.pricing.packages import AnyRule, Failure, PackageRule, UnfitRuleError, guarded
from traceview.pricing.places import largest_places
from traceview.pricing.speedups import KernelSequence
from traceview.pricing.texts import FindingTexts
from traceview.rules import all_rules

Findings: TypeAlias = tuple[tuple[Finding, ...], tuple[Note, ...]]
Rules: TypeAlias = Sequence[AnyRule]


def covered_times(analysis: Analysis) -> Covered:
    """Return what findings of an analysis cover: the steady parts of devices, or their windows."""
    times = {use.device: (use.window, use.steady.window) for use in analysis.devices}
    iterations = analysis.iterations
    counted = None if isinstance(iterations, NotMeasured) else iterations.count - iterations.skipped
    return Covered.from_times(times, counted, analysis.run, whole=analysis.whole)


def rows_for_rules(work: TraceWork, analysis: Analysis) -> CapturePart:
    """Return the rows of a capture that rules read."""
    covered, trace = covered_times(analysis), work.trace
    activities = {each.device: each for each in work.activities}
    return CapturePart(
        trace=trace,
        host=analysis.host,
        devices=tuple(
            _device_rows(trace, use, activities[use.device].clip(covered.covered[use.device]), analysis.part(use))
            for use in analysis.devices
            if use.device in covered.covered
        ),
        covered=covered,
        annotating=annotating_threads(trace),
        nesting=cache(partial(_build_nesting, trace)),
    )


def _device_rows(trace: Trace, use: DeviceUse, work: Activity, part: DeviceFigures) -> DevicePart:
    frame, steady, row = part.gaps.frame, use.steady.window, trace.devices.row(use.device, named=True)
    start = frame["start"].to_numpy()
    return DevicePart(
        row=use.device,
        id=row["id"],
        process_ids=tuple(row["processes"]),
        window=work.window,
        gaps=part.gaps,
        activity=work,
        copies=Copies.from_activity(trace, work),
        steady=steady,
        gap_start=start,
        gap_end=frame["end"].to_numpy(),
        gap_operation=frame["operation"].fill_null(-1).to_numpy(),
        gap_thread=frame["thread"].fill_null(-1).to_numpy(),
        steady_gaps=slice(*np.searchsorted(start, (steady.start, steady.end)).tolist()),
        collect_kernels=partial(KernelSequence.from_rows, trace, use.device),
    )


def _build_nesting(trace: Trace) -> Nesting:
    start, end, thread = (trace.ranges[name].to_numpy() for name in ("start", "end", "thread"))
    times = [frame[name].to_numpy() for frame in (trace.api, trace.operations) for name in ("start", "end")]
    edges = [edge for column in times if len(column) for edge in (column.min(), column.max())]
    if trace.window is not None:
        edges += [trace.window.start, trace.window.end]
    return Nesting.build(start, end, thread, np.array(edges, np.int64))


def facts_of(analysis: Analysis, rows: CapturePart) -> CaptureFacts:
    """Return the figures that decide, with those of devices in the time that findings cover."""
    uses = {use.device: use for use in analysis.devices}
    covered = (
        uses[device.row] if analysis.whole else steady_use(rows.trace, uses[device.row], device.activity)
        for device in rows.devices
    )
    window, start = rows.trace.window or EVERYTHING, rows.trace.operations["start"].to_numpy()
    first, stop = np.searchsorted(start, (window.start, window.end)).tolist()
    sizes = {"operations": stop - first, "calls": len(rows.trace.api)}
    devices = tuple(DeviceFacts(use, use.steady.window) for use in covered)
    return CaptureFacts(analysis, devices, rows.covered.counted, sizes)


def find(
    work: TraceWork, analysis: Analysis, priced: Callable[[], Analysis] | None = None, rules: Rules = ()
) -> Findings:
    """Return the findings of an analysis, the costliest first, and the notes of rules.

    `priced` returns the analysis with the profiler's part of idle time, which prices need and claims do not. `rules`
    are all rules by default.
    """
    rows, rules = rows_for_rules(work, analysis), rules or all_rules()
    facts = facts_of(analysis, rows)
    drafts, notes = _draft(rows, facts, rules)
    ledgers = {device.row: _open(device, covers_run=analysis.covers_run) for device in rows.devices}
    claims = _resolve(rows, rules, drafts, ledgers, notes)
    if priced is not None:
        facts = facts_of(priced(), rows)
    granted = list(_grant_in_order(rows, facts, rules, claims, ledgers, notes))
    in_order = tuple(dict.fromkeys(note for _, note in sorted(notes, key=lambda pair: pair[0])))
    doubts = [note for note in (*facts.analysis.notes, *in_order) if note.affects]
    findings = [_described(rows, facts, each, doubts, work.host_idle) for each in granted]
    joined = join_devices(sorted(findings, key=lambda each: -decisive_cost(each.finding)))
    return tuple(with_stall(finding, facts.analysis.iterations) for finding in joined), in_order


class RuleDraft(NamedTuple):
    """A draft, the number of its rule, and the groups that its claims name."""

    rule: int
    draft: FindingDraft
    groups: Mapping[str, Group]


Notes: TypeAlias = list[tuple[int, Note]]  # with the number of the rule


def _draft(rows: CapturePart, facts: CaptureFacts, rules: Rules) -> tuple[list[RuleDraft], Notes]:
    """Run all rules. Return the drafts in the order in which they claim, and notes."""
    jobs = [(rule, device) for rule in rules for device in rows.devices]

    def collect(job: tuple[AnyRule, DevicePart]) -> Collected[Any] | Failure:
        rule, device = job
        return guarded(rule, partial(rule.collect, rows, device))

    with measuring_threads(len(rows.trace.operations)) as pool:
        results = iter(list(pool.map(collect, jobs)))
    drafts, notes = list[RuleDraft](), Notes()
    for number, rule in enumerate(rules):
        collected = {device.row: next(results) for device in rows.devices}
        failure = next((each for each in collected.values() if isinstance(each, Failure)), None)
        if failure is None:
            known = {row: each for row, each in collected.items() if not isinstance(each, Failure)}
            result = guarded(rule, partial(_decide, rule, facts, known))
            if not isinstance(result, Failure):
                notes += [(number, draft) for draft in result if isinstance(draft, Note)]
                findings = [draft for draft in result if isinstance(draft, FindingDraft)]
                drafts += [RuleDraft(number, draft, known[draft.device.row].groups) for draft in findings]
                continue
            failure = result
        notes.append((number, failure.note))
    return drafts, notes


def _decide(rule: AnyRule, facts: CaptureFacts, collected: Mapping[int, Collected[Any]]) -> list[FindingDraft | Note]:
    """Return what a rule drafts. Raises UnfitRuleError for a claim on a group that it did not collect."""
    drafts = list(rule.decide(facts, {row: each.sums for row, each in collected.items()}))
    groups = {STEADY, None}.union(*(each.groups for each in collected.values()))
    named = {claim.group for draft in drafts if isinstance(draft, FindingDraft) for claim in draft.claims}
    if unknown := sorted(str(name) for name in named - groups):
        raise UnfitRuleError(f"it claims the group {unknown[0]!r}, which collect does not return")
    return drafts


def _open(device: DevicePart, *, covers_run: bool) -> Ledger:
    """Open the accounts of a device."""
    exposed = exposed_work(device.activity, device.copies)
    return open_ledger(device, exposed, None if covers_run else end_of_work(device, exposed))


class ResolvedDraft(NamedTuple):
    """A draft with its claims on the ledger of its device, and the number of its rule."""

    rule: int
    draft: FindingDraft
    claims: tuple[Claim, ...]


def _resolve(
    rows: CapturePart, rules: Rules, drafts: Sequence[RuleDraft], ledgers: Mapping[int, Ledger], notes: Notes
) -> list[ResolvedDraft]:
    """Return the drafts with their claims. A rule whose claims do not fit becomes a note."""
    steady = {device.row: device.steady_gaps for device in rows.devices}
    resolved, failed = list[ResolvedDraft](), set[int]()

    def claims_of(each: RuleDraft) -> tuple[Claim, ...]:
        device = each.draft.device.row
        claims = tuple(resolve(claim, each.groups, steady[device]) for claim in each.draft.claims)
        if isinstance(rules[each.rule], PackageRule):
            ledgers[device].grant(claims)  # raises an error if rows do not exist
        return claims

    for each in drafts:
        claims = guarded(rules[each.rule], partial(claims_of, each))
        if isinstance(claims, Failure):
            notes.append((each.rule, claims.note))
            failed.add(each.rule)
        else:
            resolved.append(ResolvedDraft(each.rule, each.draft, claims))
    return [each for each in resolved if each.rule not in failed]


class GrantedDraft(NamedTuple):
    """A draft that costs enough: what it is granted, its price and its texts."""

    draft: FindingDraft
    grant: Grant
    price: Price
    texts: FindingTexts


def _grant_in_order(
    rows: CapturePart,
    facts: CaptureFacts,
    rules: Rules,
    drafts: Sequence[ResolvedDraft],
    ledgers: Mapping[int, Ledger],
    notes: Notes,
) -> Iterator[GrantedDraft]:
    """Yield the drafts that cost enough and apply to the program; only these are granted what they claim."""
    devices = {device.row: device for device in rows.devices}
    uses = {device.row: device.use for device in facts.devices}
    for rule, draft, claims in drafts:
        ledger, device = ledgers[draft.device.row], devices[draft.device.row]
        grant = ledger.grant(claims, draft.at_most)
        inside = grant.total_inside(device.steady_gaps, device.steady)
        sums = GrantSums(grant.total, grant.gaps, inside, grant.causes)
        price = Price.from_sums(facts.analysis, uses[device.row], draft, sums)
        enough = price.is_enough_for(draft)
        if not enough and not draft.note_without_cost:
            continue
        texts = texts_of_draft(rules[rule], draft, rows.trace, price)
        if texts is not None and enough:
            ledger.deduct(grant)
            yield GrantedDraft(draft, grant, price, texts)
        elif texts is not None:
            notes.append((rule, Note(draft.id, f"{texts['title']}. {texts['advice']}")))


def _described(
    rows: CapturePart, facts: CaptureFacts, granted: GrantedDraft, doubts: Sequence[Note], host_idle: HostIdle | None
) -> PricedFinding:
    """Return a finding with its places, what the host did there, and what makes it unsure."""
    draft, grant, price, texts = granted
    device = next(each for each in rows.devices if each.row == draft.device.row)
    places = () if draft.evidence else largest_places(rows.trace, device, grant, texts["place"])
    details = Details(places, _idle_host(host_idle, device, draft, grant), len(grant.computing) > 0)
    finding = replace(describe(facts, draft, texts, price, details), unsure_because=stated_doubt(draft, doubts))
    return PricedFinding(finding, texts["title"], draft.same_everywhere)


def _idle_host(host_idle: HostIdle | None, device: DevicePart, draft: FindingDraft, grant: Grant) -> IdleHost | None:
    if host_idle is None or not grant.idle.any() or not ask_for_host(draft.claims):
        return None
    gaps, looked = granted_gaps(device, grant)
    lines = host_idle.lines_of_sums(host_idle.line_sums([gaps]))
    return IdleHost(int(grant.idle.sum()), looked, lines, partial(host_idle.states, gaps))
