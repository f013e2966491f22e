"""The details of findings: what each part of a capture shows of a finding, and what all parts show together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.engine.claims import Decision, Key, Request, deduct_decided, open_part_ledger
from traceview.engine.facts import capture_part
from traceview.engine.merge import merge_host_states, merge_totals
from traceview.engine.part import PartTrace
from traceview.measure.activity import COMPUTE
from traceview.measure.host import LINES, HostIdle
from traceview.model.devices import HostStates
from traceview.model.findings import Place
from traceview.model.rows import SourceLine
from traceview.model.trace import Window
from traceview.pricing.base import CapturePart, DevicePart
from traceview.pricing.claims import Claim
from traceview.pricing.describe import Details
from traceview.pricing.host_places import IdleHost, ask_for_host, claimed_causes, granted_gaps
from traceview.pricing.ledger import Grant, largest_positions
from traceview.units import duration

MIN_STATES_SHARE = 0.01  # share of a part's time from which the states of threads at a line are kept
MAX_PLACES = 5
CostedPlace = tuple[int, Place]  # with the ns that a finding is granted there
LineKey = tuple[str, int, str, str]


class HostSums(NamedTuple):
    """The parts of IdleHost that add up over the parts of a capture.

    `lines` is the result of HostIdle.line_sums. `states` has the states of threads by line; its key None has the sum of
    all lines.
    """

    idle_ns: int
    looked_ns: int
    lines: pl.DataFrame
    states: dict[LineKey | None, HostStates]


class PartDetails(NamedTuple):
    """What a part shows of a finding."""

    places: list[CostedPlace]
    computes: bool
    host: HostSums | None


def details_in_part(
    part: PartTrace, decisions: Mapping[Window, Sequence[Decision]], request: Request, labels: Mapping[Key, str | None]
) -> dict[Key, PartDetails]:
    """Return what a part shows of findings; `decisions` are those of all parts by window, in their order.

    `labels` have what happened at the places of each finding, None for a finding that has its places.
    """
    assert part.trace.window is not None, "a part has a window"
    grants = dict[Key, Grant]()
    for device in capture_part(part, request.context).devices:
        ledger, claims, _ = open_part_ledger(part, request, device)
        grants |= deduct_decided(ledger, claims, decisions[part.trace.window])
    return details_of_grants(part, request, grants, labels)


def details_of_grants(
    part: PartTrace, request: Request, grants: Mapping[Key, Grant], labels: Mapping[Key, str | None]
) -> dict[Key, PartDetails]:
    """Return what a part shows of findings that are granted its members."""
    rows, details = capture_part(part, request.context), {}
    devices = {device.row: device for device in rows.devices}
    for key, grant in grants.items():
        label, device = labels[key], devices[key[1]]
        places = [] if label is None else largest_places(rows, device, label, grant)
        host = _host_sums(part.host_idle, device, request.claims[key], grant)
        details[key] = PartDetails(places, len(grant.computing) > 0, host)
    return details


def _host_sums(
    host_idle: HostIdle | None, device: DevicePart, claims: Sequence[Claim], grant: Grant
) -> HostSums | None:
    if host_idle is None or not grant.idle.any() or not ask_for_host(claims):
        return None
    gaps, looked = granted_gaps(device, grant)
    sums, states = host_idle.line_sums([gaps]), dict[LineKey | None, HostStates]()
    if claimed_causes(claims) == {"host"}:
        states[None] = host_idle.states(gaps)
        for line in host_idle.lines_of_sums(sums):
            if line.host_ns >= MIN_STATES_SHARE * looked:
                states[_line_key(line)] = host_idle.states(gaps, line)
    return HostSums(int(grant.idle.sum()), looked, sums, states)


def _line_key(line: SourceLine | None) -> LineKey | None:
    """Return what decides which time HostIdle.states counts at a line."""
    if line is None:
        return None
    return ("", 0, "", line.until) if line.until else (line.file, line.line, "" if line.line else line.function, "")


def merge_details(parts: Sequence[PartDetails], host_idle: HostIdle | None) -> Details:
    """Return the details of a finding from those of parts; `host_idle` knows the resident tables."""
    places = select_places(place for part in parts for place in part.places)
    hosts = [part.host for part in parts if part.host is not None]
    host = None if host_idle is None or not hosts else _merge_hosts(hosts, host_idle)
    return Details(tuple(place for _, place in places), host, any(part.computes for part in parts))


def _merge_hosts(hosts: Sequence[HostSums], host_idle: HostIdle) -> IdleHost:
    def states(line: SourceLine | None) -> HostStates:
        key = _line_key(line)
        return merge_host_states([host.states[key] for host in hosts if key in host.states])

    return IdleHost(
        sum(host.idle_ns for host in hosts),
        sum(host.looked_ns for host in hosts),
        host_idle.lines_of_sums(merge_totals(LINES, [host.lines for host in hosts])),
        states,
    )


def largest_places(part: CapturePart, device: DevicePart, label: str, grant: Grant) -> list[CostedPlace]:
    """Return the MAX_PLACES places with the most granted time, largest first; `label` is what happened there."""
    costs = ((grant.gap_row(at), int(grant.idle[at])) for at in largest_positions(grant.idle, MAX_PLACES))
    places = [(cost, _idle_place(part, device, row, cost, label)) for row, cost in costs]
    for piece in largest_positions(grant.exposed.end - grant.exposed.start, MAX_PLACES):
        start, end = int(grant.exposed.start[piece]), int(grant.exposed.end[piece])
        places.append((end - start, _exposed_place(part, device, start, end, label)))
    for at in largest_positions(grant.compute, MAX_PLACES):
        places.append((int(grant.compute[at]), _compute_place(part, device, int(grant.computing[at]), label)))
    return select_places(places)


def select_places(places: Iterable[CostedPlace]) -> list[CostedPlace]:
    """Return the MAX_PLACES places with the most time, largest first; equal ones in the order of time."""
    return sorted(places, key=lambda pair: (-pair[0], pair[1].start_ns))[:MAX_PLACES]


def _idle_place(part: CapturePart, device: DevicePart, row: int, cost: int, label: str) -> Place:
    operation, thread = int(device.gap_operation[row]), int(device.gap_thread[row])
    start, end = int(device.gap_start[row]), int(device.gap_end[row])
    if cost < end - start:
        text = f"GPU idle for {duration(end - start)}, of which {duration(cost)}: {label}"
    else:
        text = f"GPU idle for {duration(cost)}: {label}"
    trace = part.trace
    if operation >= 0:
        text += f"; next operation: {trace.operations['name'][operation]}"
    return Place(
        text=text,
        start_ns=start,
        end_ns=end,
        device=device.use.id,
        stream=None if operation < 0 else int(trace.operations["stream"][operation]),
        thread=None if thread < 0 else thread,
    )


def _compute_place(part: CapturePart, device: DevicePart, position: int, label: str) -> Place:
    work, trace = device.activity, part.trace
    operation = trace.operations.row(int(work.rows[position]), named=True)
    start, end, launch = int(work.start[position]), int(work.end[position]), operation["launch"]
    return Place(
        text=f"{operation['name']}: {duration(end - start)}, {label}",
        start_ns=start,
        end_ns=end,
        device=device.use.id,
        stream=operation["stream"],
        thread=None if launch is None else int(trace.api["thread"][launch]),
    )


def _exposed_place(part: CapturePart, device: DevicePart, start: int, end: int, label: str) -> Place:
    work, trace = device.activity, part.trace
    begun = int(np.searchsorted(work.start, start, side="right"))
    running = np.flatnonzero((work.end[:begun] > start) & (work.codes[:begun] != COMPUTE))
    text, stream, thread = f"{duration(end - start)} without compute: {label}", None, None
    if len(running):
        # The same order as in the ledger: communication, copy, memset.
        first = running[np.argmin(work.codes[running])]
        operation = trace.operations.row(int(work.rows[first]), named=True)
        stream, launch = operation["stream"], operation["launch"]
        thread = None if launch is None else int(trace.api["thread"][launch])
        text = f"{operation['name']}: {text}"
    return Place(text=text, start_ns=start, end_ns=end, device=device.use.id, stream=stream, thread=thread)
