"""Tables of events for questions of users: gaps, operations, launches and calls, with names in place of row numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import polars as pl

from traceview.intervals import BEFORE_ALL
from traceview.measure.nvtx import innermost_ranges
from traceview.measure.run import ProgramCalls
from traceview.measure.shared_work import LaunchQueue
from traceview.model.analysis import CAUSES, Analysis, Iteration, NotMeasured
from traceview.model.columns import Table, column, field_names
from traceview.model.frozen import dataclass
from traceview.model.trace import Trace


@dataclass(frozen=True, slots=True)
class IdleGap:
    """One idle gap of a GPU, in the time that findings cover. Its causes add up to its length."""

    start_ns: int = column("ns", "start", "Start, on the capture's clock.")
    end_ns: int = column("ns", "end", "End, on the capture's clock.")
    duration_ns: int = column("ns", "length", "Length.")
    cause: str = column("code", "cause", "The cause with the most time.")
    before: str = column("text", "before", "Name of the operation that ends last before it; null for none.")
    stream_before: str = column("text", "stream before", "Stream of the operation before it.")
    after: str = column("text", "after", "Name of the operation that ends it; null at the end of a window.")
    stream_after: str = column("text", "stream after", "Stream of the operation that ends it.")
    process_id: int = column("id", "process", "Process of the thread.")
    thread: str = column("text", "thread", "Thread that launches the operation after it: its name, or its id.")
    range: str = column("text", "range", "Innermost range of this thread in the middle of its wait; null for none.")
    causes: Mapping[str, int] = column("causes", "causes", "Nanoseconds by cause.")


@dataclass(frozen=True, slots=True)
class GpuOperation:
    """One kernel, graph, copy or memset that starts in the window, in the order of the starts."""

    start_ns: int = column("ns", "start", "Start, on the capture's clock.")
    end_ns: int = column("ns", "end", "End, on the capture's clock.")
    duration_ns: int = column("ns", "length", "Length.")
    name: str = column("text", "operation", "Name of the operation.")
    kind: str = column("code", "kind", "compute, communication, copy or memset.")
    bytes: int = column("bytes", "size", "Bytes that a copy or a memset moves; 0 for kernels.")
    stream_id: int = column("id", "stream id", "Id of the stream, as in the capture.")
    stream: str = column("text", "stream", "Label of the stream.")
    process_id: int = column("id", "process", "Process of the operation.")
    correlation_id: int = column("id", "correlation", "Id that the operation shares with the call that launches it.")


@dataclass(frozen=True, slots=True)
class LaunchedOperation:
    """One operation that a call of the window launches, in the order of the calls."""

    operation: str = column("text", "operation", "Name of the operation.")
    stream: str = column("text", "stream", "Stream of the operation.")
    call: str = column("code", "call", "CUDA API function that launches it.")
    process_id: int = column("id", "process", "Process of the thread.")
    thread: str = column("text", "thread", "Thread that launches it: its name, or its id.")
    start_ns: int = column("ns", "call", "Start of the call, on the capture's clock.")
    end_ns: int = column("ns", "return", "End of the call, on the capture's clock.")
    begin_ns: int = column("ns", "begin", "Start of the operation, on the capture's clock.")
    delay_ns: int = column(
        "ns", "delay", "From the end of the call to the start of the operation; 0 if that is before."
    )
    ahead: int = column("count", "ahead", "Operations of the GPU that are launched and not started at the call.")


@dataclass(frozen=True, slots=True)
class CallSums:
    """The CUDA calls of one function and thread that launch one kernel, or none."""

    call: str = column("code", "call", "CUDA API function.")
    process_id: int = column("id", "process", "Process of the thread.")
    thread: str = column("text", "thread", "Thread that makes them: its name, or its id.")
    kernel: str = column("text", "kernel", "Full name of the kernel that each launches first; empty for none.")
    count: int = column("count", "count", "Number of calls.")
    total_ns: int = column("ns", "total", "Sum of their lengths.")
    longest_ns: int = column("ns", "longest", "Length of the longest.")
    first_ns: int = column("ns", "first", "Start of the first, on the capture's clock.")


@dataclass(frozen=True, slots=True)
class LongCall:
    """One CUDA call of more than 0.1 ms."""

    call: str = column("code", "call", "CUDA API function.")
    process_id: int = column("id", "process", "Process of the thread.")
    thread: str = column("text", "thread", "Thread that makes it: its name, or its id.")
    kernel: str = column("text", "kernel", "Full name of the kernel that it launches first; empty for none.")
    start_ns: int = column("ns", "start", "Start, on the capture's clock.")
    end_ns: int = column("ns", "end", "End, on the capture's clock.")
    duration_ns: int = column("ns", "length", "Length.")


ITERATIONS = Table(name="iterations", title="Iterations one by one", row_type=Iteration)
LENGTH = (pl.col("end") - pl.col("start")).alias("duration_ns")
TIMES = (pl.col("start").alias("start_ns"), pl.col("end").alias("end_ns"))


def gap_ranges(trace: Trace, gaps: pl.DataFrame) -> pl.Series:
    """Return the innermost range that is open on a gap's thread in the middle of its wait; null for none."""
    start, end = gaps["start"].to_numpy(), gaps["end"].to_numpy()
    call = trace.operations["launch"].gather(gaps["operation"])
    launched = trace.api["start"].gather(call).fill_null(BEFORE_ALL).to_numpy()
    middle = (start + np.minimum(end, np.maximum(launched, start))) // 2
    begin, until, thread = (trace.ranges[name].to_numpy() for name in ("start", "end", "thread"))
    rows = innermost_ranges(begin, until, thread, gaps["thread"].fill_null(-1).to_numpy(), middle)
    return trace.ranges["name"].gather(pl.Series(rows).set(pl.Series(rows < 0), None)).cast(pl.String)


