"""Kernels with fewer blocks than the GPU has SMs, and kernels whose few blocks do not divide evenly among the SMs.

Symptom: blocks per SM below 1, or slightly more than 1 or 2.
Cause: too little parallel work in a launch, or a tile size that does not divide it.
Remedy: more blocks, larger inputs, other tiles, or independent kernels side by side.

The SM with the most blocks decides how long a kernel takes, so that it can gain the share 1 - b / ceil(b), where b is
blocks per SM (benchmarks/studies/tail_waves.py). How many blocks an SM holds at once hardly matters, because blocks
that share an SM take longer. Claims this part of the compute time, if no earlier finding does. Kernels below 10 µs are
limited by their launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.fixes import Fix
from traceview.pricing.ledger import ComputeClaim
from traceview.rules.advice.compute import SMALL_GRID, TAIL_WAVE
from traceview.speedups.base import MATRIX, Factors
from traceview.units import duration, quantity, share

MIN_NS = 10_000
MIN_IDLE = 0.25  # share of the SMs
MIN_SHARE_OF_COMPUTE = 0.03
TILED = (*MATRIX, "fused", "custom")  # families whose blocks depend on sizes or code; libraries choose the others


def small_grids(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield a finding on small grids and one on uneven ones for each device that loses time to them."""
    for device in facts.devices:
        kernels = device.kernels
        if not kernels.sms:
            continue
        each = np.nan_to_num(kernels.blocks / kernels.sms, nan=1.0)  # by row of Trace.shapes
        idle = _idle_share(each)
        tiled = np.array([kind.family in TILED for kind in kernels.kinds], np.bool_)
        small, uneven = (np.where(kernel, idle, 0.0) for kernel in (each < 1, tiled & (each > 1)))
        yield from _drafts(facts, device, small, "small_grid", SMALL_GRID.choose(facts.program))
        yield from _drafts(facts, device, uneven, "tail_wave", TAIL_WAVE.choose(facts.program))


def _idle_share(each: Any) -> Any:
    """Return the share of SM time that a kernel of `each` blocks per SM, a number or an array, leaves idle."""
    return 1 - each / np.maximum(np.ceil(each), 1)


def _drafts(facts: CaptureFacts, device: DeviceFacts, idle: Factors, kind: str, fix: Fix) -> Iterator[FindingDraft]:
    """Yield a finding on the kernels that leave SMs idle, if they take time. `idle` is a fraction for each shape."""
    kernels = device.kernels
    chosen = np.flatnonzero((idle >= MIN_IDLE)[kernels.shape] & (kernels.ns >= MIN_NS))
    ns = device.total(f"{kind}_ns", int(kernels.ns[chosen].sum()))
    if ns < MIN_SHARE_OF_COMPUTE * max(device.use.compute_ns, 1) or len(chosen) == 0:
        return
    shape = kernels.shape[chosen]
    counts, sums = np.bincount(shape), np.bincount(shape, weights=kernels.ns[chosen])
    totals, numbers = dict[str, int](), dict[str, int]()  # by blocks and label; rows of shapes are those of a slice
    for row in np.flatnonzero(counts).tolist():
        grid = f"{int(kernels.blocks[row])} {kernels.kinds[row].label}"
        totals[grid] = totals.get(grid, 0) + int(sums[row])
        numbers[grid] = numbers.get(grid, 0) + int(counts[row])
    totals, numbers = device.shown(f"{kind} ns by grid", totals), device.shown(f"{kind} counts by grid", numbers)
    worst = max(totals, key=lambda grid: (totals[grid] * _idle_share(int(grid.split(" ")[0]) / kernels.sms), grid))
    blocks, label = worst.split(" ", 1)
    few = kind == "small_grid"
    symptom = f"{label} runs {quantity(int(blocks), 'block')} on {kernels.sms} SMs"
    symptom += f" and other kernels have {'small' if few else 'uneven'} grids" if len(totals) > 1 else ""
    yield FindingDraft(
        id=kind,
        device=device,
        title=f"{symptom}: SMs are idle for the equivalent of {{cost}}",
        advice=f"{label} takes {duration(totals[worst])} in {quantity(numbers[worst], 'launch', 'launches')}, "
        f"{share(totals[worst], device.nearby.total_ns())} of the kernel time. {fix.advice}",
        code=fix.code,
        claims=(ComputeClaim(kernels.places[chosen], idle[shape]),),
        place_label="fewer blocks than SMs" if few else "some SMs run one block more than others",
    )
