"""Estimates with an entry for each kernel."""

from __future__ import annotations

import numpy as np

from traceview.pricing.speedups import Estimate, KernelSequence


def dense(estimate: Estimate | str, kernels: KernelSequence) -> Estimate:
    """Return an estimate that names all kernels: those that do not change keep their time."""
    assert not isinstance(estimate, str)
    assert (np.diff(estimate.rows) > 0).all()
    assert (estimate.low <= estimate.middle).all() and (estimate.middle <= estimate.high).all()
    left = np.ones((3, len(kernels.ns)))
    left[:, estimate.rows] = estimate.factors
    gone = np.zeros(len(kernels.ns), np.bool_)
    gone[estimate.rows] = estimate.gone
    return Estimate(np.arange(len(gone)), *left, gone, estimate.detail)
