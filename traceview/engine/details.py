"""What the parts of a capture show of a finding: the places with the most granted time, and what the host did there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.engine.facts import capture_part
from traceview.engine.merge import merge_host_states, merge_totals
from traceview.engine.part import PartTrace
from traceview.intervals import largest_positions
from traceview.measure.activity import COMPUTE
from traceview.measure.host import LINES, HostIdle
from traceview.model.analysis import HostStates
from traceview.model.findings import Place
from traceview.model.rows import SourceLine
from traceview.model.units import duration
from traceview.pricing.base import CapturePart, Covered, DevicePart
from traceview.pricing.claims import Claim
from traceview.pricing.describe import Details, IdleHost, ask_for_host, claimed_causes, granted_gaps
from traceview.pricing.ledger import Grant

MIN_STATES_SHARE = 0.01  # share of a part's time from which the states of threads at a line are kept
MAX_PLACES = 5
LineKey = tuple[str, int, str, str]


class CostedPlace(NamedTuple):
    """A place with the ns that a finding is granted there. What happened stands between the place's text and `rest`."""

    cost: int
    place: Place
    rest: str = ""


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


def details_of_grant(
    part: PartTrace, covered: Covered, device: int, claims: Sequence[Claim], grant: Grant
) -> PartDetails:
    """Return what a part shows of a finding of a device, a row of Trace.devices, that is granted its `claims`."""
    rows = capture_part(part, covered)
    own = next(each for each in rows.devices if each.row == device)
    host = _host_sums(part.host_idle, own, claims, grant)
    return PartDetails(largest_places(rows, own, grant), len(grant.computing) > 0, host)


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


def merge_details(parts: Sequence[PartDetails], host_idle: HostIdle | None, label: str | None) -> Details:
    """Return the details of a finding from those of parts; `host_idle` knows the resident tables.

    `label` is what happened at the places, None for a finding that has its places.
    """
    places = [] if label is None else select_places(place for part in parts for place in part.places)
    hosts = [part.host for part in parts if part.host is not None]
    host = None if host_idle is None or not hosts else _merge_hosts(hosts, host_idle)
    costly = tuple(replace(place, cost_ns=cost, text=f"{place.text}{label}{rest}") for cost, place, rest in places)
    return Details(costly, host, any(part.computes for part in parts))


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


def largest_places(part: CapturePart, device: DevicePart, grant: Grant) -> list[CostedPlace]:
    """Return the MAX_PLACES places with the most granted time, largest first."""
    costs = ((grant.gap_row(at), int(grant.idle[at])) for at in largest_positions(grant.idle, MAX_PLACES))
    places = [_idle_place(part, device, row, cost) for row, cost in costs]
    for piece in largest_positions(grant.exposed.end - grant.exposed.start, MAX_PLACES):
        places.append(_exposed_place(part, device, int(grant.exposed.start[piece]), int(grant.exposed.end[piece])))
    for at in largest_positions(grant.compute, MAX_PLACES):
        places.append(_compute_place(part, device, int(grant.computing[at]), int(grant.compute[at])))
    return select_places(places)


def select_places(places: Iterable[CostedPlace]) -> list[CostedPlace]:
    """Return the MAX_PLACES places with the most time, largest first; equal ones in the order of time."""
    return sorted(places, key=lambda place: (-place.cost, place.place.start_ns))[:MAX_PLACES]


def _idle_place(part: CapturePart, device: DevicePart, row: int, cost: int) -> CostedPlace:
    operation, thread = int(device.gap_operation[row]), int(device.gap_thread[row])
    start, end = int(device.gap_start[row]), int(device.gap_end[row])
    trace, share = part.trace, "" if cost >= end - start else f", of which {duration(cost)}"
    place = Place(
        text=f"GPU idle for {duration(end - start)}{share}: ",
        start_ns=start,
        end_ns=end,
        device=device.id,
        stream=None if operation < 0 else int(trace.operations["stream"][operation]),
        thread=None if thread < 0 else thread,
    )
    return CostedPlace(cost, place, "" if operation < 0 else f"; next operation: {trace.operations['name'][operation]}")


def _compute_place(part: CapturePart, device: DevicePart, position: int, cost: int) -> CostedPlace:
    work, trace = device.activity, part.trace
    operation = trace.operations.row(int(work.rows[position]), named=True)
    start, end, launch = int(work.start[position]), int(work.end[position]), operation["launch"]
    place = Place(
        text=f"{operation['name']}: {duration(end - start)}, ",
        start_ns=start,
        end_ns=end,
        device=device.id,
        stream=operation["stream"],
        thread=None if launch is None else int(trace.api["thread"][launch]),
    )
    return CostedPlace(cost, place)


def _exposed_place(part: CapturePart, device: DevicePart, start: int, end: int) -> CostedPlace:
    work, trace = device.activity, part.trace
    begun = int(np.searchsorted(work.start, start, side="right"))
    running = np.flatnonzero((work.end[:begun] > start) & (work.codes[:begun] != COMPUTE))
    text, stream, thread = f"{duration(end - start)} without compute: ", None, None
    if len(running):
        # The same order as in the ledger: communication, copy, memset.
        first = running[np.argmin(work.codes[running])]
        operation = trace.operations.row(int(work.rows[first]), named=True)
        stream, launch = operation["stream"], operation["launch"]
        thread = None if launch is None else int(trace.api["thread"][launch])
        text = f"{operation['name']}: {text}"
    place = Place(text=text, start_ns=start, end_ns=end, device=device.id, stream=stream, thread=thread)
    return CostedPlace(end - start, place)
