"""From what was granted to the places that show it: where the timeline goes on a click."""

from __future__ import annotations

import numpy as np

from traceview.measure.activity import COMPUTE
from traceview.model.analysis import Place
from traceview.pricing.base import DeviceFacts, Facts
from traceview.pricing.format import duration
from traceview.pricing.largest import largest
from traceview.pricing.ledger import Grant

WORST = 5


def worst_places(facts: Facts, device: DeviceFacts, grant: Grant, label: str) -> tuple[Place, ...]:
    """Return the WORST places of a grant, the costliest first; `label` says what happened there."""
    costs = ((grant.gap(place), int(grant.idle[place])) for place in largest(grant.idle, WORST))
    found = [(cost, _idle_place(facts, device, row, cost, label)) for row, cost in costs]
    for piece in largest(grant.exposed.end - grant.exposed.start, WORST):
        start, end = int(grant.exposed.start[piece]), int(grant.exposed.end[piece])
        found.append((end - start, _exposed_place(facts, device, start, end, label)))
    return tuple(place for _, place in sorted(found, key=lambda one: (-one[0], one[1].start_ns))[:WORST])


def _idle_place(facts: Facts, device: DeviceFacts, row: int, cost: int, label: str) -> Place:
    operation, thread = int(device.gap_operation[row]), int(device.gap_thread[row])
    start, end = int(device.gap_start[row]), int(device.gap_end[row])
    text = (
        f"idle {duration(end - start)}, {duration(cost)} of it: {label}"
        if cost < end - start
        else (f"idle {duration(cost)}: {label}")
    )
    trace = facts.analysis.trace
    if operation >= 0:
        text += f"; then {trace.operations['name'][operation]}"
    return Place(
        text=text,
        start_ns=start,
        end_ns=end,
        device=device.use.id,
        stream=None if operation < 0 else int(trace.operations["stream"][operation]),
        thread=None if thread < 0 else thread,
    )


def _exposed_place(facts: Facts, device: DeviceFacts, start: int, end: int, label: str) -> Place:
    work, trace = device.activity, facts.analysis.trace
    begun = int(np.searchsorted(work.start, start, side="right"))
    running = np.flatnonzero((work.end[:begun] > start) & (work.codes[:begun] != COMPUTE))
    text, stream, thread = f"{duration(end - start)} without compute: {label}", None, None
    if len(running):
        first = running[np.argmin(work.codes[running])]  # as the ledger: communication, copy, memset
        row = int(work.rows[first])
        operation = trace.operations.row(row, named=True)
        stream, launch = operation["stream"], operation["launch"]
        thread = None if launch is None else int(trace.api["thread"][launch])
        text = f"{operation['name']}, {text}"
    return Place(text=text, start_ns=start, end_ns=end, device=device.use.id, stream=stream, thread=thread)