def _gaps(analysis: Analysis) -> Iterator[pl.DataFrame]:
    trace, labels = analysis.trace, analysis.trace.streams["label"]
    names, stream = trace.operations["name"], trace.operations["stream"]
    largest = pl.max_horizontal(*CAUSES)
    for use in analysis.devices:
        gaps = analysis.covered(use).gaps.frame
        yield gaps.select(
            pl.lit(use.id).alias("device"),
            *TIMES,
            LENGTH,
            pl.coalesce(pl.when(pl.col(name) == largest).then(pl.lit(name)) for name in CAUSES).alias("cause"),
            names.gather(gaps["before"]).cast(pl.String).alias("before"),
            labels.gather(stream.gather(gaps["before"])).alias("stream_before"),
            names.gather(gaps["operation"]).cast(pl.String).alias("after"),
            labels.gather(stream.gather(gaps["operation"])).alias("stream_after"),
            *_thread(trace, gaps),
            gap_ranges(trace, gaps).alias("range"),
            pl.struct(CAUSES).alias("causes"),
        )


def _operations(analysis: Analysis) -> Iterator[pl.DataFrame]:
    trace, window = analysis.trace, analysis.trace.window
    rows = trace.operations
    if window is not None:
        rows = rows.filter(pl.col("start").is_between(window.start, window.end, closed="left"))
    for use in analysis.devices:
        own = rows.filter(pl.col("device") == use.device)
        yield own.select(
            pl.lit(use.id).alias("device"),
            *TIMES,
            LENGTH,
            pl.col("name").cast(pl.String),
            pl.col("class").cast(pl.String).alias("kind"),
            "bytes",
            trace.streams["stream_id"].gather(own["stream"]),
            trace.streams["label"].gather(own["stream"]).alias("stream"),
            pl.col("process").cast(pl.Int64).alias("process_id"),
            pl.col("correlation").cast(pl.Int64).alias("correlation_id"),
        )


def _launches(analysis: Analysis) -> Iterator[pl.DataFrame]:
    trace = analysis.trace
    for use in analysis.devices:
        queue = LaunchQueue.from_trace(trace, use.device)
        work = trace.operations.select("name", "stream", begin_ns="start")[queue.operation]
        calls = trace.api.select("start", "end", "name", "thread")[queue.call]
        yield calls.select(
            pl.lit(use.id).alias("device"),
            work["name"].cast(pl.String).alias("operation"),
            trace.streams["label"].gather(work["stream"]).alias("stream"),
            pl.col("name").cast(pl.String).alias("call"),
            *_thread(trace, calls),
            *TIMES,
            work["begin_ns"],
            pl.Series("delay_ns", queue.delay),
            pl.Series("ahead", queue.ahead, dtype=pl.Int64),
        )


def _thread(trace: Trace, rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return the columns `process_id` and `thread` of rows with a row of Trace.threads."""
    named = pl.when(pl.col("name") != "").then("name").otherwise(pl.col("tid").cast(pl.String))
    texts = trace.threads.select(named).to_series().gather(rows["thread"])
    return trace.threads["process"].cast(pl.Int64).gather(rows["thread"]).alias("process_id"), texts.alias("thread")


def _program_calls(analysis: Analysis) -> ProgramCalls:
    return ProgramCalls(analysis.trace, {process for use in analysis.devices for process in use.process_ids})


def _calls(analysis: Analysis) -> Iterator[pl.DataFrame]:
    sums = _program_calls(analysis).sums()
    yield sums.with_columns(*_thread(analysis.trace, sums), call="name")


def _long_calls(analysis: Analysis) -> Iterator[pl.DataFrame]:
    calls = _program_calls(analysis)
    long = calls.with_kernels(calls.long())
    yield long.with_columns(*_thread(analysis.trace, long), *TIMES, LENGTH, call="name")


EVENT_TABLES: Mapping[str, tuple[Table, Callable[[Analysis], Iterator[pl.DataFrame]]]] = {
    "gaps": (Table(name="gaps", title="Idle gaps one by one", row_type=IdleGap), _gaps),
    "operations": (Table(name="operations", title="GPU work one by one", row_type=GpuOperation), _operations),
    "launches": (Table(name="launches", title="Launches one by one", row_type=LaunchedOperation), _launches),
    "calls": (Table(name="calls", title="CUDA calls by name, thread and kernel", row_type=CallSums), _calls),
    "long_calls": (Table(name="long_calls", title="Long CUDA calls one by one", row_type=LongCall), _long_calls),
}


def event_table(analysis: Analysis, name: str) -> pl.DataFrame:
    """Return a table of EVENT_TABLES, with its declared columns; tables of GPUs begin with the column `device`."""
    table, frames = EVENT_TABLES[name]
    columns = field_names(table.row_type)
    every = [frame.select(*(["device"] if "device" in frame.columns else []), *columns) for frame in frames(analysis)]
    return pl.concat(every) if every else pl.DataFrame(schema=["device", *columns])


def iterations_table(analysis: Analysis) -> Table:
    """Return the table of iterations, or why there are none."""
    iterations = analysis.iterations
    if isinstance(iterations, NotMeasured):
        return ITERATIONS.unmeasured(iterations.reason)
    return ITERATIONS.with_rows(iterations.per_iteration)
