"""Findings of a capture: rules draft them, and the ledger grants each nanosecond once, in the order of the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeAlias

from traceview.engine.measure import TraceWork
from traceview.measure.activity import Activity
from traceview.measure.host import HostIdle
from traceview.measure.shared_work import measuring_threads
from traceview.model.analysis import Analysis, DeviceUse
from traceview.model.findings import Finding
from traceview.model.trace import Note
from traceview.pricing.accounts import open_ledger, steady_use
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
from traceview.pricing.places import largest_places
from traceview.pricing.texts import FindingTexts
from traceview.rules import all_rules

Findings: TypeAlias = tuple[tuple[Finding, ...], tuple[Note, ...]]
Rules: TypeAlias = Sequence[AnyRule]
Notes: TypeAlias = list[tuple[int, Note]]  # with the number of the rule


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
    are all rules by default.
    """
    capture, rules = capture_for_rules(work, analysis), rules or all_rules()
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
            starts.add(each.draft.id)
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
    while drafts:
        rule, draft = drafts.pop(0)
        ledger = ledgers[draft.device.row]
        grant = ledger.grant(draft.claims, draft.at_most)
        price = Price.from_grant(analysis, uses[draft.device.row], draft, grant)
        enough = price.is_enough_for(draft)
        if not enough and not draft.note_without_cost:
            continue
        texts = texts_of_draft(rules[rule], draft, analysis, price)
        if texts is not None and enough:
            ledger.deduct(grant)
            yield GrantedDraft(draft, grant, price, texts)
        elif texts is not None:
            notes.append((rule, Note(draft.id, f"{texts['title']}. {texts['advice']}")))


def _described(analysis: Analysis, granted: GrantedDraft, host_idle: HostIdle | None) -> PricedFinding:
    """Return a finding with its places, and what the host did there."""
    draft, grant, price, texts = granted
    places = () if draft.evidence else largest_places(analysis.trace, draft.device, grant, texts["place"])
    details = Details(places, _idle_host(host_idle, draft, grant), len(grant.computing) > 0)
    finding = describe(analysis, draft, texts, price, details)
    return PricedFinding(finding, texts["title"], draft.same_everywhere)


def _with_doubt(priced: PricedFinding, doubt: str | None) -> PricedFinding:
    return priced._replace(finding=replace(priced.finding, unsure_because=doubt))


def _idle_host(host_idle: HostIdle | None, draft: FindingDraft, grant: Grant) -> IdleHost | None:
    if host_idle is None or not grant.idle.any() or not ask_for_host(draft.claims):
        return None
    gaps, looked = granted_gaps(draft.device, grant)
    lines = host_idle.lines([gaps])
    return IdleHost(int(grant.idle.sum()), looked, lines, partial(host_idle.states, gaps))
