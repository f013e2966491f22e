"""The places in the capture that show a finding."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from traceview.measure.activity import COMPUTE
from traceview.model.findings import Place
from traceview.pricing.base import CapturePart, DevicePart
from traceview.pricing.figures import largest_positions
from traceview.pricing.ledger import Grant
from traceview.units import duration

MAX_PLACES = 5


CostedPlace = tuple[int, Place]  # with the ns that a finding is granted there


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
