"""Claims on groups of kernels become claims on the ledger of a part."""

from __future__ import annotations

import numpy as np
import pytest

from traceview.pricing import ledger
from traceview.pricing.claims import ComputeClaim, KernelGroup, resolve

ROWS = np.array([1, 4, 6, 9])


@pytest.mark.parametrize(
    ("group", "claim", "rows", "fractions"),
    [
        (KernelGroup(ROWS), ComputeClaim("some"), [1, 4, 6, 9], [1, 1, 1, 1]),
        (
            KernelGroup(ROWS, np.array([0.5, 0, 1, 0.25])),
            ComputeClaim("some", scale=0.5),
            [1, 6, 9],
            [0.25, 0.5, 0.125],
        ),
        (
            KernelGroup(ROWS, labels=np.array([1, 2, 1, 3])),
            ComputeClaim("some", {1: 0.5, 3: 1.0}),
            [1, 6, 9],
            [0.5, 0.5, 1],
        ),
        (
            KernelGroup(ROWS, labels=np.array([1, 2, 1, 3]), limits=np.array([0.25, 1, 0, 0.75])),
            ComputeClaim("some", {1: 0.5, 3: 1.0}, scale=0.5),
            [1, 9],
            [0.125, 0.375],
        ),
        (KernelGroup(ROWS), ComputeClaim("another"), [], []),
    ],
)
def test_kernels_are_claimed_by_label(
    group: KernelGroup, claim: ComputeClaim, rows: list[int], fractions: list[float]
) -> None:
    resolved = resolve(claim, {"some": group}, slice(0))
    assert isinstance(resolved, ledger.KernelClaim)
    assert (resolved.rows.tolist(), resolved.fractions.tolist()) == (rows, fractions)
