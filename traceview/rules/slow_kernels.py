"""Compute that a known change makes faster: precision, attention, optimizer, layout, shapes, fusion.

Symptom: kernels whose names show it: FP32 matrix products without tensor cores, softmax between two products, an
optimizer tensor by tensor, layout changes, products with odd dimensions, equal small products, kernels that only move,
convert or set data, chains of memory-bound kernels.
Cause: defaults of libraries, or a model written operation by operation.
Remedy: one change each; `traceview whatif` predicts what most of them give.

Claims the part of the kernels' compute time that the change is expected to save (traceview.speedups). bfloat16 is an
alternative of TF32 and has no finding of its own unless TF32 is already on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from traceview.model.program import Program
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, Rule
from traceview.pricing.claims import Collected, ComputeClaim, Group, KernelGroup
from traceview.pricing.fixes import Fixes
from traceview.rules.advice.compute import (
    ATTENTION,
    CASTS,
    CHAINS,
    CONCATENATIONS,
    EMBEDDING_GRADIENTS,
    FP32_MATRIX,
    FP32_ON_OLD_GPU,
    LAYOUT,
    ODD_DIMENSIONS,
    OPTIMIZER,
    SMALL_PRODUCTS,
    STRIDED_COPIES,
    ZEROED_GRADIENTS,
)
from traceview.rules.shared_gpu import metric_sentence
from traceview.speedups import FINDABLE, SPEEDUPS, Speedup
from traceview.speedups.steps import Candidates, SpeedupDecision, SpeedupSums
from traceview.units import duration


@dataclass(frozen=True, slots=True)
class _Subject:
    """A finding's id, title and fixes. `pytorch_only` needs a program in PyTorch, `training_only` one that trains."""

    id: str
    title: str
    fixes: Fixes
    pytorch_only: bool = False
    training_only: bool = False

    def fits(self, program: Program) -> bool:
        """Return whether the finding makes sense for a program."""
        trains = program.training is not False or not self.training_only
        return trains and (program.kind == "pytorch" or not self.pytorch_only)


SUBJECTS: Mapping[str, _Subject] = {
    "sdpa": _Subject(
        "separate_attention", "Attention runs as separate kernels: one kernel saves about {cost}", ATTENTION
    ),
    "fused-optimizer": _Subject(
        "unfused_optimizer",
        "The optimizer is not fused: a fused one saves about {cost} of GPU time",
        OPTIMIZER,
        pytorch_only=True,
        training_only=True,
    ),
    "channels-last": _Subject(
        "layout_changes", "Image layouts are converted: channels-last saves about {cost}", LAYOUT
    ),
    "pad": _Subject(
        "odd_dimensions", "Matrix products have odd dimensions: padding them saves about {cost}", ODD_DIMENSIONS
    ),
    "batch": _Subject(
        "small_products", "Equal small products run one by one: a batched product saves about {cost}", SMALL_PRODUCTS
    ),
    "tf32": _Subject(
        "fp32_matrix", "Matrix products run in FP32 without tensor cores: TF32 saves about {cost}", FP32_MATRIX
    ),
    "fp16": _Subject(
        "fp32_matrix", "Matrix products run in FP32 without tensor cores: FP16 saves about {cost}", FP32_ON_OLD_GPU
    ),
    "zeroed-gradients": _Subject(
        "zeroed_gradients",
        "Gradients are set to zero: dropping them saves {cost}",
        ZEROED_GRADIENTS,
        pytorch_only=True,
        training_only=True,
    ),
    "embedding": _Subject(
        "embedding_gradients",
        "Dense gradients of embeddings sort their indices: sparse or fused updates save about {cost}",
        EMBEDDING_GRADIENTS,
        pytorch_only=True,
        training_only=True,
    ),
    "casts": _Subject(
        "casts", "Tensors are converted between precisions: fewer casts save about {cost}", CASTS, pytorch_only=True
    ),
    "concatenate": _Subject(
        "concatenations",
        "Tensors are concatenated: writing parts in place saves about {cost}",
        CONCATENATIONS,
        pytorch_only=True,
    ),
    "contiguous": _Subject(
        "strided_copies",
        "Tensors are copied into another order of elements: about {cost} can go",
        STRIDED_COPIES,
        pytorch_only=True,
    ),
    "compile": _Subject(
        "unfused_chains",
        "Memory-bound kernels run one by one: fusing them saves about {cost}",
        CHAINS,
        pytorch_only=True,
    ),
}


