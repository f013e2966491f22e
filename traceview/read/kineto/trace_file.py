"""Converts a trace file to a RawCapture, and notes what torch.profiler does not record: absent is not zero."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.read import raw
from traceview.read.kineto import PROFILER
from traceview.read.kineto.events import relative_times, trace_events
from traceview.read.kineto.pieces import NotJsonError, Pieces, read_document
from traceview.read.kineto.tables import nsys_tables
from traceview.read.limits import DecodedSize
from traceview.read.raw import RawCapture
from traceview.read.source import display_name

SESSION_TABLE = "TARGET_INFO_SESSION_START_TIME"  # the time of day at 0 of the capture's clock, which aligns ranks
MIN_EPOCH_NS = 1_000_000_000_000_000_000  # the year 2001; smaller values do not count from 1970
OPEN_LIST = "the list of events has no closing bracket: its last events may be missing"
EXPORT_AGAIN = "export it again: prof.export_chrome_trace(FILE)"
SYNC_EVENTS = "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)"


def read_trace(path: Path) -> RawCapture:
    """Read a trace. Times count from its first event.

    Raises DamagedExportError, NotAnExportError or ReportError with a one-line message.
    """
    name = display_name(path)
    try:
        with path.open("rb") as file:
            pieces = Pieces(file)
            events, first_ns = relative_times(trace_events(pieces, DecodedSize(name)))
            document = read_document(pieces.document)
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror}); check its permissions") from None
    except NotJsonError as error:
        raise _refusal(name, error) from None
    if not document.is_torch and not any(map(len, events.frames.values())):
        raise NotAnExportError(f"{name}: a Chrome trace, but not of torch.profiler; {EXPORT_AGAIN}")
    tables = nsys_tables(events, document.gpus)
    if (epoch := document.base_ns + first_ns) > MIN_EPOCH_NS:
        tables[SESSION_TABLE] = pl.DataFrame({"utcEpochNs": [epoch]}, schema={"utcEpochNs": pl.Int64})
    problems = (OPEN_LIST,) if pieces.is_open else ()
    return with_missing(RawCapture(path.name, None, None, tables, problems))


def with_missing(capture: RawCapture) -> RawCapture:
    """Return a capture made from a trace, attributed to torch.profiler, with notes on what is missing."""
    tables = dict(capture.tables)
    for name in (raw.KERNEL, raw.MEMCPY, raw.MEMSET, raw.RUNTIME):
        tables.setdefault(name, pl.DataFrame(schema=dict.fromkeys(raw.TABLES[name].columns, pl.Int64)))
    calls = tables[raw.RUNTIME]
    used = tables[raw.STRINGS].join(calls.select(pl.col("nameId").unique().alias("id")), on="id", how="semi")["value"]
    processes = calls.select((pl.col("globalTid") // (1 << 24)).n_unique()).item()
    problems = (*capture.problems, *missing_notes(tables, used.drop_nulls().to_list(), processes))
    return replace(capture, problems=problems, profiler=PROFILER)


def _refusal(name: str, error: NotJsonError) -> ReportError:
    if error.cut_off:
        return DamagedExportError(
            f"{name}: cut off: it {error}; torch leaves such a file when it is killed while writing; {EXPORT_AGAIN}"
        )
    return NotAnExportError(f"{name}: not a trace of torch.profiler: it {error}; {EXPORT_AGAIN}")


def missing_notes(tables: Mapping[str, pl.DataFrame], calls: list[str], processes: int) -> Iterator[str]:
    """Yield one line for each kind of data that the trace lacks.

    `calls` are the names of the API calls, and `processes` is the number of processes that made them.
    """
    yield (
        "a trace of torch.profiler: ranges come from record_function and ProfilerStep, not from NVTX. It never records "
        "ranges of threads that started before the profiler (unless profile_all_threads is set), copies of unified "
        "memory, calls that torch.profiler leaves out (cudaGetDevice, cudaEventQuery, most driver calls) and which "
        "stream is the default"
    )
    if not any(len(tables[name]) for name in (raw.KERNEL, raw.MEMCPY, raw.MEMSET)):
        return
    if _has_whole_microseconds(tables):
        yield "times are whole microseconds, as torch wrote them until 2024: shorter times read 0 or 1 µs"
    if processes > 1:
        yield (
            f"one trace with the calls of {processes} processes: GPU work is assigned to the first process whose call "
            "has its correlation id, which may repeat; analyze one trace per process"
        )
    if raw.OVERHEAD not in tables:
        yield (
            "the idle cause `profiler` is not measured, because the trace has no overhead events: the profiler's "
            "overhead counts under other causes"
        )
    if raw.SYNCHRONIZATION not in tables:
        yield (
            "event records and stream waits are not measured, because the trace was made without them; "
            f"synchronizations are measured by their API calls; to record both: profile({SYNC_EVENTS})"
        )
    elif raw.CUDA_EVENT not in tables:
        yield "event records are not measured, because the trace has none, and no stream wait names its record"
    if "bytes" in tables[raw.MEMCPY].columns and tables[raw.MEMCPY]["bytes"].sum() == 0 and len(tables[raw.MEMCPY]):
        yield "bytes of copies are not measured, because the trace does not contain them: they read 0"
    if any(name.startswith("hip") for name in calls):
        yield "synchronizations are not measured, because HIP calls are not classified: they count as `api`"


def _has_whole_microseconds(tables: Mapping[str, pl.DataFrame]) -> bool:
    ends = pl.concat([tables[name]["end"] for name in (raw.KERNEL, raw.MEMCPY, raw.MEMSET)])
    return len(ends) > 10 and bool((ends % 1000 == 0).all())
