"""Kernels with fewer blocks than the GPU has SMs, and kernels whose last wave is nearly empty.

Symptom: blocks per SM below 1, or a few waves of which the last has few blocks.
Cause: too little parallel work in a launch, or a tile size that does not divide it.
Remedy: more blocks, larger inputs, or independent kernels side by side.

A kernel is at most as much faster as it leaves SMs idle, so claims that part of its compute time that no earlier
finding claims. Kernels below MIN_NS are limited by their launch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.intervals import Times
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import duration, quantity, share
from traceview.pricing.ledger import ComputeClaim
from traceview.rules.advice.compute import SMALL_GRID
from traceview.speedups import KernelSequence
from traceview.speedups.base import Factors

MIN_NS = 10_000
MIN_IDLE = 0.25  # of the SMs
MIN_SHARE_OF_COMPUTE = 0.03


def small_grids(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device on which kernels with small grids take time."""
    for device in facts.devices:
        kernels = device.kernels()
        if not kernels.sms:
            continue
        idle = np.nan_to_num(1 - kernels.blocks / kernels.sms, nan=0.0)  # of each shape
        chosen = np.flatnonzero((idle >= MIN_IDLE)[kernels.shape] & (kernels.ns >= MIN_NS))
        if kernels.ns[chosen].sum() >= MIN_SHARE_OF_COMPUTE * max(device.use.compute_ns, 1):
            yield _draft(facts, device, kernels, chosen, idle[kernels.shape[chosen]])


def _draft(
    facts: CaptureFacts, device: DeviceFacts, kernels: KernelSequence, chosen: Times, idle: Factors
) -> FindingDraft:
    totals = np.bincount(kernels.shape[chosen], weights=kernels.ns[chosen])
    worst = int(totals.argmax())
    count, label = int(np.count_nonzero(kernels.shape[chosen] == worst)), kernels.kinds[worst].label
    blocks = int(kernels.blocks[worst])
    fix = SMALL_GRID.choose(facts.program)
    return FindingDraft(
        id="small_grid",
        device=device,
        title=f"{label} runs {quantity(blocks, 'block')} on {kernels.sms} SMs"
        + (" and other kernels have small grids" if np.count_nonzero(totals) > 1 else "")
        + ": SMs are idle for the equivalent of {cost}",
        advice=f"{label} takes {duration(float(totals[worst]))} in {quantity(count, 'launch', 'launches')}, "
        f"{share(float(totals[worst]), float(kernels.ns.sum()))} of the kernel time. {fix.advice}",
        code=fix.code,
        claims=(ComputeClaim(kernels.places[chosen], idle),),
        place_label="fewer blocks than SMs",
    )
