"""Speedups: what changes to the compute leave of the time of each kernel, for findings and predictions alike.

SPEEDUPS are those that `traceview whatif` predicts. FINDABLE are those that findings price, the most specific first.
"""

from __future__ import annotations

from traceview.pricing.speedups.matrices import BATCH, BF16, CHANNELS_LAST, FP16, PAD, TF32
from traceview.pricing.speedups.memory import (
    CASTS,
    COMPILE,
    CONCATENATE,
    EMBEDDING,
    FUSED_OPTIMIZER,
    SDPA,
    STRIDED_COPY,
    ZEROED,
)
from traceview.pricing.speedups.steps import Estimate, KernelSequence, Speedup

__all__ = ["BATCH", "FINDABLE", "SPEEDUPS", "Estimate", "KernelSequence", "Speedup"]


SPEEDUPS: tuple[Speedup, ...] = (SDPA, FUSED_OPTIMIZER, CHANNELS_LAST, PAD, BATCH, TF32, BF16, COMPILE)
MOVES = (ZEROED, EMBEDDING, CASTS, CONCATENATE, STRIDED_COPY)
FINDABLE: tuple[Speedup, ...] = (SDPA, FUSED_OPTIMIZER, CHANNELS_LAST, PAD, BATCH, TF32, FP16, BF16, *MOVES, COMPILE)
