"""Compute that a known change makes faster: precision, attention, optimizer, layout, shapes, fusion.

Symptom: kernels whose names show it: FP32 matrix products without tensor cores, softmax between two products, an
optimizer tensor by tensor, layout changes, products with odd dimensions, equal small products, kernels that only move,
convert or set data, chains of memory-bound kernels.
Cause: defaults of libraries, or a model written operation by operation.
Remedy: one change each; `traceview whatif` predicts what most of them give.

Claims the part of the kernels' compute time that the change is expected to save (traceview.pricing.speedups). bfloat16
is an alternative of TF32 and has no finding of its own unless TF32 is already on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from traceview.model.program import Program
from traceview.model.units import duration
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, ComputeClaim, Group, KernelGroup
from traceview.pricing.speedups import FINDABLE, Speedup
from traceview.pricing.speedups.steps import Candidates, SpeedupDecision, SpeedupSums
from traceview.pricing.texts import fits
from traceview.rules.shared_gpu import metric_sentence

FINDINGS: Mapping[str, str] = {  # by the name of the speedup
    "sdpa": "separate_attention",
    "fused-optimizer": "unfused_optimizer",
    "channels-last": "layout_changes",
    "pad": "odd_dimensions",
    "batch": "small_products",
    "tf32": "fp32_matrix",
    "fp16": "fp32_matrix",
    "bf16": "fp32_matrix",
    "zeroed-gradients": "zeroed_gradients",
    "embedding": "embedding_gradients",
    "casts": "casts",
    "concatenate": "concatenations",
    "contiguous": "strided_copies",
    "compile": "unfused_chains",
}


class _SlowKernelsSums(NamedTuple):
    """The ns of all kernels, and the sums of each speedup by name."""

    kernel_ns: int
    speedups: dict[str, SpeedupSums]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_SlowKernelsSums]:
    """Group the kernels that each change may make faster."""
    sums, groups = dict[str, SpeedupSums](), dict[str, Group]()
    for speedup in _fitting(part.program):
        candidates = speedup.candidates(device.kernels)
        sums[speedup.name] = speedup.sums(candidates)
        if len(candidates.rows):
            groups[speedup.name] = _group(speedup, candidates)
    return Collected(_SlowKernelsSums(int(device.kernels.ns.sum()), sums), groups)


def _fitting(program: Program) -> Iterator[Speedup]:
    """Yield the changes whose findings make sense for a program, in the order of their claims."""
    return (speedup for speedup in FINDABLE if fits(speedup.programs, program))


def _group(speedup: Speedup, candidates: Candidates) -> KernelGroup:
    """Return kernels to claim: with the saved fraction of each if it is known, otherwise with labels."""
    rows, labels, left = candidates.kernels.places[candidates.rows], candidates.labels, candidates.left
    if left is not None:
        shorter = left[1] < 1
        return KernelGroup(rows[shorter], 1 - left[1][shorter])
    most = np.where((labels & speedup.gone_bits) > 0, 1.0, 1 - candidates.floors)
    can_gain = most > 0
    return KernelGroup(rows[can_gain], labels=labels[can_gain], limits=most[can_gain])


def _decide(facts: CaptureFacts, sums: Mapping[int, _SlowKernelsSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device and change that makes its kernels faster."""
    for device in facts.devices:
        own, gpu = sums[device.row], facts.analysis.trace.devices["name"][device.row]
        drafts: dict[str, FindingDraft] = {}
        for speedup in _fitting(facts.program):
            decision = speedup.decision(own.speedups[speedup.name], own.kernel_ns, gpu)
            if isinstance(decision, SpeedupDecision):
                drafted = _drafts(facts, device, speedup, decision, own.speedups[speedup.name])
                drafts |= {draft.id: draft for draft in drafted if draft.id not in drafts}
        yield from drafts.values()


def _drafts(
    facts: CaptureFacts, device: DeviceFacts, speedup: Speedup, decision: SpeedupDecision, sums: SpeedupSums
) -> Iterator[FindingDraft]:
    """Yield the finding of a change that saves time."""
    savings = speedup.savings(decision, sums)
    if savings.expected <= 0:
        return
    ranges = speedup.ranges(decision, list(sums.lengths))
    saved = {label: 1 - middle for label, (_, middle, _) in ranges.items() if middle < 1}
    # Subtract the time of kernels that the change makes slower.
    claim = ComputeClaim(speedup.name, saved, scale=savings.expected / savings.gross)
    values = {
        "detail": decision.detail,
        "least": duration(max(savings.least, 0)),
        "most": duration(max(savings.most, 0)),
        "metrics": metric_sentence(device.use),
        "speedup": speedup.title,
    }
    yield FindingDraft(FINDINGS[speedup.name], device, (claim,), values, _case(speedup, sums))


def _case(speedup: Speedup, sums: SpeedupSums) -> str:
    """Return the case of a finding: FP16, bfloat16, or layouts of a network with convolutions of volumes."""
    if speedup.name == "channels-last" and any(label & speedup.bit("volume") for label in sums.numbers):
        return "volumes"
    return speedup.name if speedup.name in ("fp16", "bf16") else ""


slow_kernels = OldRule("slow_kernels", _decide, _collect, place=230)
