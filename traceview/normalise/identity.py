"""Processes and threads as nsys packs them (METRICS.md "Identity")."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray


def process_of(column: str) -> pl.Expr:
    """Return the process of a globalPid or globalTid column: (globalId >> 24) & 0xFFFFFF."""
    return ((pl.col(column).fill_null(0) // (1 << 24)) & 0xFFFFFF).cast(pl.Int32)


def processes_of(global_id: NDArray[np.int64]) -> NDArray[np.int32]:
    """Return the process of each globalPid or globalTid."""
    return ((global_id >> 24) & 0xFFFFFF).astype(np.int32)
