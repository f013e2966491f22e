"""The whole way from a trace's file to a RawCapture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.read import raw
from traceview.read.kineto.gather import from_zero, gather
from traceview.read.kineto.header import read_around
from traceview.read.kineto.known import PROFILER
from traceview.read.kineto.missing import lacks
from traceview.read.kineto.pieces import NotJsonError, Pieces
from traceview.read.kineto.tables import tables_of
from traceview.read.limits import DecodedSize
from traceview.read.raw import RawCapture
from traceview.read.sqlite.database import shown

SESSION = "TARGET_INFO_SESSION_START_TIME"  # when it was 0 on the capture's clock: what lays ranks side by side
IN_2001 = 1_000_000_000_000_000_000  # ns; what is less does not count from 1970
AGAIN = "export it again: prof.export_chrome_trace(FILE)"


def read_kineto(path: Path) -> RawCapture:
    """Read a trace. Times count from its first event.

    Raises DamagedExportError, NotAnExportError or ReportError with one line.
    """
    name = shown(path)
    try:
        with path.open("rb") as file:
            pieces = Pieces(file)
            found, zero = from_zero(gather(pieces, DecodedSize(name)))
            around = read_around(pieces.around)
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror}); check its permissions") from None
    except NotJsonError as error:
        raise _refusal(name, error) from None
    if not around.of_torch and not any(map(len, found.events.values())):
        raise NotAnExportError(f"{name}: a Chrome trace, but not one of torch.profiler; {AGAIN}")
    tables = tables_of(found, around.gpus)
    if (epoch := around.base_ns + zero) > IN_2001:
        tables[SESSION] = pl.DataFrame({"utcEpochNs": [epoch]}, schema={"utcEpochNs": pl.Int64})
    return with_lacks(RawCapture(path.name, None, None, tables))


def with_lacks(capture: RawCapture) -> RawCapture:
    """Return tables that a trace was made into as torch.profiler's capture, with what it lacks."""
    tables = dict(capture.tables)
    for name in (raw.KERNEL, raw.MEMCPY, raw.MEMSET, raw.RUNTIME):
        tables.setdefault(name, pl.DataFrame(schema=dict.fromkeys(raw.TABLES[name].columns, pl.Int64)))
    calls = tables[raw.RUNTIME]
    used = tables[raw.STRINGS].join(calls.select(pl.col("nameId").unique().alias("id")), on="id", how="semi")["value"]
    processes = calls.select((pl.col("globalTid") // (1 << 24)).n_unique()).item()
    problems = (*capture.problems, *lacks(tables, used.drop_nulls().to_list(), processes))
    return replace(capture, problems=problems, profiler=PROFILER)


def _refusal(name: str, error: NotJsonError) -> ReportError:
    if error.cut_off:
        return DamagedExportError(
            f"{name}: cut off: it {error}; torch leaves such a file when it is killed while it writes; {AGAIN}"
        )
    return NotAnExportError(f"{name}: no trace of torch.profiler: it {error}; {AGAIN}")
