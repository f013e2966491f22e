"""Copies take longer than the compute that could hide them.

Symptom: copies are exposed for longer than the kernels run.
Cause: each byte is used too little on the GPU: data goes back and forth between kernels, or the kernels are short.
Remedy: keep data on the GPU, send fewer bytes, copy at the rate of pinned memory. Overlap helps only as far as there is
compute.

Claims the exposed time of copies beyond the compute. The rest belongs to the rules on overlap.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model.rows import CopyOverlap
from traceview.model.trace import MEMORIES
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import duration, join_words, rate, size
from traceview.pricing.ledger import ExposedClaim, copy_key

KINDS = ("h2d", "d2h", "h2h", "p2p", "um_h2d", "um_d2h", "um_d2d", "other")  # a copy on the device is work of its SMs
MIN_NAMED = 0.1  # of the exposed time
ADVICE = (
    "Overlap hides copies only behind compute. Keep data on the GPU between kernels instead of copying it back and "
    "forth, copy only what changed, or send smaller types and convert them on the GPU."
)
PINNED_ADVICE = " Copies from and to pinned memory run two to four times as fast as these from and to pageable memory."
CODE = "cudaHostRegister(data, bytes, cudaHostRegisterDefault);   // once: pins memory that exists already"


def copy_bound(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device whose copies take longer than its compute."""
    for device in facts.devices:
        copies = [use for use in device.use.copies if use.kind in KINDS]
        exposed = sum(use.exposed_ns for use in copies)
        if exposed > device.use.compute_ns:
            yield _draft(device, [use for use in copies if use.exposed_ns >= MIN_NAMED * exposed], exposed)


def _draft(device: DeviceFacts, copies: list[CopyOverlap], exposed: int) -> FindingDraft:
    copies.sort(key=lambda use: -use.exposed_ns)
    compute = device.use.compute_ns
    parts = [f"{size(use.bytes)} {use.label} at {rate(use.bytes, use.busy_ns)}" for use in copies]
    pageable = any(use.memory == "pageable" for use in copies)
    return FindingDraft(
        id="copy_bound",
        device=device,
        title=f"Copies take {duration(exposed)} while nothing computes, the kernels {duration(compute)}: {{cost}} of "
        f"copying cannot be hidden ({join_words(parts)})",
        advice=ADVICE + (PINNED_ADVICE if pageable else ""),
        code=CODE if pageable else "",
        claims=(ExposedClaim(tuple(copy_key(kind, memory) for kind in KINDS for memory in MEMORIES)),),
        at_most=exposed - compute,
        place_label="a copy while nothing computes",
    )
