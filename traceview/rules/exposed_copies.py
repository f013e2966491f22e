"""Copies are not hidden behind compute.

Symptom: copies of one kind run while nothing computes.
Cause: depends on the kind of copy.
- h2d and d2h: the copy is issued too late, or it takes longer than the step's compute. If it already runs beside the
  compute, only the gaps between kernels are exposed. The copy widens these gaps (measured on an H200: from 1.5 to
  4 µs), because launches and copies share the link to the host.
- d2d: a copy on the device (`contiguous`, `cat`, gradient buckets) runs on the SMs, as a kernel does.
- p2p: the copy is on a stream with kernels, although the copy engine does not need the SMs.
- Managed memory: page faults.
Remedy: by kind, see the advice of each.

Claims the exposed time of each pair of kind and memory that is left, at most the compute that can hide it, and of
memsets. A copy on the device is not hidden but avoided, so its claim has no such limit.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.model.rows import CopyOverlap
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import duration, median_reordering, quantity, rate, share, size
from traceview.pricing.ledger import MEMSET, ExposedClaim, copy_key
from traceview.rules.pageable_copies import HOST_KINDS

MAX_KERNEL_GAP = 20_000  # ns; a longer exposed piece is a wait, not the gap between two kernels
MIN_MEMSET = 10_000  # ns; a shorter loss to memsets is worth no change
MIN_HIDDEN = 0.7  # the share of its time from which a copy counts as running beside the compute
KIND_NAMES = {"h2d": "host-to-device", "d2h": "device-to-host", "d2d": "device-to-device", "p2p": "GPU-to-GPU"}

PREFETCH = (
    "The copies have their own stream but start too late: issue the copy of the next batch before this step's "
    "kernels instead of after them, and prefetch two batches if loading times vary. The step must compute at least "
    "as long as it copies; otherwise send fewer bytes (uint8 or bf16 instead of float32, converted on the GPU)."
)
PREFETCH_CODE = """following = next(batches)      # on copy_stream, before this step's kernels
loss = step(current)
torch.cuda.current_stream().wait_stream(copy_stream); current = following"""
BETWEEN_KERNELS = (
    "of it in {pieces} gaps between kernels (median {typical}). The copy already runs beside the compute. It widens "
    "these gaps a little, because launches and copies share the link to the host. More prefetching does not help; "
    "fewer and longer kernels do: a CUDA graph, torch.compile or a larger batch."
)
BETWEEN_KERNELS_CODE = 'model = torch.compile(model, mode="reduce-overhead")'
READ_BACK = "Copy results to pinned memory on a separate stream, and read them one step later, after an event."
READ_BACK_CODE = (
    "with torch.cuda.stream(copy_stream): host.copy_(result, non_blocking=True)   # host: pinned, allocated once"
)
ON_DEVICE = (
    "A copy on the device runs on the SMs and takes time from kernels. Look for `.contiguous()`, `.clone()`, "
    "`torch.cat` and layout changes in the step. DDP's `gradient_as_bucket_view=True` saves one copy of all "
    "gradients."
)
ON_DEVICE_CODE = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
BETWEEN_GPUS = (
    "A copy from one GPU to another needs a copy engine and the link between them, but no SM: on its own stream it "
    "runs beside the kernels of both GPUs. `tensor.to` uses the current stream of both GPUs, so enter a copy stream "
    "on each. For gradients and activations of every step, use NCCL (DDP, pipeline parallelism) with one process "
    "per GPU."
)
BETWEEN_GPUS_CODE = """with torch.cuda.stream(copy_stream_of_0), torch.cuda.stream(copy_stream_of_1):
    there = here.to("cuda:1", non_blocking=True)"""
MIXED = (
    "The copies run on streams that also compute, so a kernel waits for the copy before it, and only the kernels of "
    "another stream can hide it. Copy the next batch on its own stream, before this step's kernels. The step must "
    "compute at least as long as it copies; otherwise send fewer bytes."
)
MANAGED = (
    "Managed memory moves page by page on first touch. Prefetch it before it is used, or use ordinary device memory."
)
MANAGED_CODE = "cudaMemPrefetchAsync(pointer, bytes, device, stream);"


def exposed_copies(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device, kind and memory, and one for each device's memsets."""
    for device in facts.devices:
        for copies in device.use.copies:
            if copies.memory == "pageable" and copies.kind in HOST_KINDS:
                continue  # `pageable_copies`
            gaps = _advice_for_kernel_gaps(device, copies)
            advice, code = gaps or _advice(copies, _mostly_on_compute_streams(facts, device, copies))
            kind = KIND_NAMES.get(copies.kind, copies.kind)
            hideable = None if copies.kind == "d2d" else device.compute_to_hide([copies.kind])
            limited = hideable is not None and hideable < copies.exposed_ns
            limit = f"; {duration(hideable or 0)} of compute can hide them" if limited else ""
            yield FindingDraft(
                id=f"exposed_{copies.kind}",
                device=device,
                title=f"{quantity(copies.count, kind + ' copy', kind + ' copies')} ({copies.memory} memory, "
                f"{size(copies.bytes)}): {share(copies.exposed_ns, copies.busy_ns)} of their time is not hidden "
                f"behind compute{limit}",
                advice=f"{duration(copies.exposed_ns)} of {duration(copies.busy_ns)} is exposed, at "
                f"{rate(copies.bytes, copies.busy_ns)}. {advice}",
                code=code,
                claims=(ExposedClaim((copy_key(copies.kind, copies.memory),)),),
                at_most=hideable,
                place_label=f"an exposed {kind} copy",
            )
        yield FindingDraft(
            id="exposed_memset",
            device=device,
            title="Memsets: {cost} not hidden behind compute",
            advice="Do not zero memory that is overwritten anyway: use `torch.empty` instead of `torch.zeros`, and "
            "`zero_grad(set_to_none=True)`.",
            code="optimizer.zero_grad(set_to_none=True)",
            claims=(ExposedClaim((MEMSET,)),),
            min_ns=MIN_MEMSET,
            place_label="an exposed memset",
        )


