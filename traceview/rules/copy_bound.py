"""Copies take longer than the compute that could hide them.

Symptom: copies are exposed for longer than the kernels run.
Cause: the GPU computes too little with each byte: data goes back and forth between kernels, or kernels are short.
Remedy: keep data on the GPU, or send fewer bytes. Overlap helps only as far as there is compute.

Many copies of the same sizes in each iteration of an inference are the weights of layers that do not fit (offloading):
the same work again.

Claims the exposed time of copies that pinned memory and overlap cannot remove, before the rules that suggest them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.model.rows import CopyOverlap
from traceview.model.trace import KINDS as ALL_KINDS
from traceview.model.trace import MEMORIES
from traceview.model.units import duration, rate, size
from traceview.pricing.accounts import copy_key
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import TimeClaim
from traceview.pricing.texts import join_words
from traceview.rules.pageable_copies import pageable, pinned_remainder

KINDS = ("h2d", "d2h", "h2h", "p2p", "um_h2d", "um_d2h", "um_d2d", "other")  # a copy on the device is work of its SMs
MIN_NAMED = 0.1  # share of the exposed time
MIN_WEIGHTS = 8  # copies to the GPU in an iteration, more than a batch has
MIN_REPEATED = 0.9  # share of these copies whose size occurs in each iteration


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding for a GPU whose copies take longer than its compute."""
    copies = [use for use in device.use.copies if use.kind in KINDS and use.exposed_ns]
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
    claim = TimeClaim(tuple(copy_key(kind, memory) for kind in KINDS for memory in MEMORIES))
    yield FindingDraft("exposed_copies", device, (claim,), values, at_most=remaining)


def _unavoidable_ns(device: GpuWork, copies: list[CopyOverlap]) -> int:
    """Return the exposed ns that pinned memory and overlap cannot remove."""
    blocking = pageable(copies)
    other = sum(use.exposed_ns for use in copies) - sum(use.exposed_ns for use in blocking)
    rest = max(other - device.use.compute_ns, 0)
    return rest + (pinned_remainder(device.use, blocking) if blocking else 0)


def _repeated_copies(capture: MeasuredCapture, device: GpuWork) -> str:
    """Return a sentence if an inference copies many tensors of the same sizes to the GPU in each iteration, else ""."""
    counted = capture.counted
    if capture.program.training is not False or not counted:
        return ""
    to_gpu = device.column("kind") == ALL_KINDS.index("h2d")
    sizes = device.column("bytes")[to_gpu]
    counts = np.unique(sizes, return_counts=True)[1]
    if len(sizes) < MIN_WEIGHTS * counted or counts[counts >= counted].sum() < MIN_REPEATED * len(sizes):
        return ""
    return (
        f"{len(sizes) / counted:.0f} copies ({size(int(sizes.sum()) // counted)}) have the same sizes in each "
        "iteration: if they are weights, keep the layers that fit on the GPU, or quantize them. "
    )


copy_bound = Rule("copy_bound", find)
