"""What limits each kernel, from tables of Nsight Compute of the same program (`analyze --with`).

A table is that of `ncu --csv --page raw`, the throughput of compute and memory of each profiled kernel. The limiter
follows Nsight Compute's own rule for its section "GPU Speed Of Light": below 60% of both peaks, a kernel is bound by
latency; otherwise by the larger of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import polars as pl

from traceview.errors import NotAnExportError, NotFoundError, RequestError
from traceview.model.trace import Note, Trace
from traceview.read.source import display_name

LAUNCH_SHAPE = ("name", "grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")
MAX_BYTES = 1 << 28
DIGITS = 6
LATENCY = 0.6  # share of both peaks; below it, Nsight Compute calls a kernel latency bound
COMPUTE = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
MEMORY = "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed"
WANTED = ("Kernel Name", "Grid Size", "Block Size", COMPUTE, MEMORY)
COMMAND = "ncu --csv --page raw --import REPORT.ncu-rep > ncu.csv"


def with_limiters(trace: Trace, tables: Sequence[str | Path]) -> Trace:
    """Return the trace with what limits its kernels, in further columns of `shapes`.

    The first row of a kernel counts. Raises ReportError for a file of another form, and RequestError if no
    kernel has a name and a launch shape of the tables.
    """
    if not tables:
        return trace
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


def read_ncu(path: Path) -> pl.DataFrame:
    """Return name, grid and block of kernels, with limiter, compute_fraction and memory_fraction (0 to 1), the means.

    Raises ReportError if the file is not that table, or lacks the section SpeedOfLight.
    """
    from traceview.read.kineto.trace_file import short_kernel_name  # few captures come with a table

    file = display_name(path)
    try:
        with path.open("rb") as opened:
            text = opened.read(MAX_BYTES)
    except OSError as error:
        raise NotFoundError(f"{file}: cannot be read ({error.strerror})") from None
    header = text.find(b'"ID"')  # lines of the profiled program and of ncu can precede it
    try:
        if header < 0:
            raise pl.exceptions.NoDataError
        table = pl.read_csv(BytesIO(text[header:]), infer_schema=False, encoding="utf8-lossy")
    except pl.exceptions.PolarsError:
        raise NotAnExportError(f"{file}: no table of ncu, which --with takes; write it with {COMMAND}") from None
    if missing := [name for name in WANTED if name not in table.columns]:
        raise NotAnExportError(f"{file}: lacks {missing[0]}; profile with --section SpeedOfLight, then {COMMAND}")
    rows = table.filter(pl.col("ID").str.contains(r"^\d+$"))  # the first row has units
    sizes = [
        pl.col(column).str.extract_all(r"\d+").list.get(at, null_on_oob=True).cast(pl.Int64).alias(f"{kind}_{axis}")
        for column, kind in (("Grid Size", "grid"), ("Block Size", "block"))
        for at, axis in enumerate("xyz")
    ]
    shares = [
        (pl.col(column).str.replace(",", ".", literal=True).cast(pl.Float64, strict=False) / 100).alias(name)
        for column, name in ((COMPUTE, "compute_fraction"), (MEMORY, "memory_fraction"))
    ]
    named = pl.col("Kernel Name").map_elements(short_kernel_name, pl.String).alias("name")
    kernels = rows.select(named, *sizes, *shares).drop_nulls()
    if kernels.is_empty():
        raise NotAnExportError(f"{file}: holds no kernel with its throughput; write it with {COMMAND}")
    compute, memory = pl.col("compute_fraction"), pl.col("memory_fraction")
    larger = pl.when(compute > memory).then(pl.lit("compute")).otherwise(pl.lit("memory"))
    limiter = pl.when(pl.max_horizontal(compute, memory) < LATENCY).then(pl.lit("latency")).otherwise(larger)
    shapes = pl.exclude("compute_fraction", "memory_fraction")
    means = kernels.group_by(shapes).agg(compute.mean().round(DIGITS), memory.mean().round(DIGITS))
    return means.with_columns(limiter.alias("limiter"))
