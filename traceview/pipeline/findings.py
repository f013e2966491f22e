"""Findings of a capture: rules draft them, and the ledger grants each nanosecond once, in the order of the rules.

Also the accounts that the ledger of a device opens with, and the places of a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np

from traceview import intervals
from traceview.intervals import BEFORE_ALL, Intervals, Times, largest_positions
from traceview.measure.activity import COMPUTE, Activity, Copies
from traceview.measure.exposure import COMMUNICATION_WORK, MEMSET_WORK, members_by_kind
from traceview.measure.host import HostIdle
from traceview.measure.shared_work import measuring_threads
from traceview.measure.streams import StreamWork
from traceview.model.analysis import Analysis, DeviceUse
from traceview.model.findings import Finding, Place
from traceview.model.trace import Note, Trace, Window
from traceview.model.units import duration
from traceview.pipeline.measure import TraceWork
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture
from traceview.pricing.describe import (
    Details,
    IdleHost,
    Price,
    PricedFinding,
    affected_words,
    ask_for_host,
    decisive_cost,
    describe,
    granted_gaps,
    join_devices,
    stated_doubt,
    texts_of_draft,
    with_stall,
)
from traceview.pricing.ledger import Grant, Ledger
from traceview.pricing.packages import AnyRule, Failure, PackageRule, guarded
from traceview.pricing.texts import FindingTexts
from traceview.rules import all_rules

Findings: TypeAlias = tuple[tuple[Finding, ...], tuple[Note, ...]]
Rules: TypeAlias = Sequence[AnyRule]
Notes: TypeAlias = list[tuple[int, Note]]  # with the number of the rule
MAX_PLACES = 5


def capture_for_rules(work: TraceWork, analysis: Analysis) -> MeasuredCapture:
    """Return an analysis and its events as rules see them."""
    activities = {each.device: each for each in work.activities}
    devices = (_gpu_work(analysis, use, activities[use.device]) for use in analysis.devices)
    return MeasuredCapture(analysis, tuple(device for device in devices if device.window.length))


def _gpu_work(analysis: Analysis, use: DeviceUse, whole: Activity) -> GpuWork:
    """Return a GPU in the time that findings cover; `whole` is its work in its window."""
    trace, covered = analysis.trace, analysis.covered(use)
    work = whole.clip(covered.window)
    return GpuWork(trace, use if analysis.whole else steady_use(trace, use, work), covered.gaps, work)


def find(
    work: TraceWork, analysis: Analysis, priced: Callable[[], Analysis] | None = None, rules: Rules = ()
) -> Findings:
    """Return the findings of an analysis, the costliest first, and the notes of rules.

    `priced` returns the analysis with the profiler's share of idle time, which prices need and claims do not. `rules`
    are all rules by default. Where the capture lacks most calls, no rule runs.
    """
    capture, rules = capture_for_rules(work, analysis), () if analysis.info.trust.unrecorded else rules or all_rules()
    opened = partial(open_ledger, covers_run=analysis.covers_run, holes=analysis.holes)
    ledgers = {device.row: opened(device) for device in capture.devices}
    drafts, notes = _draft(capture, rules, ledgers)
    if priced is not None:
        analysis = priced()
    described, starts = [], set[str]()
    # A grant has an entry for each gap of its device, so only one is in memory at a time.
    for each in _grant_in_order(capture, analysis, rules, drafts, ledgers, notes):
        described.append((_described(analysis, each, work.host_idle), affected_words(each.draft)))
        if each.draft.of_run and each.draft.outside_ns:
            starts.add("start_up")
    # A note on the start of the run repeats what the finding on it says.
    others = (note for _, note in sorted(notes, key=lambda pair: pair[0]) if note.id not in starts)
    in_order = tuple(dict.fromkeys(others))
    doubts = [note for note in (*analysis.notes, *in_order) if note.affects]
    findings = [_with_doubt(finding, stated_doubt(words, doubts)) for finding, words in described]
    joined = join_devices(sorted(findings, key=lambda each: -decisive_cost(each.finding)))
    return tuple(with_stall(finding, analysis.iterations) for finding in joined), in_order


def _draft(
    capture: MeasuredCapture, rules: Rules, ledgers: Mapping[int, Ledger]
) -> tuple[list[tuple[int, FindingDraft]], Notes]:
    """Run all rules. Return the drafts in the order in which they claim, with the number of their rule, and notes."""

    def run(rule: AnyRule) -> list[FindingDraft | Note] | Failure:
        return guarded(rule, partial(_drafts_of_rule, capture, rule, ledgers))

    with measuring_threads(len(capture.trace.operations)) as pool:
        results = list(pool.map(run, rules))
    drafts, notes = list[tuple[int, FindingDraft]](), Notes()
    for number, result in enumerate(results):
        for each in [result.note] if isinstance(result, Failure) else result:
            if isinstance(each, Note):
                notes.append((number, each))
            else:
                drafts.append((number, each))
    return drafts, notes


def _drafts_of_rule(
    capture: MeasuredCapture, rule: AnyRule, ledgers: Mapping[int, Ledger]
) -> list[FindingDraft | Note]:
    """Return what a rule drafts. Claims of a package's rule on rows that do not exist raise an error."""
    drafts = [draft for device in capture.devices for draft in rule.find(capture, device)]
    for draft in drafts:
        if isinstance(rule, PackageRule) and isinstance(draft, FindingDraft):
            ledgers[draft.device.row].grant(draft.claims)
    return drafts


