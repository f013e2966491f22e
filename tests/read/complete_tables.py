"""The tables of a capture with the launch shapes of kernels in their own columns."""

from __future__ import annotations

from collections.abc import Mapping

import polars as pl

from traceview.read.raw import KERNEL, SHAPE, TABLES, RawCapture


def complete_tables(capture: RawCapture) -> Mapping[str, pl.DataFrame]:
    """Return the tables of a capture whose reader may have returned the launch shapes apart."""
    if capture.shapes is None:
        return capture.tables
    kernels = capture.tables[KERNEL]
    joined = pl.concat([kernels.drop(SHAPE), capture.shapes[kernels[SHAPE]]], how="horizontal")
    in_order = [name for name in TABLES[KERNEL].columns if name in joined.columns]
    return {**capture.tables, KERNEL: joined.select(in_order)}
