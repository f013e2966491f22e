"""What rules claim in a slice of a capture, and the places of findings in it."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from traceview.frozen import frozen
from traceview.intervals import Times
from traceview.model.trace import Note, Window
from traceview.pricing.base import DeviceFacts, FindingDraft
from traceview.pricing.findings import WorkEnds, end_of_work, open_ledger, work_ends
from traceview.pricing.ledger import Claim, IdleClaim, Ledger
from traceview.pricing.part import reach_into, steady_stream, steady_use, stream_figures
from traceview.pricing.sums import Counts
from traceview.rules import all_rules
from traceview.rules.idle_stream import EVENTS_WITHOUT_WORK, events_without_work
from traceview.slices.facts import OwnPart, RuleRows, SliceContext, SliceRuleSums, slice_facts
from traceview.slices.iterations import own_operations
from traceview.slices.ledgers import CompactLedger, compact_ledger
from traceview.slices.merge import sum_mappings
from traceview.slices.slice import Slice

Key = tuple[int, int, str, str]  # number of the rule, device, FindingDraft.id and .key


class Decision(NamedTuple):
    """A draft that is granted its claims, or `ns` of them in this slice."""

    key: Key
    ns: int | None = None


class SliceRules:
    """The drafts of rules in one slice, and the ledgers of its devices.

    `numbers` chooses rules by their place in all_rules(); None chooses all. Only these rules run. The drafts of the
    other rules are those that an earlier pass left with `pass_on`.
    """

    def __init__(self, part: Slice, context: SliceContext, numbers: Container[int] | None = None) -> None:
        self.part, self.context = part, context
        self.rows = part.once("rule rows", lambda: RuleRows.build(part, context), context.windows)
        self.parts = self.rows.parts
        self.totals = {row: SliceRuleSums.of_device(context, row) for row in self.parts}
        self.facts = slice_facts(self.rows, context, self.totals)
        self.drafts: dict[Key, FindingDraft] = {}
        self.notes: list[tuple[int, Note]] = []
        known = None if numbers is None else part.passed.get("drafts")
        if known is not None and known[0] == context.windows:
            devices = {device.use.device: device for device in self.facts.devices}
            self.drafts = {key: replace(draft, device=devices[key[1]]) for key, draft in known[1].items()}
            self.notes = known[2]
        else:
            numbers = None
        for number, rule in enumerate(all_rules()):
            for draft in rule(self.facts) if numbers is None or number in numbers else ():
                if not isinstance(draft, Note):
                    self.drafts[number, draft.device.use.device, draft.id, draft.key] = draft
                elif numbers is None:
                    self.notes.append((number, draft))

    def pass_on(self) -> None:
        """Leave the drafts for a later pass."""
        drafts = {key: replace(draft, device=None) for key, draft in self.drafts.items()}  # type: ignore[arg-type]
        self.part.passed["drafts"] = self.context.windows, drafts, self.notes

    @cached_property
    def ledgers(self) -> dict[int, Ledger]:
        """The ledgers of devices, from which claims are granted."""
        return {
            device.use.device: open_ledger(
                device, self.rows.exposed[device.use.device], self.context.until.get(device.use.device)
            )
            for device in self.facts.devices
        }


@frozen
class SliceSums:
    """The sums of a slice: those of rules, the ends of its work and the figures of its streams, by device, and sizes.

    `streams` has the result of stream_figures for each stream in the part that findings cover.
    """

    totals: dict[int, dict[str, Any]]
    ends: dict[int, WorkEnds]
    streams: dict[int, dict[int, Times]]
    sizes: dict[str, int]


def collect_sums(part: Slice, context: SliceContext) -> SliceSums:
    """Return the sums of a slice."""
    rules, trace = SliceRules(part, context), part.trace
    ends, streams = {}, {}
    for device in rules.facts.devices:
        row, work = device.use.device, device.activity
        ends[row] = work_ends(device, rules.rows.exposed[row])
        counted = reach_into(trace, work, device.use.window)
        streams[row] = {use.stream: stream_figures(trace, work, counted, use.stream) for use in device.use.streams}
    sizes = {"operations": len(own_operations(trace).operations), "calls": len(trace.api)}
    # A stream can have events in a slice in which its device has no work.
    others = context.uses.keys() - rules.parts.keys()
    events = {row: {EVENTS_WITHOUT_WORK: events_without_work(trace, row, own=True)} for row in others}
    return SliceSums(events | {row: sums.own for row, sums in rules.totals.items()}, ends, streams, sizes)


def with_sums(context: SliceContext, parts: Sequence[SliceSums]) -> SliceContext:
    """Return the context with the sums of all slices."""
    uses = dict(context.uses)
    for device, use in uses.items():
        if use.window != next(each.window for each in context.analysis.devices if each.device == device):
            figures = {
                each.stream: [part.streams[device][each.stream] for part in parts if device in part.streams]
                for each in use.streams
            }
            rows = [row for each in use.streams for row in steady_stream(each, np.sum(figures[each.stream], axis=0))]
            uses[device] = steady_use(use, tuple(rows))
    return replace(
        context,
        uses=uses,
        totals=merge_sums([part.totals for part in parts]),
        until={device: end_of_work([part.ends[device] for part in parts if device in part.ends]) for device in uses},
        sizes={name: sum(part.sizes[name] for part in parts) for name in ("operations", "calls")},
    )


def merge_sums(parts: Sequence[Mapping[int, Mapping[str, Any]]]) -> dict[int, dict[str, Any]]:
    """Return sums by device and name from those of slices."""
    totals: dict[int, dict[str, Any]] = {}
    for part in parts:
        for device, values in part.items():
            known = totals.setdefault(device, {})
            for key, value in values.items():
                known[key] = _added(known.get(key), value)
    return totals


def _added(first: Any, second: Any) -> Any:
    if first is None:
        return dict(second) if isinstance(second, dict) else second
    if isinstance(second, dict):
        return sum_mappings((first, second))
    return first.plus(second) if isinstance(first, Counts) else first + second


@dataclass(slots=True)
class SliceClaims:
    """What the rules claim in a slice: compact ledgers by device, and the drafts without their claims and devices.

    The claims of a draft are those at its `place` in the ledger of its device. `borders` lists the claims of each draft
    that have the gap before the slice, because an operation at the beginning of the slice ends it. `notes` have the
    numbers of their rules. `shown` has the sums that texts show (RuleSums.shown), by device. `window` is that of the
    slice, and `part` the time that it accounts for.
    """

    ledgers: dict[int, CompactLedger]
    drafts: dict[Key, FindingDraft]
    place: dict[Key, int]
    borders: dict[Key, tuple[int, ...]]
    notes: list[tuple[int, Note]]
    shown: dict[int, dict[str, Any]]
    window: Window
    part: Window


def claims_of_slice(
    part: Slice,
    context: SliceContext,
    decisions: Sequence[Decision] = (),
    borders: Mapping[Key, tuple[int, ...]] | None = None,
) -> SliceClaims:
    """Return what the rules claim in a slice, after the claims of `decisions` are granted in this order.

    `borders` are those of the next slice.
    """
    rules = SliceRules(part, context, () if decisions else None)
    if not decisions:
        rules.pass_on()
    grant_borders(rules, borders or {})
    for decision in decisions:
        if decision.key in rules.drafts:
            ledger = rules.ledgers[decision.key[1]]
            ledger.deduct(ledger.grant(rules.drafts[decision.key].claims, decision.ns))
    decided = {decision.key for decision in decisions}
    windows = [own.work.window for own in rules.parts.values()]
    time = Window(min((own.start for own in windows), default=0), max((own.end for own in windows), default=0))
    shown = {row: totals.own for row, totals in rules.totals.items()}
    assert part.trace.window is not None, "a slice has a window"
    claims = SliceClaims({}, {}, {}, {}, rules.notes, shown, part.trace.window, time)
    for device in rules.facts.devices:
        row = device.use.device
        mine = rules.parts[row]
        own = {key: draft for key, draft in rules.drafts.items() if key[1] == row and key not in decided}
        for number, (key, draft) in enumerate(own.items()):
            claims.place[key] = number
            claims.drafts[key] = replace(draft, device=None, claims=(), evidence=())  # type: ignore[arg-type]
            ghost = tuple(at for at, claim in enumerate(draft.claims) if mine.ghost and _claims_first_gap(claim))
            if ghost:
                claims.borders[key] = ghost
        ledger = rules.ledgers[row]
        if mine.ghost:
            ledger = _without_first_gap(ledger)
        steady = device.steady_gaps
        claims.ledgers[row] = compact_ledger(
            ledger, [draft.claims for draft in own.values()], steady, device.steady, _border_gap(device, mine)
        )
    return claims


def _claims_first_gap(claim: object) -> bool:
    if not isinstance(claim, IdleClaim) or claim.rows is None or isinstance(claim.rows, slice):
        return False
    return bool((np.asarray(claim.rows) == 0).any())


def _without_first_gap(ledger: Ledger) -> Ledger:
    idle = {cause: np.concatenate([np.zeros(1, np.int64), ns[1:]]) for cause, ns in ledger.idle.items()}
    return Ledger(ledger.count, idle, ledger.exposed, ledger.own_compute, ledger.compute)


def _border_gap(device: DeviceFacts, part: OwnPart) -> int:
    """Return the gap that an operation at the end of the slice ends, -1 for none."""
    last = len(device.gap_start) - 1
    ends_there = last >= int(part.ghost) and device.gap_end[last] == part.work.window.end
    return last if part.ends_at_border and ends_there else -1


def grant_borders(rules: SliceRules, borders: Mapping[Key, tuple[int, ...]]) -> None:
    """Give the gaps at the borders of a slice to the slice in which they end; `borders` are those of the next one."""
    for device in rules.facts.devices:
        part = rules.parts[device.use.device]
        if part.ghost:
            rules.ledgers[device.use.device] = _without_first_gap(rules.ledgers[device.use.device])
        at = _border_gap(device, part)
        for key, places in borders.items():
            if key[1] == device.use.device and at >= 0 and key in rules.drafts:
                draft = rules.drafts[key]
                rules.drafts[key] = replace(draft, claims=with_border_gap(draft.claims, places, at))


def with_border_gap(claims: Sequence[Claim], places: Sequence[int], gap: int) -> tuple[Claim, ...]:
    """Return the claims of a draft; those at `places` also have the gap at the end of the slice."""
    changed = list(claims)
    for place in places:
        claim = changed[place]
        assert isinstance(claim, IdleClaim), "operations claim idle time before them"
        changed[place] = replace(claim, rows=np.unique(np.append(np.asarray(claim.rows, np.int64), gap)))
    return tuple(changed)
