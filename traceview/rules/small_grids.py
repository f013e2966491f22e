"""Kernels with fewer blocks than the GPU has SMs, and kernels whose few blocks do not divide evenly among the SMs.

Symptom: blocks per SM below 1, or slightly more than 1 or 2.
Cause: too little parallel work in a launch, or a tile size that does not divide it.
Remedy: more blocks, larger inputs, other tiles, or independent kernels side by side. A library chooses the blocks of
its kernels, so that its calls need other sizes.

The SM with the most blocks decides how long a kernel takes, so that it can gain the share 1 - b / ceil(b), where b is
blocks per SM (benchmarks/studies/tail_waves.py). How many blocks an SM holds at once hardly matters, because blocks
that share an SM take longer. Claims this share of the compute time, if no earlier finding does. Kernels below 10 µs are
limited by their launch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from traceview.intervals import Times
from traceview.measure.kernels.families import MATRIX
from traceview.model.units import duration, quantity, share
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import KernelClaim
from traceview.pricing.speedups.steps import KernelSequence

MIN_NS = 10_000
MIN_IDLE = 0.25  # share of the SMs
MIN_SHARE_OF_COMPUTE = 0.03
TILED = (*MATRIX, "fused", "custom")  # families whose blocks depend on sizes or code; libraries choose the others
SHAPES = {"small_grid": "small grids", "tail_wave": "uneven grids"}  # by the finding


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding on small grids and one on uneven ones, if the device loses time to them."""
    kernels = device.kernels
    if not kernels.sms:
        return
    each = np.nan_to_num(kernels.blocks / kernels.sms, nan=1.0)  # by row of Trace.shapes
    tiled = np.array([kind.family in TILED for kind in kernels.kinds], np.bool_)
    idle, long = _idle_share(each), kernels.ns >= MIN_NS
    for kind, chosen in (("small_grid", each < 1), ("tail_wave", tiled & (each > 1))):
        rows = np.flatnonzero((chosen & (idle >= MIN_IDLE))[kernels.shape] & long)
        if kernels.ns[rows].sum() >= MIN_SHARE_OF_COMPUTE * max(device.use.compute_ns, 1):
            claim = KernelClaim(kernels.places[rows], idle[kernels.shape[rows]])
            values = _values(kernels, kind, rows)
            yield FindingDraft(kind, device, (claim,), values, "library" if values["library"] else "")


def _idle_share(each: Any) -> Any:
    """Return the share of SM time that a kernel of `each` blocks per SM, a number or an array, leaves idle."""
    return 1 - each / np.maximum(np.ceil(each), 1)


def _values(kernels: KernelSequence, kind: str, rows: Times) -> dict[str, object]:
    """Return the values of the kernels, by number of blocks and label, that leave most SM time idle."""
    shape, ns = kernels.shape[rows], kernels.ns[rows]
    launches, sums = np.bincount(shape), np.bincount(shape, weights=ns).astype(np.int64)
    grids = dict[tuple[int, str, str], tuple[int, int]]()
    for row in np.flatnonzero(launches).tolist():
        key = int(kernels.blocks[row]), kernels.kinds[row].label, kernels.kinds[row].library or ""
        before = grids.get(key, (0, 0))
        grids[key] = before[0] + int(sums[row]), before[1] + int(launches[row])
    # Equal losses are ordered by text, so that the result does not depend on the order of kernels.
    (blocks, label, library), (total, count) = max(
        grids.items(),
        key=lambda grid: (grid[1][0] * _idle_share(grid[0][0] / kernels.sms), " ".join(map(str, grid[0]))),
    )
    return {
        "label": label,
        "others": f" and other kernels have {SHAPES[kind]}" if len(grids) > 1 else "",
        "library": library,
        "blocks": quantity(blocks, "block"),
        "sms": kernels.sms,
        "time": duration(total),
        "launches": quantity(count, "launch", "launches"),
        "kernel_share": share(total, int(kernels.ns.sum())),
    }


small_grids = Rule("small_grids", find)
