"""A rank is late and the other ranks wait for it in a collective.

Symptom: the same collective takes long on one GPU and short on another.
Cause: a collective ends on all ranks at the same time. Its kernel is shortest on the rank that starts it last; the
other ranks wait for the difference. The late rank has more work, slower data or a slower host.
Remedy: find out what the late rank does before the collective. The network is not the cause.

The rule compares durations, so the clocks of the devices need not agree. It requires that all communicating devices
run the same communication kernels in the same order; then the k-th kernel of each device is the same collective.
Claims the first `duration - shortest duration` ns of each kernel's exposed time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.intervals import Intervals, Times
from traceview.measure.activity import COMMUNICATION as COMMUNICATION_CODE
from traceview.pricing.accounts import COMMUNICATION
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import join_words
from traceview.pricing.ledger import ExposedClaim
from traceview.rules.advice.communication import BUBBLE_REMEDY, COMMUNICATION_WAIT, PIPELINE_BUBBLE
from traceview.rules.exposed_communication import waits_for_stages
from traceview.units import duration, quantity


def communication_wait(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device that waits for another device inside collectives."""
    devices = [device for device in facts.devices if device.use.communication.count]
    if len(devices) < 2 or devices[0].total("different_collectives", int(not _same_collectives(facts, devices))):
        return
    rows = [_collectives(facts, device) for device in devices]
    durations = np.stack(
        [device.activity.end[row] - device.activity.start[row] for device, row in zip(devices, rows, strict=True)]
    )
    shortest = durations.min(axis=0)
    last = durations.argmin(axis=0)
    for index, device in enumerate(devices):
        waits = durations[index] - shortest
        start = device.activity.start[rows[index]]
        within = intervals.union(start, start + waits)
        wait_ns = device.total("collective_wait_ns", int(waits.sum()))
        yield _draft(facts, device, devices, last[waits > 0], wait_ns, within)


def _collectives(facts: CaptureFacts, device: DeviceFacts) -> Times:
    """Return the members of the device's work that are collectives and end inside its time.

    All ranks leave a collective at the same time, so these are the same collectives on every device.
    """
    work = device.activity
    members = np.flatnonzero(work.codes == COMMUNICATION_CODE)
    ends = facts.analysis.trace.operations["end"].to_numpy()[work.rows[members]]
    inside: Times = members[ends <= work.window.end]
    return inside


def _same_collectives(facts: CaptureFacts, devices: list[DeviceFacts]) -> bool:
    """Return whether all devices run the same communication kernels in the same order."""
    names = facts.analysis.trace.operations["name"].to_physical().to_numpy()
    sequences = [names[device.activity.rows[_collectives(facts, device)]] for device in devices]
    return all(np.array_equal(sequences[0], sequence) for sequence in sequences)


def _draft(
    facts: CaptureFacts,
    device: DeviceFacts,
    devices: list[DeviceFacts],
    last: Times,
    wait_ns: int,
    within: Intervals,
) -> FindingDraft:
    number = np.bincount(last, minlength=len(devices)).tolist()
    counts = device.total("late_devices", {other.use.id: count for other, count in zip(devices, number, strict=True)})
    late = max((other.use for other in devices), key=lambda use: counts[use.id])
    ranks = join_words([str(process) for process in late.process_ids])
    total = device.use.communication
    in_pipeline = waits_for_stages(facts, device)
    fix = PIPELINE_BUBBLE if in_pipeline else COMMUNICATION_WAIT.choose(facts.program)
    return FindingDraft(
        id="communication_wait",
        device=device,
        title=f"{device.use.id} waits for {late.id} in collectives for {duration(wait_ns)} of its "
        f"{duration(total.busy_ns)} of communication",
        advice=f"{late.id} (process {ranks}) is the last to start {counts[late.id]} of "
        f"{quantity(total.count, 'collective')}: its kernels are the shortest there. During {{cost}} of the "
        f"wait nothing computes. {fix.advice}",
        code=fix.code,
        remedy=BUBBLE_REMEDY if in_pipeline else "",
        claims=(ExposedClaim((COMMUNICATION,), within),),
        place_label=f"waiting for {late.id} in a collective",
    )
