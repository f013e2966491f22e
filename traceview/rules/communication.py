"""Rules on communication between GPUs: waits for a late rank, and what compute does not hide."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.intervals import Times
from traceview.measure.activity import COMMUNICATION
from traceview.measure.exposure import COMMUNICATION_WORK
from traceview.measure.shared_work import codes_of, launch_rows
from traceview.model.analysis import NotMeasured
from traceview.model.findings import MEDIUM_SHARE
from traceview.model.rows import CommunicationOverlap
from traceview.model.trace import SOURCES, Note
from traceview.model.units import duration, quantity, share
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture
from traceview.pricing.ledger import TimeClaim
from traceview.pricing.texts import cause_values, join_words, lost_ns
from traceview.rules.launches import LAUNCH_CAUSES, MAX_SHORT_GAP

MOSTLY = 0.5


def communication_wait(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """A rank is late and the other ranks wait for it in a collective.

    Symptom: the same collective takes long on one GPU and short on another.
    Cause: a collective ends on all ranks at the same time. Its kernel is shortest on the rank that starts it last; the
    other ranks wait for the difference. The late rank has more work, slower data or a slower host.
    Remedy: that of the late rank's own loss. If it computes no longer than the others, its host is late: cheaper
    launches where its GPU waits in short gaps, else less work of its host. If it computes longer, equal work. The
    network is not the cause.

    The rule compares durations, so the clocks of the devices need not agree. It requires that all communicating devices
    run the same communication kernels in the same order; then the k-th kernel of each device is the same collective.
    Claims the first `duration - shortest duration` ns of each kernel's exposed time.
    """
    devices = [each for each in capture.devices if each.use.communication.count]
    if len(devices) < 2 or device not in devices:
        return
    works = [(each.activity, _collectives(capture, each)) for each in devices]
    names = codes_of(capture.trace.operations, "name")
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
    claim = TimeClaim((COMMUNICATION_WORK,), intervals.union(start, start + waits))
    yield FindingDraft("communication_wait", device, (claim,), values, case)


def _collectives(capture: MeasuredCapture, device: GpuWork) -> Times:
    """Return the members of the device's work that are collectives and end inside its time.

    All ranks leave a collective at the same time, so these are the same collectives on every device.
    """
    work = device.activity
    members = np.flatnonzero(work.codes == COMMUNICATION)
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
    waits = device.gap_waits(LAUNCH_CAUSES, steady)
    if waits is None:
        return 0, 0
    is_short = device.gap_end[steady] - device.gap_start[steady] <= MAX_SHORT_GAP
    return int(waits[is_short].sum()), int(waits[~is_short].sum())


# Ranges of pipeline schedules: instrument's "stage 1 forward 3", torch's "Forward 3", Megatron's "recv_forward".
PIPELINE = re.compile(
    r"\bstage[ _]?[\d#]+ |micro.?batch|1f1b|pipeline|nccl:recv|recv_(?:forward|backward)|^(?:forward|backward) [\d#]+$",
    re.IGNORECASE,
)
KERNELS, MEMCPY = ("communication kernel", "communication kernels"), SOURCES.index("memcpy")
OTHERS = "Whether it waits for a late rank, traceview fleet says from the reports of all. "
MIN_EQUAL = 3  # iterations; of fewer the shortest says little


def exposed_communication(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft | Note]:
    """Communication is not hidden behind compute.

    Symptom: NCCL kernels run while nothing computes. Waits for another rank are `communication_wait`.
    With one rank alone, its waits for others count: only the others' captures show when they arrive. Where equal
    collectives take longer in some iterations than in others, that is most of it.
    Cause: gradients are reduced after the backward pass instead of during it, or in buckets that are too large to start
    early or too small to be efficient.
    Remedy: tune the bucket size, overlap with backward, send fewer bytes. In a pipeline, whose stages wait for each
    other's micro-batches, more micro-batches or an interleaved schedule. Where nothing computes, fewer messages or a
    late rank.

    Claims the exposed communication that is left, without ordinary gaps between kernels, in which nothing is lost.
    """
    communication = device.use.communication
    if not communication.count:
        return
    alone = sum(each.use.communication.count > 0 for each in capture.devices) < 2
    values = {
        "count": quantity(communication.count, *_words(device)),
        "hidden": share(communication.overlapped_ns, communication.busy_ns),
        "total": duration(communication.busy_ns),
        "waits": "included" if alone else "excluded",
        "others": OTHERS if alone else "",
    }
    is_sharded = any(row.collective == "reduce_scatter" for row in device.use.tables["collectives"].rows)
    case = "pipeline" if waits_for_stages(capture, device) else "sharded" if is_sharded else ""
    case = "late_ranks" if alone and case != "pipeline" and _mostly_waits(capture, device) else case
    case = "alone" if capture.analysis.compute_share(device.use) < MEDIUM_SHARE else case
    causes = communication.exposed_causes
    values |= cause_values(causes) | ({"cure": ""} if case in ("alone", "pipeline") else {})
    claim, lost = TimeClaim((COMMUNICATION_WORK,)), lost_ns(causes)
    yield FindingDraft("exposed_communication", device, (claim,), values, case, at_most=lost)
    price = communication.contention_ns
    if price is not None and price > MEDIUM_SHARE * device.window.length:
        yield Note("price_of_overlap", _price(device, communication), ("communication",))


def _mostly_waits(capture: MeasuredCapture, device: GpuWork) -> bool:
    """Return whether a rank's collectives mostly wait for other ranks, whose captures are not known.

    The k-th collective of an iteration transfers as much in each one, so that what it takes beyond its shortest time
    is a wait: for a rank that is late, or for the network.
    """
    work, names = device.activity, device.column("name")
    members = np.flatnonzero(work.codes == COMMUNICATION)
    launch = launch_rows(capture.trace.operations)[work.rows[members]]
    members = members[launch >= 0]
    launched = capture.trace.api["start"].to_numpy()[launch[launch >= 0]]
    iteration = np.searchsorted(capture.iteration_starts, launched, side="right")  # 0: before the first
    counts = np.bincount(iteration, minlength=1)
    counts[0] = 0
    most = int(np.bincount(counts[counts > 0]).argmax()) if counts.any() else 0
    members = members[(counts == most)[iteration]]
    if most == 0 or len(members) < MIN_EQUAL * most:
        return False
    places = members.reshape(-1, most)
    places = places[(names[places] == names[places[0]]).all(axis=1)]
    lengths = work.end[places] - work.start[places]
    waits = lengths - lengths.min(axis=0)
    return len(places) >= MIN_EQUAL and int(waits.sum()) > MOSTLY * int(lengths.sum())


def _price(device: GpuWork, communication: CommunicationOverlap) -> str:
    least, most = (duration(ns or 0) for ns in (communication.contention_low_ns, communication.contention_high_ns))
    return (
        f"{device.id}: kernels take {duration(communication.contention_ns or 0)} longer beside communication than "
        f"alone ({least} to {most}); {duration(communication.overlapped_ns)} of communication is hidden"
    )


def _words(device: GpuWork) -> tuple[str, str]:
    """Return what communicates on a device, one and several: kernels, or copy engines."""
    sources = device.column("source")[device.activity.codes == COMMUNICATION]
    return ("copy between GPUs", "copies between GPUs") if (sources == MEMCPY).all() else KERNELS


def waits_for_stages(capture: MeasuredCapture, device: GpuWork) -> bool:
    """Return whether most communication of a device is between the stages of a pipeline.

    All-to-all exchanges use the same kernels, so a range must name a stage, a micro-batch or a receive.
    """
    rows = device.use.tables["collectives"].rows
    between = sum(row.total_ns for row in rows if row.collective == "send_receive")
    if 2 * between <= sum(row.total_ns for row in rows):
        return False
    ranges = capture.analysis.nvtx
    return not isinstance(ranges, NotMeasured) and any(PIPELINE.search(row.name) for row in ranges)
