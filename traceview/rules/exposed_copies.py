"""Copies that nothing hides.

Symptom: copies of one kind run while nothing computes, although they have a stream of their own.
Cause: h2d and d2h: issued too late, or more bytes than the step's compute can hide. d2d: a kernel in all
but name (`contiguous`, `cat`, gradient buckets), which takes the SMs' time. Managed memory: page faults.
Remedy: by kind, as the advice says.

Claims the exposed time of each (kind, memory) that is left; d2d and other kinds included.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model import CopyOverlap
from traceview.rules.base import Draft, Facts
from traceview.rules.ledger import MEMSET, Exposed, copy_key
from traceview.rules.words import duration, many, rate, share, size

PREFETCH = (
    "They have a stream of their own, so what is missing is time: issue the copy of the next batch "
    "before this step's kernels, not after them, and fetch two batches ahead where loading is "
    "uneven. It pays as far as the step computes at least as long as it copies; beyond that, send "
    "fewer bytes (uint8 or bf16 instead of float32, converted on the GPU)."
)
PREFETCH_CODE = """following = next(batches)      # on copy_stream, before this step's kernels
loss = step(current)
torch.cuda.current_stream().wait_stream(copy_stream); current = following"""
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
MANAGED = (
    "Managed memory moves page by page on first touch: prefetch it before use, or use ordinary device memory."
)
MANAGED_CODE = "cudaMemPrefetchAsync(pointer, bytes, device, stream);"


def exposed_copies(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each kind and memory of each device."""
    for device in facts.devices:
        for one in device.use.copies:
            advice, code = _advice(one)
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


def _advice(one: CopyOverlap) -> tuple[str, str]:
    if one.kind.startswith("um_"):
        return MANAGED, MANAGED_CODE
    if one.kind in ("d2d", "p2p"):
        return ON_DEVICE, ON_DEVICE_CODE
    return (READ_BACK, READ_BACK_CODE) if one.kind == "d2h" else (PREFETCH, PREFETCH_CODE)
