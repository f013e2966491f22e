"""Rules on copies: those that take longer than compute, and those that nothing hides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Rows
from traceview.measure.exposure import MEMSET_WORK, copy_key
from traceview.model.analysis import DeviceUse
from traceview.model.peaks import memory_rate, pinned_rate
from traceview.model.rows import CopyOverlap
from traceview.model.trace import KINDS, MEMORIES, names_match
from traceview.model.units import duration, quantity, rate, share, size, verb
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture
from traceview.pricing.ledger import GapClaim, TimeClaim
from traceview.pricing.texts import cause_values, join_words, lost_ns, main_cause
from traceview.rules.calls import restart_claim

HOST_LINK, HOST_KINDS = ("h2d", "d2h"), ("h2d", "d2h", "h2h")
# A copy on the device is work of its SMs, and a migration comes when one side touches pages.
HIDEABLE = tuple(kind for kind in KINDS if kind != "d2d" and not kind.startswith("um_"))
MIN_NAMED = 0.1  # share of the exposed time
MIN_WEIGHTS = 8  # copies to the GPU in an iteration, more than a batch has
MIN_REPEATED = 0.9  # share of these copies whose size occurs in each iteration


def copy_bound(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Copies take longer than the compute that could hide them.

    Symptom: copies are exposed for longer than the kernels run.
    Cause: the GPU computes too little with each byte: data goes back and forth between kernels, or kernels are short.
    Remedy: keep data on the GPU, or send fewer bytes. Overlap helps only as far as there is compute.

    Many copies of the same sizes in each iteration of an inference are the weights of layers that do not fit
    (offloading): the same work again.

    Claims the exposed time of copies that pinned memory and overlap cannot remove, before the rules that suggest them.
    """
    copies = [use for use in device.use.copies if use.kind in HIDEABLE and use.exposed_ns]
    remaining = _unavoidable_ns(device, copies)
    if remaining <= 0:
        return
    exposed = sum(use.exposed_ns for use in copies)
    kinds = [
        f"{size(use.bytes)} {use.label} at {rate(use.bytes, use.busy_ns)}"
        for use in sorted(copies, key=lambda use: -use.exposed_ns)
        if use.exposed_ns >= MIN_NAMED * exposed
    ]
    values = {
        "exposed": duration(exposed),
        "compute": duration(device.use.compute_ns),
        "kinds": join_words(kinds),
        "repeated": _repeated_copies(capture, device),
    }
    claim = TimeClaim(tuple(copy_key(kind, memory) for kind in HIDEABLE for memory in MEMORIES))
    yield FindingDraft("exposed_copies", device, (claim,), values, at_most=remaining)


def _unavoidable_ns(device: GpuWork, copies: list[CopyOverlap]) -> int:
    """Return the exposed ns that pinned memory and overlap cannot remove."""
    blocking = pageable(copies)
    others = [use for use in copies if use not in blocking]
    hideable = device.use.compute_to_hide({use.kind for use in others}) if others else 0
    rest = max(sum(use.exposed_ns for use in others) - hideable, 0)
    return rest + (pinned_remainder(device.use, blocking) if blocking else 0)


def _repeated_copies(capture: MeasuredCapture, device: GpuWork) -> str:
    """Return a sentence if an inference copies many tensors of the same sizes to the GPU in each iteration, else ""."""
    counted = capture.counted
    if capture.program.training is not False or not counted:
        return ""
    to_gpu = device.column("kind") == KINDS.index("h2d")
    sizes = device.column("bytes")[to_gpu]
    counts = np.unique(sizes, return_counts=True)[1]
    if len(sizes) < MIN_WEIGHTS * counted or counts[counts >= counted].sum() < MIN_REPEATED * len(sizes):
        return ""
    return (
        f"{len(sizes) / counted:.0f} copies ({size(int(sizes.sum()) // counted)}) have the same sizes in each "
        "iteration: if they are weights, keep the layers that fit on the GPU, or quantize them. "
    )


NEARLY_EQUAL = 0.1  # share of the copied bytes; a step that reads back as much as it copies to the GPU
MIN_LARGE = 65_536  # bytes; a smaller copy takes less time than its call, so pinning does not help
SMALL_REMEDY = "Gather small copies, pass scalars as arguments, read results later"
SMALL_REMEDIES = {
    "h2d": "Gather small copies, or pass scalars as arguments",
    "d2h": "Read results later, or keep them on the GPU",
}
MIN_BLAME_RATIO = 10  # a synchronize call is not the cause if the copies block the host this many times longer