def _advice_for_kernel_gaps(device: DeviceFacts, copies: CopyOverlap) -> tuple[str, str] | None:
    """Return advice and code if copies are exposed mostly in the short gaps between kernels, else None."""
    if copies.kind not in ("h2d", "d2h") or copies.overlapped_ns < MIN_HIDDEN * copies.busy_ns:
        return None
    work, chosen = device.activity, device.copies.select(copies.kind, copies.memory)
    copying = intervals.union(work.start[chosen], work.end[chosen], ordered=True)
    exposed = intervals.subtract(copying, work.compute)
    lengths = exposed.end - exposed.start
    short = lengths[lengths < MAX_KERNEL_GAP]
    if 2 * int(short.sum()) < copies.exposed_ns or len(short) == 0:
        return None
    typical = duration(int(median_reordering(short)))
    gaps = BETWEEN_KERNELS.replace("{pieces}", f"{len(short):,}").replace("{typical}", typical)
    return f"{duration(int(short.sum()))} {gaps}", BETWEEN_KERNELS_CODE


def _mostly_on_compute_streams(facts: CaptureFacts, device: DeviceFacts, copies: CopyOverlap) -> bool:
    """Return whether most of these copies run on streams that also compute."""
    stream = facts.analysis.trace.operations["stream"].to_numpy()
    streams = stream[device.activity.rows[device.copies.select(copies.kind, copies.memory)]]
    computing = [use.stream for use in device.use.streams if use.compute_ns]
    return 2 * int(np.count_nonzero(np.isin(streams, computing))) > len(streams)


def _advice(copies: CopyOverlap, mixed: bool) -> tuple[str, str]:
    if copies.kind.startswith("um_"):
        return MANAGED, MANAGED_CODE
    if copies.kind == "p2p":
        return BETWEEN_GPUS, BETWEEN_GPUS_CODE
    if copies.kind == "d2d":
        return ON_DEVICE, ON_DEVICE_CODE
    if copies.kind == "d2h":
        return READ_BACK, READ_BACK_CODE
    return (MIXED if mixed else PREFETCH), PREFETCH_CODE
