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

import numpy as np

from traceview.frozen import frozen
from traceview.model.program import Program
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.fixes import Fixes
from traceview.pricing.ledger import ComputeClaim
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
from traceview.speedups import FINDABLE, SPEEDUPS, Estimate, Speedup
from traceview.units import duration


@frozen
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


def slow_kernels(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device and change that makes its kernels faster."""
    for device in facts.devices:
        for speedup in FINDABLE:
            subject = SUBJECTS[speedup.name]
            if subject.fits(facts.program):
                yield from _drafts(facts, device, subject, speedup)


def _drafts(facts: CaptureFacts, device: DeviceFacts, subject: _Subject, speedup: Speedup) -> Iterator[FindingDraft]:
    """Yield the finding of a change that applies. Its estimate, several arrays over all kernels, is freed on return."""
    kernels, sums = device.nearby, f"saved by {speedup.name}"
    estimate = speedup.estimate(kernels) if device.totals.occurs(sums) else None
    if not isinstance(estimate, Estimate):
        return
    estimate = estimate.inside(kernels.own)
    fix = subject.fixes.choose(facts.program)
    ns = kernels.ns[estimate.rows]
    shorter = estimate.middle < 1
    saved = np.rint(ns * (1 - estimate.middle)).astype(np.int64)
    figures = {"gross": int(saved[shorter].sum()), "net": int(saved.sum())}
    figures = device.total(sums, figures)
    gross, net = figures["gross"], figures["net"]
    if net <= 0:
        return
    limits = {name: int((ns * (1 - left)).sum()) for name, left in (("least", estimate.high), ("most", estimate.low))}
    limits = device.shown(f"limits of {speedup.name}", limits)
    least, most = (duration(max(limits[name], 0)) for name in ("least", "most"))
    yield FindingDraft(
        id=subject.id,
        device=device,
        title=subject.title,
        advice=f"{estimate.detail}. Expected saving, if nothing else changes: {least} to {most} of kernel time."
        f"{metric_sentence(device.use) if subject.id == 'fp32_matrix' else ''} {fix.advice}",
        code=fix.code,
        remedy=fix.remedy,
        change=speedup.name if speedup in SPEEDUPS else "",
        # Subtract the time of kernels that the change makes slower.
        claims=(ComputeClaim(kernels.places[estimate.rows[shorter]], (1 - estimate.middle[shorter]) * (net / gross)),),
        place_label=speedup.title,
    )