def pageable_copies(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Copies from or to pageable memory block the host thread that issues them.

    Symptom: cudaMemcpyAsync takes as long as the copy and nothing computes meanwhile; the synchronize call after it
    looks like the cause.
    Cause: the driver stages pageable memory through its own pinned buffer, piece by piece, while the caller waits. Such
    a copy is never asynchronous and never overlaps work that the same thread launches.
    Remedy: pinned batches, a copy stream and a prefetch, all three. Avoid small copies instead of pinning them.

    Claims the exposed time of pageable h2d, d2h and h2h copies; at most the cost of implicitly synchronizing calls, the
    idle cause `blocking_copy`, the cause `launch` of gaps that such a copy ends (there the launch call does the
    staging) and the restart gaps of their calls. Copies from pinned memory still take time. Compute hides some of it;
    the rest of the exposed time belongs to `copy_bound`.
    """
    copies = pageable(device.use.copies)
    if not copies:
        return
    count, total = sum(use.count for use in copies), sum(use.bytes for use in copies)
    busy, exposed = sum(use.busy_ns for use in copies), sum(use.exposed_ns for use in copies)
    remainder = pinned_remainder(device.use, copies)
    issued = _pageable_rows(device)
    calls, steady = _blocking_calls(capture, issued), _count_steady(capture, device, issued)
    blocked = int(calls["blocked"].sum())
    case = _pageable_case(capture, copies, steady)
    stays = remainder and not case.startswith("small")
    values = {
        "copies": quantity(count, "copy", "copies"),
        "kinds": join_words([f"{size(use.bytes)} {use.kind}" for use in copies]),
        "small": SMALL_REMEDIES.get("".join(dict.fromkeys(use.kind for use in copies)), SMALL_REMEDY),
        "does": f"{verb(count, 'block')} the host for {duration(blocked)}"
        if blocked
        else f"{verb(count, 'run')} while nothing computes",
        "when": "" if capture.counted is None or steady else ", all outside the counted iterations (start-up)",
        "limit": f"; from pinned memory {duration(remainder)} would remain" if stays else "",
        "rate": rate(total, busy),
        "idle": share(exposed, busy),
        "each": size(total / count),
        "blame": _apparent_cause(capture, blocked),
    }
    is_issued = np.zeros(len(capture.trace.operations), np.bool_)
    is_issued[issued] = True
    claims = (
        TimeClaim(tuple(copy_key(use.kind, use.memory) for use in copies)),
        GapClaim(("launch",), device.gaps_before(is_issued)),
        GapClaim(("blocking_copy",)),
        restart_claim(device, calls),
    )
    at_most = max(exposed - remainder, 0) + capture.host.implicit_sync.cost_ns
    yield FindingDraft("pageable_copies", device, claims, values, case, at_most=at_most)


def pageable(copies: Sequence[CopyOverlap]) -> list[CopyOverlap]:
    """Return the copies from or to pageable host memory."""
    return [use for use in copies if use.memory == "pageable" and use.kind in HOST_KINDS]


def pinned_remainder(use: DeviceUse, copies: list[CopyOverlap]) -> int:
    """Return how long copies from pinned memory would take beyond the compute that can hide them, in ns.

    The two directions have their own engines, so that the slower one counts.
    """
    kinds = {each.kind for each in copies}
    longest = max(sum(each.bytes for each in copies if each.kind == kind) for kind in kinds)
    return max(int(longest / pinned_rate(use.name)) - use.compute_to_hide(kinds), 0)


def _pageable_rows(device: GpuWork) -> Rows:
    """Return the copies of the device from or to pageable host memory, rows of Trace.operations."""
    members = np.concatenate([device.copies.select(kind, "pageable") for kind in HOST_KINDS])
    rows: Rows = device.activity.rows[members]
    return rows


def _blocking_calls(capture: MeasuredCapture, issued: Rows) -> pl.DataFrame:
    """Return the blocking calls that issue copies, rows of SyncUse.frame. A call can return before its copy starts."""
    launches = capture.trace.operations["launch"].gather(issued).drop_nulls().to_numpy()
    frame = capture.host.implicit_sync.frame
    return frame.filter(np.isin(frame["api"].to_numpy(), launches))


def _count_steady(capture: MeasuredCapture, device: GpuWork, issued: Rows) -> int:
    """Return the number of copies that start in the steady part."""
    start = capture.trace.operations["start"].to_numpy()[issued]
    return int(np.count_nonzero((start >= device.steady.start) & (start < device.steady.end)))


def _pageable_case(capture: MeasuredCapture, copies: list[CopyOverlap], steady: int) -> str:
    """Return the case of the texts; `steady` is how many of the copies are in the steady part."""
    count, total = sum(use.count for use in copies), sum(use.bytes for use in copies)
    are_small = total < MIN_LARGE * count
    if capture.counted is not None and steady == 0:
        return "small_at_start_up" if are_small else "start_up"
    results = sum(use.bytes for use in copies if use.kind == "d2h")
    if are_small:
        return "small"
    if 2 * results > (1 + NEARLY_EQUAL) * total:
        return "results"
    return "state" if 2 * results > (1 - NEARLY_EQUAL) * total else ""


def _apparent_cause(capture: MeasuredCapture, blocked: int) -> str:
    """Return a sentence on the synchronize call that looks like the cause but is not, or ""."""
    call = max(capture.host.sync.calls, key=lambda call: call.blocked_ns, default=None)
    if call is None or call.blocked_ns * MIN_BLAME_RATIO > blocked:
        return ""
    total = f"{duration(call.blocked_ns)} in {quantity(call.count, 'call')}"
    return f"{call.api} looks like the cause, but blocks the host for only {total}. "


def shared_stream(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Copies run on the stream of the kernels.

    Symptom: exposed h2d or d2h copies from pinned memory on a stream that also computes.
    Cause: the operations of a stream run one after the other, so a copy cannot overlap the kernels of its own stream.
    Remedy: a copy stream and a prefetch.

    Claims the exposed time of these copies, at most the compute that can hide it. Pageable copies belong to
    `pageable_copies`. A stream with less than half of the busiest stream's compute belongs to `exposed_copies`, because
    the kernels of other streams can hide its copies.
    """
    work, copies, computing = device.activity, device.copies, _computing_streams(device.use)
    kinds = np.isin(copies.kind, [KINDS.index(name) for name in HOST_LINK])
    members = copies.members[kinds & (copies.memory != MEMORIES.index("pageable"))]
    stream = capture.trace.operations["stream"].to_numpy()[work.rows[members]]
    chosen = np.isin(stream, list(computing))
    members, stream = members[chosen], stream[chosen]
    if len(members) == 0:
        return
    copying = intervals.union(work.start[members], work.end[members], ordered=True)
    exposed, hideable = (
        intervals.length(intervals.subtract(copying, work.compute)),
        device.use.compute_to_hide(HOST_LINK),
    )
    rows = capture.trace.operations.select("bytes", "kind")[work.rows[members]]
    total, results = int(rows["bytes"].sum()), int(rows.filter(pl.col("kind") == "d2h")["bytes"].sum())
    values = {
        "copies": quantity(len(members), "copy", "copies"),
        "run": verb(len(members), "run"),
        "size": size(total),
        "streams": join_words([computing[row] for row in np.unique(stream).tolist()][:3]),
        "limit": f"; {duration(hideable)} of compute can hide them" if exposed > hideable else "",
    }
    keys = tuple(copy_key(kind, memory) for kind in HOST_LINK for memory in MEMORIES if memory != "pageable")
    case = "results" if 2 * results > total else ""
    yield FindingDraft("shared_stream", device, (TimeClaim(keys, copying),), values, case, at_most=hideable)


def _computing_streams(use: DeviceUse) -> dict[int, str]:
    """Return the labels of the streams with at least half of the busiest stream's compute."""
    most = use.compute_ns
    return {each.stream: each.label for each in use.streams if 0 < most <= 2 * each.compute_ns}


LATE = ("", "launched_late", "waited_itself")  # causes of copies that start too late
MIN_MEMSET = 10_000  # ns; a shorter loss to memsets is worth no change
# Copies of 64 kB make half of the link's rate, of 1 MB nearly all (samples/trainer/pinned.sqlite has copies of 67 MB).
SMALL, LARGE = 1 << 16, 1 << 20  # bytes
HALF, MUCH_SLOWER = 0.5, 0.2  # shares of the usual rate
USUAL_D2D = 1 / 3  # share of the rate of the memory, which is read and written: 1.66 of 4.8 TB/s on an H200
SEVERAL = 4  # copies of a call from which their number is stated
KIND_NAMES = {"h2d": "host-to-device", "d2h": "device-to-host", "d2d": "device-to-device", "p2p": "GPU-to-GPU"}
KIND_NAMES |= {f"um_{kind}": KIND_NAMES[kind] for kind in ("h2d", "d2h", "d2d")}


def exposed_copies(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Copies are not hidden behind compute.

    Symptom: copies of one kind run while nothing computes.
    Cause: depends on the kind of copy.
    - h2d and d2h: the copy is issued too late, or it takes longer than the step's compute, or another cause of its
      exposed time. Ordinary gaps between kernels cost nothing.
    - d2d: a copy on the device (`contiguous`, `cat`, gradient buckets) runs on the SMs, as a kernel does. One that is
      far slower than the device's memory is not a usual one.
    - Thousands of small copies, as of a batch call, do not reach the link's rate.
    - p2p: the copy is on a stream with kernels, although the copy engine does not need the SMs.
    - Managed memory: page faults.
    Remedy: by kind, see the advice of each.

    Claims the exposed time of each pair of kind and memory that is left, without ordinary gaps between kernels and at
    most the compute that can hide it, and of memsets. A copy on the device is not hidden but avoided, so its claim has
    no such limit.
    """
    for copies in device.use.copies:
        if not (copies.memory == "pageable" and copies.kind in HOST_KINDS):  # these are `pageable_copies`
            yield _exposed_draft(capture, device, copies)
    yield FindingDraft("exposed_memset", device, (TimeClaim((MEMSET_WORK,)),), min_ns=MIN_MEMSET)


def _exposed_draft(capture: MeasuredCapture, device: GpuWork, copies: CopyOverlap) -> FindingDraft:
    members = device.copies.select(copies.kind, copies.memory)
    stream = capture.trace.operations["stream"].to_numpy()[device.activity.rows[members]]
    computing = np.isin(stream, [use.stream for use in device.use.streams if use.compute_ns])
    is_mixed = 2 * np.count_nonzero(computing) > copies.count
    cause = main_cause(copies.exposed_causes)
    kind = KIND_NAMES.get(copies.kind, copies.kind)
    lost = lost_ns(copies.exposed_causes)
    hideable = device.use.compute_to_hide([copies.kind]) if copies.kind in HIDEABLE else None
    launches = capture.trace.operations["launch"].gather(device.activity.rows[members]).drop_nulls().n_unique()
    gpu, own_rate = capture.trace.devices["name"][device.row], copies.bytes / max(copies.busy_ns, 1)
    usual = pinned_rate(gpu)
    if copies.kind == "d2d":
        usual = (memory_rate(gpu) or 0.0) * USUAL_D2D
    values = {
        "copies": quantity(copies.count, f"{kind} copy", f"{kind} copies"),
        "calls": f" from {quantity(launches, 'call')}" if 0 < SEVERAL * launches <= copies.count else "",
        "each": size(copies.bytes // max(copies.count, 1)),
        "usual": rate(usual, 1),
        "of_memory": share(own_rate * USUAL_D2D, usual),
        "kind": kind,
        "memory": copies.memory,
        "size": size(copies.bytes),
        "exposed": duration(copies.exposed_ns),
        "busy": duration(copies.busy_ns),
        "rate": rate(copies.bytes, copies.busy_ns),
    }
    return FindingDraft(
        f"exposed_{copies.kind}",
        device,
        (TimeClaim((copy_key(copies.kind, copies.memory),)),),
        values | cause_values(copies.exposed_causes),
        prefetched_case(capture, copies.kind)
        or _slow_case(copies, own_rate / usual if usual else 1.0)
        or ("mixed" if is_mixed else "" if cause in LATE or copies.kind not in HOST_LINK else "other_causes"),
        key=copies.memory,
        at_most=lost if hideable is None else min(hideable, lost),
    )


def prefetched_case(capture: MeasuredCapture, kind: str = "um_h2d") -> str:
    """Return the case of migrations in a program that prefetches managed memory; "" in others."""
    prefetches = kind.startswith("um_") and names_match(capture.trace.api["name"], "MemPrefetch").any()
    return "prefetched" if prefetches else ""


def _slow_case(copies: CopyOverlap, of_usual: float) -> str:
    """Return the case of copies that are much slower than usual ones: `small` or, on the device, `slow`; else ""."""
    each = copies.bytes / max(copies.count, 1)
    if copies.kind == "d2d":
        return "slow" if each >= LARGE and of_usual <= MUCH_SLOWER else ""
    is_small = copies.kind in HOST_LINK and copies.bytes >= LARGE and each <= SMALL
    return "small" if is_small and of_usual <= HALF else ""
