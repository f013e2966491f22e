"""Speedups: what changes to the compute leave of the time of each kernel, for findings and predictions alike."""

from traceview.speedups.base import Estimate, KernelSequence, Speedup
from traceview.speedups.fusion import COMPILE, FUSED_OPTIMIZER, SDPA
from traceview.speedups.precision import BF16, TF32
from traceview.speedups.shapes import BATCH, CHANNELS_LAST, PAD

SPEEDUPS: tuple[Speedup, ...] = (SDPA, FUSED_OPTIMIZER, CHANNELS_LAST, PAD, BATCH, TF32, BF16, COMPILE)

__all__ = ["SPEEDUPS", "Estimate", "KernelSequence", "Speedup"]