class GrantedDraft(NamedTuple):
    """A draft that costs enough: what it is granted, its price and its texts."""

    draft: FindingDraft
    grant: Grant
    price: Price
    texts: FindingTexts


def _grant_in_order(
    capture: MeasuredCapture,
    analysis: Analysis,
    rules: Rules,
    drafts: list[tuple[int, FindingDraft]],
    ledgers: Mapping[int, Ledger],
    notes: Notes,
) -> Iterator[GrantedDraft]:
    """Yield the drafts that cost enough and apply to the program; only these are granted what they claim.

    Empties `drafts`, whose claims are long.
    """
    uses = {use.device: use for use in analysis.devices}
    idle = _idle_devices(capture)
    while drafts:
        rule, draft = drafts.pop(0)
        if draft.device.row in idle and not draft.of_run:
            continue
        ledger = ledgers[draft.device.row]
        grant = ledger.grant(draft.claims, draft.at_most)
        price = Price.from_grant(analysis, uses[draft.device.row], draft, grant)
        enough = price.is_enough_for(draft)
        if not enough and not draft.note_without_cost:
            continue
        if draft.named_by is not None:
            values, case = draft.named_by(grant)
            draft = replace(draft, values=values, case=case)
        texts = texts_of_draft(rules[rule], draft, analysis, price)
        if texts is not None and enough:
            ledger.deduct(grant)
            yield GrantedDraft(draft, grant, price, texts)
        elif texts is not None:
            notes.append((rule, Note(draft.id, f"{texts['title']}. {texts['advice']}")))


def _idle_devices(capture: MeasuredCapture) -> frozenset[int]:
    """Return the devices without work in the counted iterations, if others have some: no iteration waits for them."""
    idle = frozenset(device.row for device in capture.devices if device.use.busy_ns == 0)
    return idle if capture.counted and len(idle) < len(capture.devices) else frozenset()


def _described(analysis: Analysis, granted: GrantedDraft, host_idle: HostIdle | None) -> PricedFinding:
    """Return a finding with its places, and what the host did there."""
    draft, grant, price, texts = granted
    places = () if draft.evidence else largest_places(analysis.trace, draft.device, grant, texts["place"])
    details = Details(places, _idle_host(host_idle, draft, grant), len(grant.computing) > 0)
    finding = describe(analysis, draft, texts, price, details)
    return PricedFinding(finding, draft.same_everywhere)


def _with_doubt(priced: PricedFinding, doubt: str | None) -> PricedFinding:
    return priced._replace(finding=replace(priced.finding, unsure_because=doubt))


def _idle_host(host_idle: HostIdle | None, draft: FindingDraft, grant: Grant) -> IdleHost | None:
    if host_idle is None or not grant.idle.any() or not ask_for_host(draft.claims):
        return None
    gaps, looked = granted_gaps(draft.device, grant)
    lines = host_idle.lines([gaps])
    return IdleHost(int(grant.idle.sum()), looked, lines, partial(host_idle.states, gaps))


def own_compute(work: Activity) -> Times:
    """Return the ns in which each operation computes while no earlier compute runs; the sum is the compute time."""
    return intervals.own_lengths(work.start, np.where(work.codes == COMPUTE, work.end, work.start))


def exposed_work(work: Activity, copies: Copies) -> dict[str, Intervals]:
    """Return when each kind of work runs while nothing computes, each ns once.

    If several kinds run at once, the ns belongs to the first of: communication, copies in the order of KINDS
    (h2d, d2h, ...) and MEMORIES, memset. The lengths add up to the device's busy time less its compute time.
    """
    exposed: dict[str, Intervals] = {}
    earlier = [work.compute]
    for key, members in members_by_kind(work, copies).items():
        times = intervals.union(work.start[members], work.end[members], ordered=True)
        exposed[key] = times
        for other in earlier:
            exposed[key] = intervals.subtract(exposed[key], other)
        earlier.append(times)
    return exposed


def open_ledger(device: GpuWork, *, covers_run: bool, holes: Sequence[Window] = ()) -> Ledger:
    """Open the accounts of the time that a device lost.

    In iterations, time after the end of its work is not lost. In `holes` the capture lacks GPU work. Exposed time
    there is not lost, and a gap that overlaps a hole is not lost.
    """
    exposed = exposed_work(device.activity, device.copies)
    ends = (None, None) if covers_run else _ends_of_work(device, exposed)
    ledger = Ledger.from_gaps(device.gaps, exposed, own_compute(device.activity), *ends)
    if holes:
        times = Intervals(*(np.array([getattr(hole, edge) for hole in holes], np.int64) for edge in ("start", "end")))
        start, end = (device.gaps.frame[edge].to_numpy() for edge in ("start", "end"))
        unknown = intervals.covered_length(times, start, end) > 0
        for account in ledger.idle.values():
            account[unknown] = 0
        ledger.exposed = {key: intervals.subtract(work, times) for key, work in ledger.exposed.items()}
    return ledger