class _Sums(NamedTuple):
    """The ns of all kernels, and the sums of each speedup by name."""

    kernel_ns: int
    speedups: dict[str, SpeedupSums]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_Sums]:
    """Group the kernels that each change may make faster."""
    sums, groups = dict[str, SpeedupSums](), dict[str, Group]()
    for speedup in _fitting(part.program):
        candidates = speedup.candidates(device.nearby, device.counted)
        sums[speedup.name] = speedup.sums(candidates)
        if len(candidates.rows):
            groups[speedup.name] = _group(speedup, candidates)
    return Collected(_Sums(int(device.kernels.ns.sum()), sums), groups)


def _fitting(program: Program) -> Iterator[Speedup]:
    """Yield the changes whose findings make sense for a program, in the order of their claims."""
    return (speedup for speedup in FINDABLE if SUBJECTS[speedup.name].fits(program))


def _group(speedup: Speedup, candidates: Candidates) -> KernelGroup:
    """Return kernels to claim: with the saved fraction of each if it is known, otherwise with labels."""
    rows, labels, left = candidates.kernels.places[candidates.rows], candidates.labels, candidates.left
    if left is not None:
        shorter = left[1] < 1
        return KernelGroup(rows[shorter], 1 - left[1][shorter])
    most = np.where((labels & speedup.gone_bits) > 0, 1.0, 1 - candidates.floors[1])
    can_gain = most > 0
    return KernelGroup(rows[can_gain], labels=labels[can_gain], limits=most[can_gain])


def _decide(facts: CaptureFacts, sums: Mapping[int, _Sums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device and change that makes its kernels faster."""
    for device in facts.devices:
        own, gpu = sums[device.row], facts.analysis.trace.devices["name"][device.row]
        for speedup in _fitting(facts.program):
            decision = speedup.decision(own.speedups[speedup.name], own.kernel_ns, gpu)
            if isinstance(decision, SpeedupDecision):
                yield from _drafts(facts, device, speedup, decision, own.speedups[speedup.name])


def _drafts(
    facts: CaptureFacts, device: DeviceFacts, speedup: Speedup, decision: SpeedupDecision, sums: SpeedupSums
) -> Iterator[FindingDraft]:
    """Yield the finding of a change that saves time."""
    subject, savings = SUBJECTS[speedup.name], speedup.savings(decision, sums)
    if savings.expected <= 0:
        return
    fix = subject.fixes.choose(facts.program)
    least, most = (duration(max(ns, 0)) for ns in (savings.least, savings.most))
    ranges = speedup.ranges(decision, list(sums.lengths))
    saved = {label: 1 - middle for label, (_, middle, _) in ranges.items() if middle < 1}
    yield FindingDraft(
        id=subject.id,
        device=device,
        title=subject.title,
        advice=f"{decision.detail}. Expected saving, if nothing else changes: {least} to {most} of kernel time."
        f"{metric_sentence(device.use) if subject.id == 'fp32_matrix' else ''} {fix.advice}",
        code=fix.code,
        remedy=fix.remedy,
        change=speedup.name if speedup in SPEEDUPS else "",
        # Subtract the time of kernels that the change makes slower.
        claims=(ComputeClaim(speedup.name, saved, scale=savings.expected / savings.gross),),
        place_label=speedup.title,
    )


slow_kernels = Rule("slow_kernels", _decide, _collect)
