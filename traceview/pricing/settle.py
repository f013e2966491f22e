"""From Drafts to Findings: claims are granted in order, priced, and the findings sorted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from traceview.model.analysis import SEVERITIES, Finding
from traceview.pricing.base import LEAST, DeviceFacts, Draft, Facts, Rule, severity_of
from traceview.pricing.evidence import worst_places
from traceview.pricing.format import duration, share
from traceview.pricing.ledger import Grant, Ledger, exposed_work

SIDE_BY_SIDE = 2


def settle(facts: Facts, rules: Sequence[Rule]) -> tuple[Finding, ...]:
    """Let each rule claim in turn; return the findings by severity, premises first, then by cost."""
    # What a rule would claim depends on the facts alone; only the granting has an order.
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        drafts = pool.map(lambda rule: list(rule(facts)), rules)
        ledgers = {
            device.use.device: Ledger.of(device.use.gaps, exposed_work(device.activity, device.copies))
            for device in facts.devices
        }
        found = [pair for several in drafts for pair in _settled(facts, several, ledgers)]
    found.sort(key=lambda one: (SEVERITIES.index(one[1].severity), not one[0].premise, -one[1].cost_ns))
    return tuple(finding for _, finding in found)


def _settled(facts: Facts, drafts: list[Draft], ledgers: dict[int, Ledger]) -> Iterator[tuple[Draft, Finding]]:
    for draft in drafts:
        if draft.device is None:
            yield draft, _worded(draft)
            continue
        ledger = ledgers[draft.device.use.device]
        grant = ledger.grant(draft.claims)
        price = _price(draft.device, grant)
        if not _worth_saying(draft, price):
            continue  # what it claimed stays for the rules after it
        ledger.take(grant)
        yield draft, _priced(facts, draft, draft.device, grant, price)


@dataclass(frozen=True, slots=True)
class _Price:
    """What a grant comes to: ns, and shares of the window and of the steady time."""

    total: int
    gaps: int
    steady: int
    share: float
    steady_share: float


def _price(device: DeviceFacts, grant: Grant) -> _Price:
    total, steady = grant.total, grant.inside(device.in_steady, device.steady)
    return _Price(
        total=total,
        gaps=grant.gaps,
        steady=steady,
        share=_share(total, device.use.window.length),
        steady_share=_share(steady, device.steady.length),
    )


def _worth_saying(draft: Draft, price: _Price) -> bool:
    if draft.always or not draft.claims:
        return True
    return max(price.share, price.steady_share) >= LEAST and price.gaps >= draft.fewest


def _share(part: int, whole: int) -> float:
    return part / whole if whole > 0 else 0.0


def _priced(facts: Facts, draft: Draft, device: DeviceFacts, grant: Grant, price: _Price) -> Finding:
    return Finding(
        id=draft.id,
        severity=draft.severity or severity_of(price.steady_share),
        title=_filled(draft.title, price),
        evidence=draft.evidence or worst_places(facts, device, grant, draft.place),
        cost_ns=price.total,
        advice=_filled(draft.advice, price),
        code=draft.code,
        device=device.use.id,
        cost_fraction=price.share,
        cost_per_iteration_ns=price.steady // facts.counted if facts.counted and price.steady else None,
    )


def _worded(draft: Draft) -> Finding:
    return Finding(
        id=draft.id,
        severity=draft.severity or "info",
        title=draft.title,
        evidence=draft.evidence,
        cost_ns=0,
        advice=draft.advice,
        code=draft.code,
    )


def _filled(text: str, price: _Price) -> str:
    # str.replace, not str.format: kernel and range names may hold braces.
    filled = text.replace("{cost}", duration(price.total)).replace("{share}", share(price.share, 1))
    return filled.replace("{gaps}", f"{price.gaps:,}")
