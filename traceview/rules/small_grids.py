"""Kernels with fewer blocks than the GPU has SMs, and kernels whose last wave of blocks is nearly empty.

Symptom: blocks per SM below 1, or a few waves of which the last has few blocks.
Cause: too little parallel work in a launch, or a tile size that does not divide it.
Remedy: more blocks, larger inputs, other tiles, or independent kernels side by side.

A kernel can gain at most the share of SMs that it leaves idle. Claims this part of its compute time, if no earlier
finding does. Kernels below MIN_NS are limited by their launch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.measure.kernels import waves_of_shapes
from traceview.model.trace import Trace
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.fixes import Fix
from traceview.pricing.ledger import ComputeClaim
from traceview.rules.advice.compute import SMALL_GRID, TAIL_WAVE
from traceview.speedups import KernelSequence
from traceview.speedups.base import MATRIX, Factors
from traceview.units import duration, quantity, ratio, share

MIN_NS = 10_000
MIN_IDLE = 0.25  # share of the SMs
MIN_SHARE_OF_COMPUTE = 0.03
TILED = (*MATRIX, "fused", "custom")  # families whose blocks depend on sizes or code; libraries choose the others
MIN_SHARE_OF_SHAPE = 0.001  # share of the compute; waves are computed for shapes with more


def small_grids(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield a finding on small grids and one on nearly empty last waves for each device that loses time to them."""
    for device in facts.devices:
        kernels = device.kernels
        if not kernels.sms:
            continue
        idle = np.nan_to_num(1 - kernels.blocks / kernels.sms, nan=0.0)  # by row of Trace.shapes
        yield from _drafts(facts, device, idle, "small_grid", SMALL_GRID.choose(facts.program))
        waves = _waves(facts.analysis.trace, device, kernels)
        tiled = np.array([kind.family in TILED for kind in kernels.kinds], np.bool_)
        tail = np.where(tiled & (waves > 1), 1 - waves / np.ceil(waves), 0.0)
        yield from _drafts(facts, device, tail, "tail_wave", TAIL_WAVE.choose(facts.program), waves)


def _waves(trace: Trace, device: DeviceFacts, kernels: KernelSequence) -> Factors:
    """Return the waves of each launch shape; 1 where they are unknown or the shape takes little time."""
    long = kernels.ns >= MIN_NS
    totals = np.bincount(kernels.shape[long], weights=kernels.ns[long], minlength=len(kernels.kinds))
    matters = np.flatnonzero(totals > MIN_SHARE_OF_SHAPE * device.use.compute_ns)
    waves = np.ones(len(totals))
    for shape, count in waves_of_shapes(trace, device.use.device, matters.tolist()).items():
        waves[shape] = count
    return waves


def _drafts(
    facts: CaptureFacts, device: DeviceFacts, idle: Factors, kind: str, fix: Fix, waves: Factors | None = None
) -> Iterator[FindingDraft]:
    """Yield a finding on the kernels that leave SMs idle, if they take time. `idle` is a fraction for each shape."""
    kernels = device.kernels
    chosen = np.flatnonzero((idle >= MIN_IDLE)[kernels.shape] & (kernels.ns >= MIN_NS))
    if kernels.ns[chosen].sum() < MIN_SHARE_OF_COMPUTE * max(device.use.compute_ns, 1):
        return
    shape = kernels.shape[chosen]
    totals = np.bincount(shape, weights=kernels.ns[chosen])
    worst = int((totals * idle[: len(totals)]).argmax())
    count, label = int(np.count_nonzero(shape == worst)), kernels.kinds[worst].label
    more = np.count_nonzero(totals) > 1
    if waves is None:
        symptom = f"{label} runs {quantity(int(kernels.blocks[worst]), 'block')} on {kernels.sms} SMs"
        symptom += " and other kernels have small grids" if more else ""
    else:
        symptom = f"{label} runs {ratio(waves[worst])} waves of blocks"
        symptom += " and other kernels have nearly empty last waves" if more else ""
    yield FindingDraft(
        id=kind,
        device=device,
        title=f"{symptom}: SMs are idle for the equivalent of {{cost}}",
        advice=f"{label} takes {duration(float(totals[worst]))} in {quantity(count, 'launch', 'launches')}, "
        f"{share(float(totals[worst]), float(kernels.ns.sum()))} of the kernel time. {fix.advice}",
        code=fix.code,
        claims=(ComputeClaim(kernels.places[chosen], idle[shape]),),
        place_label="fewer blocks than SMs" if waves is None else "nearly empty last wave",
    )