def _ends_of_work(device: GpuWork, exposed: Mapping[str, Intervals]) -> tuple[int | None, int | None]:
    """Return until when exposed work and idle time of a device count as lost.

    They count to the end if it runs neither kernels nor copies that nothing hides. Migrations of managed memory and
    memsets are not the program's work. Work counts until the last kernel; if such copies take longer than compute,
    until the last copy or kernel. Idle time counts until both, because the host keeps a copy of results waiting.
    """
    work = device.activity
    copying = [
        times
        for key, times in exposed.items()
        if key not in (COMMUNICATION_WORK, MEMSET_WORK) and not key.startswith("um_")
    ]
    kernel, copy = (
        max((int(times.end[-1]) for times in unions if len(times.end)), default=BEFORE_ALL)
        for unions in ((work.compute, work.communication), copying)
    )
    is_copying = sum(map(intervals.length, copying)) > intervals.length(work.compute)
    last = max(kernel, copy) if is_copying else kernel
    return (None, None) if last == BEFORE_ALL else (last, max(kernel, copy))


def steady_use(trace: Trace, use: DeviceUse, work: Activity) -> DeviceUse:
    """Return a device's figures in its steady part, in which `work` is its work, with its streams there.

    Gaps of streams are measured for the window alone, so they are 0.
    """
    steady = use.steady
    if steady.window == use.window:
        return use
    figures = StreamWork.of_device(trace, work).figures(trace)
    streams = [
        replace(row, **{**figures[row.stream], "bytes": row.bytes}, gap_count=0, gap_ns=0)
        for row in use.streams
        if row.stream in figures
    ]
    tables = {**use.tables, **steady.tables, "streams": use.tables["streams"].with_rows(tuple(streams))}
    return replace(use, **(steady.figures() | {"tables": tables}))


def largest_places(trace: Trace, device: GpuWork, grant: Grant, label: str) -> tuple[Place, ...]:
    """Return the MAX_PLACES places with the most granted time, largest first; equal ones in the order of time.

    `label` is what happened there.
    """
    idle = ((grant.gap_row(at), int(grant.idle[at])) for at in largest_positions(grant.idle, MAX_PLACES))
    places = [_idle_place(trace, device, row, cost, label) for row, cost in idle]
    for at in largest_positions(grant.exposed.end - grant.exposed.start, MAX_PLACES):
        places.append(_exposed_place(trace, device, int(grant.exposed.start[at]), int(grant.exposed.end[at]), label))
    for at in largest_positions(grant.compute, MAX_PLACES):
        places.append(_compute_place(trace, device, int(grant.computing[at]), int(grant.compute[at]), label))
    return tuple(sorted(places, key=lambda place: (-(place.cost_ns or 0), place.start_ns))[:MAX_PLACES])


def _idle_place(trace: Trace, device: GpuWork, row: int, cost: int, label: str) -> Place:
    operation, thread = int(device.gap_operation[row]), int(device.gap_thread[row])
    start, end = int(device.gap_start[row]), int(device.gap_end[row])
    share = "" if cost >= end - start else f", of which {duration(cost)}"
    following = "" if operation < 0 else f"; next operation: {trace.operations['name'][operation]}"
    text = f"GPU idle for {duration(end - start)}{share}: {label}{following}"
    stream = None if operation < 0 else int(trace.operations["stream"][operation])
    return Place(text, start, end, device.id, stream, None if thread < 0 else thread, cost)


def _compute_place(trace: Trace, device: GpuWork, position: int, cost: int, label: str) -> Place:
    start, end = int(device.activity.start[position]), int(device.activity.end[position])
    name, stream, thread = _operation_at(trace, device, position)
    return Place(f"{name}: {duration(end - start)}, {label}", start, end, device.id, stream, thread, cost)


def _exposed_place(trace: Trace, device: GpuWork, start: int, end: int, label: str) -> Place:
    work, text = device.activity, f"{duration(end - start)} without compute: {label}"
    begun = int(np.searchsorted(work.start, start, side="right"))
    running = np.flatnonzero((work.end[:begun] > start) & (work.codes[:begun] != COMPUTE))
    if len(running) == 0:
        return Place(text, start, end, device.id, cost_ns=end - start)
    # The same order as in the ledger: communication, copy, memset.
    name, stream, thread = _operation_at(trace, device, int(running[np.argmin(work.codes[running])]))
    return Place(f"{name}: {text}", start, end, device.id, stream, thread, end - start)


def _operation_at(trace: Trace, device: GpuWork, position: int) -> tuple[str, int, int | None]:
    """Return the name, the stream and the launching thread of an operation by its index in the device's activity."""
    operation = trace.operations.row(int(device.activity.rows[position]), named=True)
    launch = operation["launch"]
    return operation["name"], operation["stream"], None if launch is None else int(trace.api["thread"][launch])
