"""Processes and threads as nsys packs them (METRICS.md "Identity")."""

from __future__ import annotations

import polars as pl


def process_of(column: str) -> pl.Expr:
    """Return the process of a globalPid or globalTid column: (globalId >> 24) & 0xFFFFFF."""
    return ((pl.col(column).fill_null(0) // (1 << 24)) & 0xFFFFFF).cast(pl.Int32)
