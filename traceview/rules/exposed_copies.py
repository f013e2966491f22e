"""Copies that nothing hides.

Symptom: copies of one kind run while nothing computes, although they have a stream of their own.
Cause: h2d and d2h: issued too late, or more bytes than the step's compute can hide; or nothing but the gaps
between kernels, which a copy beside them widens, because commands and copies share the link to the host
(measured on an H200: from 1.5 to 4 us). d2d: a kernel in all but name (`contiguous`, `cat`, gradient buckets),
which takes the SMs' time. p2p: on a stream with kernels, though the copy engine needs none of them.
Managed memory: page faults.
Remedy: by kind, as the advice says.

Claims the exposed time of each (kind, memory) that is left; d2d and other kinds included.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.model.analysis import CopyOverlap
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import duration, many, rate, share, size
from traceview.pricing.largest import middle
from traceview.pricing.ledger import MEMSET, Exposed, copy_key

PREFETCH = (
    "They have a stream of their own, so what is missing is time: issue the copy of the next batch "
    "before this step's kernels, not after them, and fetch two batches ahead where loading is "
    "uneven. It pays as far as the step computes at least as long as it copies; beyond that, send "
    "fewer bytes (uint8 or bf16 instead of float32, converted on the GPU)."
)
PREFETCH_CODE = """following = next(batches)      # on copy_stream, before this step's kernels
loss = step(current)
torch.cuda.current_stream().wait_stream(copy_stream); current = following"""
BETWEEN_KERNELS = (
    "of it in {pieces} gaps between kernels, {typical} each as a rule: the copy runs beside the compute already, and "
    "widens these gaps a little, because launches and copies share the link to the host. There is nothing left to "
    "prefetch; fewer and longer kernels hide the rest: a CUDA graph, torch.compile, a larger batch."
)
BETWEEN_KERNELS_CODE = 'model = torch.compile(model, mode="reduce-overhead")'
SHORT_NS = 20_000  # a gap between two kernels; what is longer is a wait
HIDDEN = 0.7  # from this share on a copy runs beside the compute
READ_BACK = (
    "Copy results to pinned memory on a stream of their own, and read them a step later, after an event."
)
READ_BACK_CODE = (
    "with torch.cuda.stream(copy_stream): host.copy_(result, non_blocking=True)   # host: pinned, made once"
)
ON_DEVICE = (
    "A copy on the device runs on the SMs and takes kernels' time: look for `.contiguous()`, "
    "`.clone()`, `torch.cat` and layout changes in the step; DDP's `gradient_as_bucket_view=True` "
    "saves one copy of all gradients."
)
ON_DEVICE_CODE = "DistributedDataParallel(model, gradient_as_bucket_view=True)"
BETWEEN_GPUS = (
    "A copy from one GPU to another needs a copy engine and the link between them, and no SM: on a stream of its "
    "own it runs beside the kernels of both. `tensor.to` uses the current stream of both GPUs: enter a copy stream of "
    "each. For gradients and activations of every step let NCCL do it (DDP, a pipeline), one process a GPU."
)
BETWEEN_GPUS_CODE = """with torch.cuda.stream(copy_stream_of_0), torch.cuda.stream(copy_stream_of_1):
    there = here.to("cuda:1", non_blocking=True)"""
MIXED = (
    "They run on streams that compute as well, so a kernel waits for the copy before it, and only the kernels of "
    "another stream can hide it. Copy the next batch on a stream of its own, before this step's kernels. It pays as "
    "far as the step computes at least as long as it copies; beyond that, send fewer bytes."
)
MANAGED = (
    "Managed memory moves page by page on first touch: prefetch it before use, or use ordinary device memory."
)
MANAGED_CODE = "cudaMemPrefetchAsync(pointer, bytes, device, stream);"


def exposed_copies(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each kind and memory of each device."""
    for device in facts.devices:
        for one in device.use.copies:
            gaps = _between_kernels(device, one)
            advice, code = gaps or _advice(one, _on_streams_of_kernels(facts, device, one))
            yield Draft(
                id=f"exposed_{one.kind}",
                device=device,
                title=f"{many(one.count, one.kind + ' copy', one.kind + ' copies')} ({one.memory} "
                f"memory, {size(one.bytes)}): {share(one.exposed_ns, one.busy_ns)} of their time "
                "nothing computes",
                advice=f"{duration(one.exposed_ns)} of {duration(one.busy_ns)} is exposed, at "
                f"{rate(one.bytes, one.busy_ns)}. {advice}",
                code=code,
                claims=(Exposed((copy_key(one.kind, one.memory),)),),
                severity="low" if gaps else None,
                place=f"an exposed {one.kind} copy",
            )
        yield Draft(
            id="exposed_memset",
            device=device,
            title="Memory is set to a value for {cost} while nothing computes",
            advice="Avoid zeroing what is overwritten anyway: `torch.empty` for `torch.zeros`, "
            "`zero_grad(set_to_none=True)`.",
            code="optimizer.zero_grad(set_to_none=True)",
            claims=(Exposed((MEMSET,)),),
            place="an exposed memset",
        )


def _between_kernels(device: DeviceFacts, one: CopyOverlap) -> tuple[str, str] | None:
    """Return advice for copies that run beside the compute, but for the short gaps in it; None for others."""
    if one.kind not in ("h2d", "d2h") or one.overlapped_ns < HIDDEN * one.busy_ns:
        return None
    work, chosen = device.activity, device.copies.those(one.kind, one.memory)
    copies = intervals.union(work.start[chosen], work.end[chosen], ordered=True)
    exposed = intervals.subtract(copies, work.compute)
    lengths = exposed.end - exposed.start
    short = lengths[lengths < SHORT_NS]
    if 2 * int(short.sum()) < one.exposed_ns or len(short) == 0:
        return None
    gaps = BETWEEN_KERNELS.replace("{pieces}", f"{len(short):,}").replace("{typical}", duration(int(middle(short))))
    return f"{duration(int(short.sum()))} {gaps}", BETWEEN_KERNELS_CODE


def _on_streams_of_kernels(facts: Facts, device: DeviceFacts, one: CopyOverlap) -> bool:
    """Return whether most copies of this kind run on streams that have kernels too."""
    stream = facts.analysis.trace.operations["stream"].to_numpy()
    chosen = stream[device.activity.rows[device.copies.those(one.kind, one.memory)]]
    computing = [use.stream for use in device.use.streams if use.compute_ns]
    return 2 * int(np.count_nonzero(np.isin(chosen, computing))) > len(chosen)


def _advice(one: CopyOverlap, mixed: bool) -> tuple[str, str]:
    if one.kind.startswith("um_"):
        return MANAGED, MANAGED_CODE
    if one.kind == "p2p":
        return BETWEEN_GPUS, BETWEEN_GPUS_CODE
    if one.kind == "d2d":
        return ON_DEVICE, ON_DEVICE_CODE
    if one.kind == "d2h":
        return READ_BACK, READ_BACK_CODE
    return (MIXED if mixed else PREFETCH), PREFETCH_CODE
