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

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION as COMMUNICATION_CODE
from traceview.model.analysis import DeviceUse
from traceview.model.units import duration, quantity
from traceview.pricing.accounts import COMMUNICATION
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, ExposedClaim, TimeGroup
from traceview.pricing.texts import join_words
from traceview.rules.exposed_communication import waits_for_stages
from traceview.rules.launch_bound import CAUSES, MAX_SHORT_GAP, short_waits

HOST_CASES = ("late_launches", "late_host")
MOSTLY = 0.5


class _CommunicationWaitSums(NamedTuple):
    """Waits for other devices in collectives: their ns, and how often each device is the last to start one.

    `different` counts the parts of the capture in which the devices run different collectives, and `together` those in
    which the same ones communicate, by their ids. `own` is the time in which the device waits for its own host:
    HOST_CASES, in short gaps and in long ones.
    """

    different: int
    together: dict[str, int]
    wait_ns: int
    last: dict[str, int]
    own: dict[str, int]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_CommunicationWaitSums]:
    """Group the times in which a device waits."""
    if len(part.devices) < 2:
        return Collected(_CommunicationWaitSums(0, {}, 0, {}, {}))
    every = {each.row: _collectives(part, each) for each in part.devices}
    devices = [each for each in part.devices if len(every[each.row])]
    together = {_ids([each.id for each in devices]): 1}
    if len(devices) < 2 or device not in devices:
        return Collected(_CommunicationWaitSums(0, together if devices else {}, 0, {}, _waits_for_host(device)))
    names = part.trace.operations["name"].to_physical().to_numpy()
    sequences = [names[each.activity.rows[every[each.row]]] for each in devices]
    if not all(np.array_equal(sequences[0], sequence) for sequence in sequences):
        return Collected(_CommunicationWaitSums(1, together, 0, {}, {}))
    own = every[device.row]
    lengths = np.stack([(each.activity.end - each.activity.start)[every[each.row]] for each in devices])
    start = device.activity.start[own]
    waits = (device.activity.end - device.activity.start)[own] - lengths.min(axis=0)
    late = np.bincount(lengths.argmin(axis=0)[waits > 0], minlength=len(devices)).tolist()
    last = {each.id: count for each, count in zip(devices, late, strict=True)}
    sums = _CommunicationWaitSums(0, together, int(waits.sum()), last, _waits_for_host(device))
    return Collected(sums, {"waits": TimeGroup(intervals.union(start, start + waits))})


def _ids(devices: Sequence[str]) -> str:
    return " ".join(sorted(devices))


def _waits_for_host(device: DevicePart) -> dict[str, int]:
    """Return how long the device waits for its own host, in short gaps and in long ones."""
    ns = short_waits(device)[1]
    steady = device.steady_gaps
    long = device.gap_end[steady] - device.gap_start[steady] > MAX_SHORT_GAP
    waits = device.gap_waits(CAUSES, steady)
    return dict(zip(HOST_CASES, (int(ns.sum()), 0 if waits is None else int(waits[long].sum())), strict=True))


def _collectives(part: CapturePart, device: DevicePart) -> Times:
    """Return the members of the device's work that are collectives and end inside its time.

    All ranks leave a collective at the same time, so these are the same collectives on every device.
    """
    work = device.activity
    members = np.flatnonzero(work.codes == COMMUNICATION_CODE)
    ends = part.trace.operations["end"].to_numpy()[work.rows[members]]
    inside: Times = members[ends <= work.window.end]
    return inside


def _decide(facts: CaptureFacts, sums: Mapping[int, _CommunicationWaitSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device that waits for another device inside collectives."""
    devices = [device for device in facts.devices if device.use.communication.count]
    if len(devices) < 2:
        return
    own, ids = sums[devices[0].row], _ids([device.use.id for device in devices])
    if own.different or own.together.keys() - {ids}:
        return
    for device in devices:
        last = sums[device.row].last
        late = max((other.use for other in devices), key=lambda use: last.get(use.id, 0))
        case = "pipeline" if waits_for_stages(facts, device) else _case_of_late_rank(device.use, late, sums)
        yield _draft(device, late, last.get(late.id, 0), sums[device.row].wait_ns, case)


def _case_of_late_rank(waiting: DeviceUse, late: DeviceUse, sums: Mapping[int, _CommunicationWaitSums]) -> str:
    """Return the case of the texts, by why a device is late: "" if it computes longer than the one that waits."""
    wait = sums[waiting.device].wait_ns
    if late.compute_ns - waiting.compute_ns >= MOSTLY * wait:
        return ""
    more = {case: sums[late.device].own[case] - sums[waiting.device].own[case] for case in HOST_CASES}
    return max(more, key=lambda case: more[case]) if sum(more.values()) >= MOSTLY * wait else ""


def _draft(device: DeviceFacts, late: DeviceUse, count: int, wait_ns: int, case: str) -> FindingDraft:
    """Return the finding; `late` is the device that is most often the last to start, `count` times."""
    total = device.use.communication
    values = {
        "device": device.use.id,
        "late": late.id,
        "wait": duration(wait_ns),
        "total": duration(total.busy_ns),
        "ranks": join_words([str(process) for process in late.process_ids]),
        "count": count,
        "collectives": quantity(total.count, "collective"),
    }
    return FindingDraft("communication_wait", device, (ExposedClaim((COMMUNICATION,), "waits"),), values, case)


communication_wait = OldRule("communication_wait", _decide, _collect, place=140)
