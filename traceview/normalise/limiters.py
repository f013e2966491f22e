"""What limits each kernel, from tables of Nsight Compute of the same program (`analyze --with`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import polars as pl

from traceview.errors import RequestError
from traceview.model.trace import Note, Trace
from traceview.read.source import display_name

LAUNCH_SHAPE = ("name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def with_limiters(trace: Trace, tables: Sequence[str | Path]) -> Trace:
    """Return the trace with what limits its kernels, in further columns of `shapes`.

    The first row of a kernel counts. Raises ReportError for a file of another form, and RequestError if no
    kernel has a name and a launch shape of the tables.
    """
    if not tables:
        return trace
    from traceview.read.ncu import read_ncu

    files = ", ".join(display_name(Path(table)) for table in tables)
    limits = pl.concat([read_ncu(Path(table)) for table in tables])
    limits = limits.unique(LAUNCH_SHAPE, keep="first", maintain_order=True)
    shapes = trace.shapes.join(limits, on=LAUNCH_SHAPE, how="left", maintain_order="left")
    known = int(shapes["limiter"].is_not_null().sum())
    if not known:
        raise RequestError(
            f"{files}: no kernel of {trace.info.file} has a name and a launch shape of this table: profile the same "
            "program with the same sizes"
        )
    text = f"limiters are those of {files}, for {known:,} of {len(shapes) - 1:,} kernels and launch shapes"
    info = replace(trace.info, left_out=(*trace.info.left_out, Note("limiters", text)))
    return replace(trace, info=info, shapes=shapes)
