"""Whether the iterations of two captures do the same work: kernel launches per iteration, by name.

A change of precision, library or fusion changes kernels, and the step is still the same. If the kernels that both
captures have are all launched k times as often, an iteration of one capture is k iterations of the other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from traceview.comparison.kernels import KernelSamples
from traceview.model.comparison import IterationWork

Floats = NDArray[np.float64]
SAME = 0.1  # counts that differ by a smaller share are equal
MIN_MULTIPLE = 1.5
MIN_COMMON = 0.5  # of the launches of both captures: names that both have
MIN_AGREEING = 0.8  # of the launches of common names: names whose counts have the same ratio
FEWER = 0.05  # of the launches; a smaller difference is not stated


def iteration_work(before: KernelSamples, after: KernelSamples) -> IterationWork:
    """Compare the launches of an iteration of two captures."""
    old_launches, new_launches = before.launches(), after.launches()
    names = sorted(old_launches.keys() & new_launches.keys())
    old, new = (np.array([side[name] for name in names]) for side in (old_launches, new_launches))
    all_old, all_new = sum(old_launches.values()), sum(new_launches.values())
    common = min(_share(old, all_old), _share(new, all_new)) if names else 0.0
    multiple = _multiple(old, new, common)
    return IterationWork(round(all_old, 3), round(all_new, 3), round(common, 3), multiple)


def _share(part: Floats, whole: float) -> float:
    return float(part.sum()) / whole if whole else 0.0


def _multiple(old: Floats, new: Floats, common: float) -> float | None:
    """Return k if all common kernels are launched k times as often in one capture; None if not."""
    if common < MIN_COMMON:
        return None
    ratio, weight = new / np.maximum(old, 1e-9), old + new
    order = np.argsort(ratio)
    middle = float(ratio[order][np.searchsorted(np.cumsum(weight[order]), weight.sum() / 2)])
    agreeing = float(weight[np.abs(ratio - middle) <= SAME * middle].sum()) / float(weight.sum())
    far = middle >= MIN_MULTIPLE or middle <= 1 / MIN_MULTIPLE
    return round(middle, 2) if far and agreeing >= MIN_AGREEING else None
