"""The places of a finding: the gaps, exposed times and kernels with the most granted time."""

from __future__ import annotations

import numpy as np

from traceview.intervals import largest_positions
from traceview.measure.activity import COMPUTE
from traceview.model.findings import Place
from traceview.model.trace import Trace
from traceview.model.units import duration
from traceview.pricing.base import GpuWork
from traceview.pricing.ledger import Grant

MAX_PLACES = 5


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
