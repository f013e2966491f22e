"""From Drafts to Findings: claims are granted in order, priced, and the findings sorted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from traceview import intervals
from traceview.intervals import EMPTY
from traceview.model import SEVERITIES, Finding
from traceview.rules.base import LEAST, DeviceFacts, Draft, Facts, Rule, severity_of
from traceview.rules.evidence import worst_places
from traceview.rules.ledger import Grant, Ledger, exposed_work
from traceview.rules.words import duration, share


def settle(facts: Facts, rules: Sequence[Rule]) -> tuple[Finding, ...]:
    """Let each rule claim in turn; return the findings by severity, premises first, then by cost."""
    ledgers = {
        device.use.device: Ledger.of(
            device.use.gaps.frame, exposed_work(facts.analysis.trace, device.activity)
        )
        for device in facts.devices
    }
    found = [(draft, finding) for rule in rules for draft, finding in _settled(facts, rule, ledgers)]
    found.sort(key=lambda one: (SEVERITIES.index(one[1].severity), not one[0].premise, -one[1].cost_ns))
    return tuple(finding for _, finding in found)


def _settled(facts: Facts, rule: Rule, ledgers: dict[int, Ledger]) -> Iterator[tuple[Draft, Finding]]:
    for draft in rule(facts):
        if draft.device is None:
            yield draft, _worded(draft, 0, "")
            continue
        index = draft.device.use.device
        grant, left = ledgers[index].grant(draft.claims)
        if not _worth_saying(draft, draft.device, grant):
            continue  # what it claimed stays for the rules after it
        ledgers[index] = left
        yield draft, _priced(facts, draft, draft.device, grant)


def _worth_saying(draft: Draft, device: DeviceFacts, grant: Grant) -> bool:
    if draft.premise or not draft.claims:
        return True
    return max(_share(grant.total, device.use.window.length), _steady_share(device, grant)) >= LEAST


def _share(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0


def _steady_ns(device: DeviceFacts, grant: Grant) -> int:
    idle = int(grant.idle[device.gaps_in_steady()].sum())
    exposed = intervals.union(*grant.exposed) if len(grant.exposed.start) else EMPTY
    return idle + intervals.length(intervals.clip(exposed, device.steady.start, device.steady.end))


def _steady_share(device: DeviceFacts, grant: Grant) -> float:
    return _share(_steady_ns(device, grant), device.steady.length)


def _priced(facts: Facts, draft: Draft, device: DeviceFacts, grant: Grant) -> Finding:
    steady = _steady_ns(device, grant)
    severity = draft.severity or severity_of(_share(steady, device.steady.length))
    fraction = _share(grant.total, device.use.window.length)
    text = share(grant.total, device.use.window.length)
    return Finding(
        id=draft.id,
        severity=severity,
        title=_filled(draft.title, grant.total, text),
        evidence=draft.evidence or worst_places(facts, device, grant, draft.place),
        cost_ns=grant.total,
        advice=_filled(draft.advice, grant.total, text),
        code=draft.code,
        device=device.use.id,
        cost_fraction=fraction,
        cost_per_iteration_ns=steady // facts.counted if facts.counted and steady else None,
    )


def _worded(draft: Draft, cost: int, text: str) -> Finding:
    return Finding(
        id=draft.id,
        severity=draft.severity or "info",
        title=_filled(draft.title, cost, text),
        evidence=draft.evidence,
        cost_ns=0,
        advice=_filled(draft.advice, cost, text),
        code=draft.code,
    )


def _filled(text: str, cost: int, part: str) -> str:
    # str.replace, not str.format: kernel and range names may hold braces.
    return text.replace("{cost}", duration(cost)).replace("{share}", part)
