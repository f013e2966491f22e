"""Copies take longer than the compute that could hide them.

Symptom: copies are exposed for longer than the kernels run.
Cause: the GPU computes too little with each byte: data goes back and forth between kernels, or kernels are short.
Remedy: keep data on the GPU, or send fewer bytes. Overlap helps only as far as there is compute.

Many copies of the same sizes in each iteration of an inference are the weights of layers that do not fit (offloading):
the same work again.

Claims the exposed time of copies that pinned memory and overlap cannot remove, before the rules that suggest them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from traceview.model.program import Program
from traceview.model.rows import CopyOverlap
from traceview.model.sums import Counts
from traceview.model.trace import KINDS as ALL_KINDS
from traceview.model.trace import MEMORIES
from traceview.model.units import duration, rate, size
from traceview.pricing.accounts import copy_key
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, ExposedClaim
from traceview.pricing.texts import join_words
from traceview.rules.pageable_copies import pageable, pinned_remainder

KINDS = ("h2d", "d2h", "h2h", "p2p", "um_h2d", "um_d2h", "um_d2d", "other")  # a copy on the device is work of its SMs
MIN_NAMED = 0.1  # share of the exposed time
MIN_WEIGHTS = 8  # copies to the GPU in an iteration, more than a batch has
MIN_REPEATED = 0.9  # share of these copies whose size occurs in each iteration


class _CopyBoundSums(NamedTuple):
    """The sizes of copies to the GPU."""

    sizes: Counts


def _collect(part: CapturePart, device: DevicePart) -> Collected[_CopyBoundSums]:
    trace = part.trace
    if not _may_repeat(part.program, part.counted):
        return Collected(_CopyBoundSums(Counts.from_values(np.zeros(0, np.int64))))
    to_gpu = device.column(trace, "kind") == ALL_KINDS.index("h2d")
    return Collected(_CopyBoundSums(Counts.from_values(device.column(trace, "bytes")[to_gpu])))


def _may_repeat(program: Program, counted: int | None) -> bool:
    """Return whether copies of equal sizes can be weights: in each iteration of an inference."""
    return program.training is False and bool(counted)


def _decide(facts: CaptureFacts, sums: Mapping[int, _CopyBoundSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device whose copies take longer than its compute."""
    for device in facts.devices:
        copies = [use for use in device.use.copies if use.kind in KINDS and use.exposed_ns]
        remaining = _unavoidable_ns(device, copies)
        if remaining > 0:
            yield _draft(facts, device, copies, remaining, sums[device.row].sizes)


def _unavoidable_ns(device: DeviceFacts, copies: list[CopyOverlap]) -> int:
    """Return the exposed ns that pinned memory and overlap cannot remove."""
    blocking = pageable(copies)
    other = sum(use.exposed_ns for use in copies) - sum(use.exposed_ns for use in blocking)
    rest = max(other - device.use.compute_ns, 0)
    return rest + (pinned_remainder(device.use, blocking) if blocking else 0)


def _draft(
    facts: CaptureFacts, device: DeviceFacts, copies: list[CopyOverlap], remaining: int, to_gpu: Counts
) -> FindingDraft:
    exposed, compute = sum(use.exposed_ns for use in copies), device.use.compute_ns
    named = sorted(copies, key=lambda use: -use.exposed_ns)
    parts = [
        f"{size(use.bytes)} {use.label} at {rate(use.bytes, use.busy_ns)}"
        for use in named
        if use.exposed_ns >= MIN_NAMED * exposed
    ]
    values = {
        "exposed": duration(exposed),
        "compute": duration(compute),
        "parts": join_words(parts),
        "repeated": _repeated_copies(facts, to_gpu),
    }
    claim = ExposedClaim(tuple(copy_key(kind, memory) for kind in KINDS for memory in MEMORIES))
    return FindingDraft("exposed_copies", device, (claim,), values, at_most=remaining)


def _repeated_copies(facts: CaptureFacts, to_gpu: Counts) -> str:
    """Return a sentence if an inference copies many tensors of the same sizes to the GPU in each iteration, else ""."""
    counted = facts.counted
    if not counted or not _may_repeat(facts.program, counted):
        return ""
    sizes, counts = to_gpu
    count = int(counts.sum())
    repeated = int(counts[counts >= counted].sum())
    if count < MIN_WEIGHTS * counted or repeated < MIN_REPEATED * count:
        return ""
    return (
        f"{count / counted:.0f} copies ({size(int((sizes * counts).sum()) // counted)}) have the same sizes in each "
        "iteration: if they are weights, keep the layers that fit on the GPU, or quantize them. "
    )


copy_bound = OldRule("copy_bound", _decide, _collect, place=80)
