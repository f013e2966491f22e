"""A rank is late and the other ranks wait for it in a collective.

Symptom: the same collective takes long on one GPU and short on another.
Cause: a collective ends on all ranks at the same time. Its kernel is shortest on the rank that starts it last; the
other ranks wait for the difference. The late rank has more work, slower data or a slower host.
Remedy: that of the late rank's own loss. If it computes no longer than the others, its host is late: cheaper launches
where its GPU waits in short gaps, else less work of its host. If it computes longer, equal work. The network is not the
cause.

The rule compares durations, so the clocks of the devices need not agree. It requires that all communicating devices
run the same communication kernels in the same order; then the k-th kernel of each device is the same collective.
Claims the first `duration - shortest duration` ns of each kernel's exposed time.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION as COMMUNICATION_CODE
from traceview.model.units import duration, quantity
from traceview.pricing.accounts import COMMUNICATION
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import TimeClaim
from traceview.pricing.texts import join_words
from traceview.rules.exposed_communication import waits_for_stages
from traceview.rules.launch_bound import CAUSES, MAX_SHORT_GAP

MOSTLY = 0.5


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding for a GPU that waits for another one inside collectives."""
    devices = [each for each in capture.devices if each.use.communication.count]
    if len(devices) < 2 or device not in devices:
        return
    works = [(each.activity, _collectives(capture, each)) for each in devices]
    names = capture.trace.operations["name"].to_physical().to_numpy()
    sequences = [names[work.rows[members]] for work, members in works]
    if not all(len(sequence) and np.array_equal(sequences[0], sequence) for sequence in sequences):
        return
    lengths = np.stack([(work.end - work.start)[members] for work, members in works])
    place = devices.index(device)
    start, waits = device.activity.start[works[place][1]], lengths[place] - lengths.min(axis=0)
    last = np.bincount(lengths.argmin(axis=0)[waits > 0], minlength=len(devices))
    late, wait_ns, total = devices[last.argmax()], int(waits.sum()), device.use.communication
    values = {
        "device": device.id,
        "late": late.id,
        "wait": duration(wait_ns),
        "total": duration(total.busy_ns),
        "ranks": join_words([str(process) for process in late.process_ids]),
        "count": int(last.max()),
        "collectives": quantity(total.count, "collective"),
    }
    case = "pipeline" if waits_for_stages(capture, device) else _case_of_late_rank(device, late, wait_ns)
    claim = TimeClaim((COMMUNICATION,), intervals.union(start, start + waits))
    yield FindingDraft("communication_wait", device, (claim,), values, case)


def _collectives(capture: MeasuredCapture, device: GpuWork) -> Times:
    """Return the members of the device's work that are collectives and end inside its time.

    All ranks leave a collective at the same time, so these are the same collectives on every device.
    """
    work = device.activity
    members = np.flatnonzero(work.codes == COMMUNICATION_CODE)
    ends = capture.trace.operations["end"].to_numpy()[work.rows[members]]
    inside: Times = members[ends <= work.window.end]
    return inside


def _case_of_late_rank(waiting: GpuWork, late: GpuWork, wait_ns: int) -> str:
    """Return the case of the texts, by why a device is late: "" if it computes longer than the one that waits."""
    if late.use.compute_ns - waiting.use.compute_ns >= MOSTLY * wait_ns:
        return ""
    short, long = (own - other for own, other in zip(_waits_for_host(late), _waits_for_host(waiting), strict=True))
    if short + long < MOSTLY * wait_ns:
        return ""
    return "late_launches" if short >= long else "late_host"


def _waits_for_host(device: GpuWork) -> tuple[int, int]:
    """Return how long the device waits for its own host, in short gaps and in long ones."""
    steady = device.steady_gaps
    waits = device.gap_waits(CAUSES, steady)
    if waits is None:
        return 0, 0
    is_short = device.gap_end[steady] - device.gap_start[steady] <= MAX_SHORT_GAP
    return int(waits[is_short].sum()), int(waits[~is_short].sum())


communication_wait = Rule("communication_wait", find)
