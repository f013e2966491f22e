"""The details of findings: what each slice shows of a finding, and what all slices show together."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceview.measure.host import LINES
from traceview.model.analysis import HostTime
from traceview.model.devices import HostStates
from traceview.model.rows import SourceLine
from traceview.model.trace import Window
from traceview.pricing.base import FindingDraft
from traceview.pricing.describe import Details
from traceview.pricing.evidence import CostedPlace, largest_places, select_places
from traceview.pricing.host_places import IdleHost, asks_for_host, claimed_causes, granted_gaps
from traceview.pricing.ledger import ExposedClaim, Grant, IdleClaim
from traceview.slices.claims import Decision, Key, SliceRules, grant_borders
from traceview.slices.facts import SliceContext
from traceview.slices.merge import merge_host_states, merge_rules, merge_totals
from traceview.slices.slice import Slice

MIN_STATES_SHARE = 0.01  # share of a slice's time from which the states of threads at a line are kept
LineKey = tuple[str, int, str, str]


class HostSums(NamedTuple):
    """The parts of IdleHost that add up over slices.

    `lines` is the result of HostTime.line_sums. `states` has the states of threads by line; its key None has the sum of
    all lines.
    """

    idle_ns: int
    looked_ns: int
    lines: pl.DataFrame
    states: dict[LineKey | None, HostStates]


class SliceDetails(NamedTuple):
    """What a slice shows of a finding, with its draft without its device and the rows of claims."""

    draft: FindingDraft
    places: list[CostedPlace]
    computes: bool
    host: HostSums | None


def details_in_slice(
    part: Slice,
    context: SliceContext,
    decisions: Mapping[Window, Sequence[Decision]],
    borders: Mapping[Window, Mapping[Key, tuple[int, ...]]],
    keys: frozenset[Key],
    texts: Mapping[Window, Container[int]],
) -> dict[Key, SliceDetails]:
    """Return what a slice shows of the findings and notes `keys`.

    `decisions` and `borders` (see claims_of_slice) are those of all slices by window. `texts` has the rules whose
    drafts a slice shows with the texts of the whole capture; the others have those of an earlier pass.
    """
    window = part.trace.window
    assert window is not None, "a slice has a window"
    rules = SliceRules(part, context, texts[window])
    grant_borders(rules, borders[window])
    undecided = keys.difference(decision.key for decision in decisions[window]).intersection(rules.drafts)
    details = {key: SliceDetails(_without_rows(rules.drafts[key]), [], False, None) for key in undecided}
    for decision in decisions[window]:
        draft = rules.drafts.get(decision.key)
        if draft is None:
            continue
        ledger = rules.ledgers[decision.key[1]]
        grant = ledger.grant(draft.claims, decision.ns)
        ledger.deduct(grant)
        if decision.key in keys:
            places = [] if draft.evidence else largest_places(rules.facts, draft, grant)
            host = _host_sums(rules.facts.analysis.host_time, draft, grant)
            details[decision.key] = SliceDetails(_without_rows(draft), places, len(grant.computing) > 0, host)
    return details


def _without_rows(draft: FindingDraft) -> FindingDraft:
    claims = tuple(_small_claim(claim) for claim in draft.claims)
    return replace(draft, device=None, claims=claims)  # type: ignore[arg-type]


def _small_claim(claim: Any) -> Any:
    none = np.empty(0, np.int64)
    if isinstance(claim, IdleClaim):
        return IdleClaim(claim.causes)
    return ExposedClaim(claim.keys) if isinstance(claim, ExposedClaim) else replace(claim, rows=none, fractions=none)


def _host_sums(host_time: HostTime | None, draft: FindingDraft, grant: Grant) -> HostSums | None:
    if host_time is None or not grant.idle.any() or not asks_for_host(draft):
        return None
    gaps, looked = granted_gaps(draft, grant)
    sums, states = host_time.line_sums([gaps]), dict[LineKey | None, HostStates]()
    if claimed_causes(draft) == {"host"}:
        states[None] = host_time.states(gaps)
        for line in host_time.lines_of_sums(sums):
            if line.host_ns >= MIN_STATES_SHARE * looked:
                states[_line_key(line)] = host_time.states(gaps, line)
    return HostSums(int(grant.idle.sum()), looked, sums, states)


def _line_key(line: SourceLine | None) -> LineKey | None:
    """Return what decides which time HostTime.states counts at a line."""
    if line is None:
        return None
    return ("", 0, "", line.until) if line.until else (line.file, line.line, "" if line.line else line.function, "")


def merge_details(parts: Sequence[SliceDetails], host_time: HostTime | None) -> Details:
    """Return the details of a finding from those of slices; `host_time` knows the resident tables."""
    places = select_places(place for part in parts for place in part.places)
    hosts = [part.host for part in parts if part.host is not None]
    host = None if host_time is None or not hosts else _merge_hosts(hosts, host_time)
    return Details(tuple(place for _, place in places), host, any(part.computes for part in parts))


def _merge_hosts(hosts: Sequence[HostSums], host_time: HostTime) -> IdleHost:
    rules = {**merge_rules(SourceLine), **LINES.merge}

    def states(line: SourceLine | None) -> HostStates:
        key = _line_key(line)
        return merge_host_states([host.states[key] for host in hosts if key in host.states])

    return IdleHost(
        sum(host.idle_ns for host in hosts),
        sum(host.looked_ns for host in hosts),
        host_time.lines_of_sums(merge_totals(rules, [host.lines for host in hosts])),
        states,
    )
