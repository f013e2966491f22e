"""Kernels with fewer blocks than the GPU has SMs, and kernels whose few blocks do not divide evenly among the SMs.

Symptom: blocks per SM below 1, or slightly more than 1 or 2.
Cause: too little parallel work in a launch, or a tile size that does not divide it.
Remedy: more blocks, larger inputs, other tiles, or independent kernels side by side. A library chooses the blocks of
its kernels, so that its calls need other sizes.

The SM with the most blocks decides how long a kernel takes, so that it can gain the share 1 - b / ceil(b), where b is
blocks per SM (benchmarks/studies/tail_waves.py). How many blocks an SM holds at once hardly matters, because blocks
that share an SM take longer. Claims this part of the compute time, if no earlier finding does. Kernels below 10 µs are
limited by their launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.measure.kernels.families import MATRIX
from traceview.model.sums import KeyedSums
from traceview.model.units import duration, quantity, share
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, ComputeClaim, Group, KernelGroup
from traceview.pricing.speedups.steps import KernelSequence

MIN_NS = 10_000
MIN_IDLE = 0.25  # share of the SMs
MIN_SHARE_OF_COMPUTE = 0.03
KEYS = {"kind": pl.String, "blocks": pl.Int64, "label": pl.String, "library": pl.String}
GRIDS = {**KEYS, "ns": pl.Int64, "launches": pl.Int64}
TILED = (*MATRIX, "fused", "custom")  # families whose blocks depend on sizes or code; libraries choose the others
SHAPES = {"small_grid": "small grids", "tail_wave": "uneven grids"}  # by the finding


class _SmallGridsSums(NamedTuple):
    """The ns of all kernels; `ns` and `launches` of those that leave SMs idle, by finding, blocks and label."""

    kernel_ns: int
    grids: KeyedSums


def _collect(_part: CapturePart, device: DevicePart) -> Collected[_SmallGridsSums]:
    """Group the kernels of small and of uneven grids, with the share of SM time that each leaves idle."""
    kernels, sms = device.kernels, max(device.kernels.sms, 1)
    each = np.nan_to_num(kernels.blocks / sms, nan=1.0)  # by row of Trace.shapes
    tiled = np.array([kind.family in TILED for kind in kernels.kinds], np.bool_)
    shapes = {"small_grid": each < 1, "tail_wave": tiled & (each > 1)}
    idle, long = _idle_share(each), kernels.ns >= MIN_NS
    groups, grids = dict[str, Group](), [pl.DataFrame(schema=GRIDS)]
    for kind, chosen in shapes.items():
        if kernels.sms and (chosen := chosen & (idle >= MIN_IDLE)).any():
            rows = np.flatnonzero(chosen[kernels.shape] & long)
            groups[kind] = KernelGroup(kernels.places[rows], idle[kernels.shape[rows]])
            grids.append(_grids(kernels, kind, rows))
    sums = KeyedSums.from_rows(pl.concat(grids), *KEYS)
    return Collected(_SmallGridsSums(int(kernels.ns.sum()), sums), groups)


def _idle_share(each: Any) -> Any:
    """Return the share of SM time that a kernel of `each` blocks per SM, a number or an array, leaves idle."""
    return 1 - each / np.maximum(np.ceil(each), 1)


def _grids(kernels: KernelSequence, kind: str, rows: Times) -> pl.DataFrame:
    """Return the ns and launches of some kernels by row of Trace.shapes."""
    shape, ns = kernels.shape[rows], kernels.ns[rows]
    launches, sums = np.bincount(shape), np.bincount(shape, weights=ns).astype(np.int64)
    known = np.flatnonzero(launches)
    columns = {
        "kind": [kind] * len(known),
        "blocks": kernels.blocks[known].astype(np.int64),
        "label": [kernels.kinds[row].label for row in known.tolist()],
        "library": [kernels.kinds[row].library or "" for row in known.tolist()],
        "ns": sums[known],
        "launches": launches[known],
    }
    return pl.DataFrame(columns, schema=GRIDS)


def _decide(facts: CaptureFacts, sums: Mapping[int, _SmallGridsSums]) -> Iterator[FindingDraft]:
    """Yield a finding on small grids and one on uneven ones for each device that loses time to them."""
    for device in facts.devices:
        for kind in SHAPES:
            grids = sums[device.row].grids.frame.filter(kind=kind)
            if grids["ns"].sum() >= MIN_SHARE_OF_COMPUTE * max(device.use.compute_ns, 1):
                yield _draft(facts, device, kind, grids, sums[device.row].kernel_ns)


def _draft(facts: CaptureFacts, device: DeviceFacts, kind: str, grids: pl.DataFrame, kernel_ns: int) -> FindingDraft:
    sms = facts.analysis.trace.devices["sm_count"][device.row]
    # Equal losses are ordered by text, so that the result does not depend on the order of kernels.
    blocks, label, library, ns, launches = max(
        grids.drop("kind").iter_rows(),
        key=lambda grid: (grid[3] * _idle_share(grid[0] / sms), f"{grid[0]} {grid[1]} {grid[2]}"),
    )
    values = {
        "label": label,
        "others": f" and other kernels have {SHAPES[kind]}" if len(grids) > 1 else "",
        "library": library,
        "blocks": quantity(blocks, "block"),
        "sms": sms,
        "time": duration(ns),
        "launches": quantity(launches, "launch", "launches"),
        "part": share(ns, kernel_ns),
    }
    return FindingDraft(kind, device, (ComputeClaim(kind),), values, "library" if library else "")


small_grids = OldRule("small_grids", _decide, _collect, place=240)
