"""Compute that a known change makes faster: precision, attention, optimizer, layout, shapes, fusion.

Symptom: kernels whose names show it: FP32 matrix products without tensor cores, softmax between two products, an
optimizer tensor by tensor, layout changes, products with odd dimensions, equal small products, kernels that only move,
convert or set data, chains of memory-bound kernels.
Cause: defaults of libraries, or a model written operation by operation.
Remedy: one change each; `traceview whatif` predicts what most of them give.

Claims the compute time of the kernels that the change is expected to save (traceview.pricing.speedups). bfloat16
is an alternative of TF32 and has no finding of its own unless TF32 is already on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from traceview.model.units import duration
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import KernelClaim
from traceview.pricing.speedups import FINDABLE, Estimate, Speedup
from traceview.pricing.speedups.steps import Savings
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


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield one finding for each change that makes kernels faster."""
    drafted = set[str]()
    for speedup in FINDABLE:
        name = FINDINGS[speedup.name]
        if name in drafted or not fits(speedup.programs, capture.program):
            continue
        estimate = speedup.estimate(device.kernels)
        if not isinstance(estimate, str) and (savings := estimate.savings(device.kernels)).expected > 0:
            drafted.add(name)
            yield _draft(device, speedup, estimate, savings)


def _draft(device: GpuWork, speedup: Speedup, estimate: Estimate, savings: Savings) -> FindingDraft:
    shorter = estimate.middle < 1
    rows = device.kernels.places[estimate.rows[shorter]]
    # Subtract the time of kernels that the change makes slower.
    claim = KernelClaim(rows, (1 - estimate.middle[shorter]) * (savings.expected / savings.gross))
    values = {
        "detail": estimate.detail,
        "least": duration(max(savings.least, 0)),
        "most": duration(max(savings.most, 0)),
        "metrics": metric_sentence(device.use),
        "speedup": speedup.title,
    }
    return FindingDraft(FINDINGS[speedup.name], device, (claim,), values, _case(speedup, estimate))


def _case(speedup: Speedup, estimate: Estimate) -> str:
    """Return the case of a finding: FP16, bfloat16, or layouts of a network with convolutions of volumes."""
    if speedup.name == "channels-last" and "volume" in estimate.groups:
        return "volumes"
    return speedup.name if speedup.name in ("fp16", "bf16") else ""


slow_kernels = Rule("slow_kernels", find)
