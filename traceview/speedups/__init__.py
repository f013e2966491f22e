"""Speedups: what changes to the compute leave of the time of each kernel, for findings and predictions alike.

SPEEDUPS are those that `traceview whatif` predicts. FINDABLE are those that findings price, the most specific first.
"""

from traceview.speedups.base import KernelSequence
from traceview.speedups.fusion import COMPILE, FUSED_OPTIMIZER, SDPA
from traceview.speedups.memory import CASTS, CONCATENATE, EMBEDDING, STRIDED_COPY, ZEROED
from traceview.speedups.precision import BF16, FP16, TF32
from traceview.speedups.shapes import BATCH, CHANNELS_LAST, PAD
from traceview.speedups.steps import Estimate, Speedup

SPEEDUPS: tuple[Speedup, ...] = (SDPA, FUSED_OPTIMIZER, CHANNELS_LAST, PAD, BATCH, TF32, BF16, COMPILE)
MOVES = (ZEROED, EMBEDDING, CASTS, CONCATENATE, STRIDED_COPY)
FINDABLE: tuple[Speedup, ...] = (SDPA, FUSED_OPTIMIZER, CHANNELS_LAST, PAD, BATCH, TF32, FP16, *MOVES, COMPILE)

__all__ = ["BATCH", "FINDABLE", "SPEEDUPS", "Estimate", "KernelSequence", "Speedup"]
