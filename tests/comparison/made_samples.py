"""Kernels of iterations, made by hand."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from traceview.comparison.kernels import KernelSamples, KernelShape

Each = list[tuple[int, int]]  # launches and ns in each iteration


def made_samples(shapes: Mapping[KernelShape, Each], iterations: int = 7) -> KernelSamples:
    """Return samples of some shapes, without rows for iterations that launch nothing."""
    rows = [
        (number, place, *figures)
        for number, each in enumerate(shapes.values())
        for place, figures in enumerate(each)
        if any(figures)
    ]
    number, place, count, time = np.array(rows, np.int64).reshape(-1, 4).T
    first = np.searchsorted(number, np.arange(len(shapes) + 1))
    longest = max([iterations, *map(len, shapes.values())]) if shapes else iterations
    return KernelSamples(tuple(shapes), first, place, count, time, longest)
