"""Converts a trace file to the tables that nsys would have exported, so that everything after reading is the same.

Notes state what torch.profiler does not record: absent is not zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import polars as pl

from traceview.errors import DamagedExportError, NotAnExportError, ReportError
from traceview.model.units import quantity
from traceview.read import raw
from traceview.read.kineto.events import METADATA, SCOPE, TraceEvents, relative_times, trace_events
from traceview.read.kineto.pieces import GPU_LIMITS, NAMES, NotJsonError, Pieces, TraceDocument, TraceGpu
from traceview.read.kineto.sizes import MATH, MEMORY, MESSAGE
from traceview.read.raw import RawCapture
from traceview.read.source import DecodedSize, display_name

SYNC_TYPES: Mapping[str, int] = NAMES["synchronizations"]
NO_STREAM = 0xFFFFFFFF  # nsys writes this where Kineto writes -1
PUSH_POP = 59
STRINGS_SCHEMA = {"id": pl.Int64, "value": pl.String}
ALWAYS_PRESENT = (raw.KERNEL, raw.MEMCPY, raw.MEMSET, raw.RUNTIME, raw.NVTX)
# CUPTI's names of its overheadType 2, 6, 7 and 8.
DRIVER_WORK = re.compile("Driver Compiler|Module Loading|Function Loading|Command Buffer Full")
COPY_NAME = re.compile(r"Memcpy (\w+|<unknown>)(?: \((.+)\))?")
COPY_KINDS: Mapping[str, int] = NAMES["copies"]
MEMORIES: Mapping[str, int] = NAMES["memories"]
UNKNOWN_MEMORY = 7
WARP = 32
TENSOR_MEMORY = 100  # memKind of tensors; nsys has none for them
ELEMENT_BYTES = dict(enumerate(size for _, _, size in raw.ELEMENTS))
HIP_CALLS, XPU_CALLS = ("hip",), ("ur", "ze", "pi")  # Unified Runtime, Level Zero and SYCL's plugin interface
OF_AMD = (
    "a trace of AMD GPUs (ROCm) is measured like one of CUDA, HIP calls as the CUDA calls of the same names; occupancy "
    "and limits of the GPU are not measured"
)
OF_INTEL = (
    "a trace of Intel GPUs (XPU) is measured like one of CUDA: kernels, copies, idle time, launches and waits of the "
    "host; occupancy, limits and peaks of the GPU are not measured"
)
OPENING, CLOSING = "<([{", ">)]}"


MAX_ID = 0xFFFFFF  # nsys packs a process and a thread into 24 bits each


class TraceIdentity(NamedTuple):
    """`processes` and `threads` map the trace's ids to ids of 24 bits; `main` is the most frequent process.

    `launched` has the process of each correlation id if the trace has several processes, else it is None.
    """

    processes: pl.DataFrame
    threads: pl.DataFrame
    main: int
    launched: pl.DataFrame | None

    @classmethod
    def from_events(cls, frames: Mapping[str, pl.DataFrame]) -> TraceIdentity:
        """Collect the ids of the host events."""
        host = pl.concat([frames[sort].select("pid", "tid", "correlation") for sort in ("call", "range")])
        processes = _ids_of_24_bits(host["pid"])
        calls = frames["call"].select("pid", "correlation").join(processes, on="pid", how="left")
        launched = None
        if calls["pid"].n_unique() > 1:
            launched = calls.unique("correlation", keep="first", maintain_order=True).select("correlation", "pid24")
        ids = calls["pid24"] if len(calls) else host.join(processes, on="pid", how="left")["pid24"]
        common = ids.drop_nulls().mode().sort()
        return cls(processes, _ids_of_24_bits(host["tid"]), int(common[0]) if len(common) else 0, launched)

    def global_tid(self, frame: pl.DataFrame) -> pl.Series:
        """Return nsys's globalTid of host events."""
        joined = frame.select("pid", "tid").join(self.processes, on="pid", how="left", maintain_order="left")
        joined = joined.join(self.threads, on="tid", how="left", maintain_order="left")
        packed = pl.col("pid24").fill_null(self.main) * (MAX_ID + 1) + pl.col("tid24").fill_null(0)
        return joined.select(packed.alias("globalTid")).to_series()

    def global_pid(self, frame: pl.DataFrame) -> pl.Series:
        """Return nsys's globalPid of GPU events."""
        if self.launched is None:
            return pl.Series("globalPid", [self.main * (MAX_ID + 1)], pl.Int64).new_from_index(0, len(frame))
        joined = frame.select("correlation").join(self.launched, on="correlation", how="left", maintain_order="left")
        return joined.select((pl.col("pid24").fill_null(self.main) * (MAX_ID + 1)).alias("globalPid")).to_series()


def _ids_of_24_bits(ids: pl.Series) -> pl.DataFrame:
    """Return a 24-bit id for each id: the id itself if it fits, else an unused one."""
    name = ids.name
    unique = ids.unique().drop_nulls().sort()
    fits = unique.is_between(0, MAX_ID)
    taken = set(unique.filter(fits).to_list())
    free = (number for number in range(MAX_ID, 0, -1) if number not in taken)
    wide = unique.filter(~fits)
    assigned = [next(free, 0) for _ in range(len(wide))]
    return pl.DataFrame(
        {
            name: pl.concat([unique.filter(fits), wide]),
            f"{name}24": pl.concat([unique.filter(fits), pl.Series(assigned, dtype=pl.Int64)]),
        }
    )


def nsys_tables(events: TraceEvents, gpus: tuple[TraceGpu, ...]) -> dict[str, pl.DataFrame]:
    """Return the nsys tables that the events and GPUs fill."""
    frames, names = events.frames, events.names
    identity = TraceIdentity.from_events(frames)
    stream = {sort: _stream_events(frames[sort], identity) for sort in ("kernel", "memcpy", "memset", "sync", "event")}
    kernels = stream["kernel"].with_columns(
        (pl.col("name") + len(names)).alias("shortName"),
        pl.col("name").alias("demangledName"),
        pl.lit(0, pl.Int64).alias("staticSharedMemory"),
    )
    converted = {
        raw.KERNEL: kernels,
        raw.MEMCPY: _copies(stream["memcpy"], names),
        raw.MEMSET: stream["memset"],
        raw.RUNTIME: _host_events(frames["call"], identity, "nameId"),
        raw.NVTX: _host_events(frames["range"], identity, "textId").with_columns(
            pl.lit(PUSH_POP, pl.Int64).alias("eventType"),
            pl.lit(0, pl.Int64).alias("domainId"),
            pl.lit(None, pl.String).alias("text"),
        ),
        raw.OVERHEAD: _profiler_overhead(frames["overhead"], names),
        raw.SYNCHRONIZATION: _synchronizations(stream["sync"], names),
        raw.CUDA_EVENT: _event_records(stream["event"], stream["sync"]),
        raw.SCOPES: scope_table(frames[SCOPE], identity),
        raw.MATH: math_table(frames[MATH], identity),
        raw.MESSAGES: message_table(frames[MESSAGE], identity),
        raw.MEMORY: memory_table(frames[MEMORY], identity),
    }
    present = {
        table: frame.select([column for column in raw.TABLES[table].columns if column in frame.columns])
        for table, frame in converted.items()
        if table in ALWAYS_PRESENT or len(frame)
    }
    return present | {
        "ThreadNames": _thread_names(frames[METADATA], identity, names),
        "TARGET_INFO_GPU": _gpu_table(gpus),
        raw.STRINGS: _strings(names, kernels["name"].unique().sort()),
    }


def scope_table(scopes: pl.DataFrame, identity: TraceIdentity) -> pl.DataFrame:
    """Return raw.SCOPES of a trace."""
    return scopes.with_columns(identity.global_tid(scopes), pl.col("name").alias("nameId")).select(
        raw.TABLES[raw.SCOPES].columns
    )


def memory_table(events: pl.DataFrame, identity: TraceIdentity) -> pl.DataFrame:
    """Return raw.MEMORY from the allocations of a trace."""
    thread = identity.global_tid(events)
    return events.with_columns(
        thread,
        (thread // (1 << 24) * (1 << 24)).alias("globalPid"),
        pl.col("device").alias("deviceId"),
        pl.col("bytes").abs(),
        pl.lit(TENSOR_MEMORY, pl.Int64).alias("memKind"),
        (pl.col("bytes") < 0).cast(pl.Int64).alias("memoryOperationType"),
    ).select(column for column in raw.TABLES[raw.MEMORY].columns if column != "correlationId")


def math_table(ops: pl.DataFrame, identity: TraceIdentity) -> pl.DataFrame:
    """Return raw.MATH from the ops of a trace."""
    named = ops.with_columns(identity.global_tid(ops), pl.col("name").alias("nameId"), pl.col("label").alias("textId"))
    return named.select(raw.TABLES[raw.MATH].columns)


def message_table(messages: pl.DataFrame, identity: TraceIdentity) -> pl.DataFrame:
    """Return raw.MESSAGES: the messages of kernels, with the arguments of the op where the kernel has none.

    If several kernels share an external id, it is unknown which part of the message each of them sends.
    """
    kernels = messages.filter(pl.col("is_kernel") == 1)
    own = kernels.filter(pl.col("name").is_not_null())
    bare = kernels.filter(pl.col("name").is_null(), pl.col("external").is_not_null())
    ops = messages.filter(pl.col("is_kernel") == 0, pl.col("name").is_not_null()).unique("external", keep="none")
    arguments = ("external", "name", "label", "sent", "received", "group_size", "dtype")
    linked = (
        bare.unique("external", keep="none")
        .select("external", "correlation", "pid", "tid")
        .join(ops.select(arguments), on="external")
    )
    known = pl.concat([own.select(*arguments, "correlation", "pid", "tid"), linked], how="diagonal")
    size = pl.col("dtype").replace_strict(ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
    return known.with_columns(
        pl.col("correlation").alias("correlationId"),
        identity.global_pid(known),
        pl.col("name").alias("nameId"),
        pl.col("label").alias("textId"),
        pl.col("group_size").alias("groupSize"),
        pl.col("dtype").alias("elementType"),
        (pl.col("sent") * size).alias("sentBytes"),
        (pl.col("received") * size).alias("receivedBytes"),
    ).select(raw.TABLES[raw.MESSAGES].columns)


def _stream_events(events: pl.DataFrame, identity: TraceIdentity) -> pl.DataFrame:
    return events.with_columns(
        pl.coalesce("device", "pid").fill_null(0).alias("deviceId"),
        pl.col("context").fill_null(0).alias("contextId"),
        pl.coalesce("stream", "tid").fill_null(0).alias("streamId"),
        pl.col("correlation").fill_null(0).alias("correlationId"),
        identity.global_pid(events),
    )


def _host_events(events: pl.DataFrame, identity: TraceIdentity, name: str) -> pl.DataFrame:
    return events.with_columns(
        pl.col("correlation").fill_null(0).alias("correlationId"),
        pl.col("name").alias(name),
        identity.global_tid(events),
    )


def _profiler_overhead(events: pl.DataFrame, names: tuple[str, ...]) -> pl.DataFrame:
    """Return the overhead of the profiler; the driver's own, which has the same category, belongs to its calls."""
    own = [code for code in events["name"].unique().to_list() if DRIVER_WORK.search(names[code]) is None]
    return events.filter(pl.col("name").is_in(own))


def _copies(copies: pl.DataFrame, names: tuple[str, ...]) -> pl.DataFrame:
    used = copies["name"].unique()
    rows = [(index, *copy_kind_and_memories(names[index])) for index in used.to_list()]
    schema = dict.fromkeys(("name", "copyKind", "srcKind", "dstKind"), pl.Int64)
    kinds = pl.DataFrame(rows, schema=schema, orient="row")
    return copies.join(kinds, on="name", how="left", maintain_order="left").with_columns(pl.col("bytes").fill_null(0))


def copy_kind_and_memories(name: str) -> tuple[int, int, int]:
    """Return copyKind, srcKind and dstKind; 0 and UNKNOWN_MEMORY if the name does not contain them."""
    match = COPY_NAME.fullmatch(name)
    if match is None:
        return 0, UNKNOWN_MEMORY, UNKNOWN_MEMORY
    kind, memories = match.groups()
    source, arrow, target = (memories or "").rpartition(" -> ")
    if memories and not arrow:
        return 0, UNKNOWN_MEMORY, UNKNOWN_MEMORY
    return COPY_KINDS.get(kind, 0), MEMORIES.get(source, UNKNOWN_MEMORY), MEMORIES.get(target, UNKNOWN_MEMORY)


def _synchronizations(events: pl.DataFrame, names: tuple[str, ...]) -> pl.DataFrame:
    types = {
        index: SYNC_TYPES[names[index]] for index in events["name"].unique().to_list() if names[index] in SYNC_TYPES
    }
    sync_type = pl.col("name").replace_strict(types, default=None, return_dtype=pl.Int64)
    stream = pl.when(pl.col("streamId") < 0).then(pl.lit(NO_STREAM, pl.Int64)).otherwise(pl.col("streamId"))
    return events.with_columns(
        stream.alias("streamId"), sync_type.alias("syncType"), pl.col("wait_on_cuda_event_id").alias("eventId")
    ).filter(pl.col("syncType").is_not_null())


def _event_records(events: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """Return the event records of the trace; if it has none, those that its waits name, each once."""
    if len(events):
        return events.with_columns(pl.col("event_id").alias("eventId"))
    columns = raw.TABLES[raw.CUDA_EVENT].columns
    named = waits.filter((pl.col("wait_on_stream") >= 0) & (pl.col("wait_on_cuda_event_record_corr_id") > 0))
    return (
        named.with_columns(
            pl.col("wait_on_stream").alias("streamId"),
            pl.col("wait_on_cuda_event_record_corr_id").alias("correlationId"),
            pl.col("wait_on_cuda_event_id").alias("eventId"),
        )
        .select(columns)
        .unique(maintain_order=True)
    )


def _thread_names(metadata: pl.DataFrame, identity: TraceIdentity, names: tuple[str, ...]) -> pl.DataFrame:
    """Return the threads of known processes with the indices of their names."""
    if "thread_name" not in names:
        return pl.DataFrame(schema={"nameId": pl.Int64, "globalTid": pl.Int64})
    named = metadata.filter(
        pl.col("name") == names.index("thread_name"), pl.col("pid").is_in(identity.processes["pid"].implode())
    )
    return named.select(pl.col("label").alias("nameId"), identity.global_tid(named))


def _gpu_table(gpus: tuple[TraceGpu, ...]) -> pl.DataFrame:
    rows = [(gpu.ordinal, gpu.name, gpu.ordinal, *map(gpu.limits.get, GPU_LIMITS), gpu.max_blocks) for gpu in gpus]
    schema = {"id": pl.Int64, "name": pl.String} | dict.fromkeys(
        ("cuDevice", *GPU_LIMITS.values(), "maxBlocksPerSm"), pl.Int64
    )
    return pl.DataFrame(rows, schema=schema, orient="row").with_columns(pl.col("maxWarpsPerSm") // WARP)


def _strings(names: tuple[str, ...], kernels: pl.Series) -> pl.DataFrame:
    """Return all names, followed by the short names of kernels."""
    full = pl.DataFrame(
        {"id": range(len(names)), "value": [_without_thread_id(name) for name in names]}, schema=STRINGS_SCHEMA
    )
    short = [(index + len(names), short_kernel_name(names[index])) for index in kernels.to_list()]
    return pl.concat([full, pl.DataFrame(short, schema=STRINGS_SCHEMA, orient="row")])


def _without_thread_id(name: str) -> str:
    """Return `python` for a thread that Kineto calls `thread 1102 (python)`."""
    if name.startswith("thread ") and name.endswith(")"):
        return name.partition(" (")[2][:-1] or name
    return name


def short_kernel_name(name: str) -> str:
    """Return a kernel's name as nsys shortens it: without parameters, templates, namespaces and return type.

    `void at::native::vectorized_elementwise_kernel<4, ...>(int, ...)` becomes `vectorized_elementwise_kernel`.
    """
    kept: list[str] = []
    depth = 0
    for letter in name.replace("(anonymous namespace)::", ""):
        if letter in OPENING:
            if depth == 0 and letter == "(":
                break
            depth += 1
        elif letter in CLOSING:
            depth -= 1
        elif depth == 0:
            kept.append(letter)
    plain = "".join(kept).strip().rsplit("::", 1)[-1].rsplit(" ", 1)[-1]
    return plain or name


SESSION_TABLE = "TARGET_INFO_SESSION_START_TIME"  # the time of day at 0 of the capture's clock, which aligns ranks
MIN_EPOCH_NS = 1_000_000_000_000_000_000  # the year 2001; smaller values do not count from 1970
OPEN_LIST = (
    "the list of events has no closing bracket: the trace was read up to its last whole event. torch leaves such a "
    "file when its process ends while it writes: let the process run until prof.export_chrome_trace(FILE) returns"
)
NOT_ESCAPED = (
    "torch writes quotes, backslashes and line breaks in names as they are, and N/A, nan or inf for numbers. Another "
    "export has them too; profile without with_stack=True, from which most of them come"
)
WRITE_ONE = "torch.profiler writes one with prof.export_chrome_trace(FILE)"
SYNC_EVENTS = "experimental_config=torch._C._profiler._ExperimentalConfig(enable_cuda_sync_events=True)"


def read_trace(path: Path) -> RawCapture:
    """Read a trace. Times count from its first event.

    Raises DamagedExportError, NotAnExportError or ReportError with a one-line message.
    """
    name = display_name(path)
    try:
        events, first_ns, document, problems = _read_events(path)
    except OSError as error:
        raise ReportError(f"{name}: cannot be read ({error.strerror}); check its permissions") from None
    except NotJsonError as error:
        raise _refusal(name, error) from None
    if not document.is_torch and not events.event_count:
        raise NotAnExportError(f"{name}: a Chrome trace, but not of torch.profiler; {WRITE_ONE}")
    return _capture(path.name, events, first_ns, document, problems)


def _capture(
    file: str, events: TraceEvents, first_ns: int, document: TraceDocument, problems: tuple[str, ...]
) -> RawCapture:
    """Return the capture of events with times from the first one, which began at `first_ns` of the trace's clock."""
    tables = nsys_tables(events, document.gpus)
    if (epoch := document.base_ns + first_ns) > MIN_EPOCH_NS:
        tables[SESSION_TABLE] = pl.DataFrame({"utcEpochNs": [epoch]}, schema={"utcEpochNs": pl.Int64})
    return with_missing(RawCapture(file, None, None, tables, problems, distributed=document.distributed))


class _Read(NamedTuple):
    """The events of a trace, the start of the first (ns), the text around them, and notes on what is missing."""

    events: TraceEvents
    first_ns: int
    document: TraceDocument
    problems: tuple[str, ...]


def _read_events(path: Path) -> _Read:
    """Read a trace. Raises NotJsonError."""
    with path.open("rb") as file:
        pieces = Pieces(file)
        events = trace_events(pieces, DecodedSize(display_name(path)))
    if pieces.is_open and not events.event_count:
        raise NotJsonError("ends before its first whole event", cut_off=True)
    document = pieces.document()
    events, first_ns = relative_times(events)
    problems = [OPEN_LIST] if pieces.is_open else []
    if any(events.faults):
        problems.append(
            f"{quantity(sum(events.faults), 'event')} of the trace not valid JSON: {events.faults.repaired} repaired, "
            f"{events.faults.left_out} left out; {NOT_ESCAPED}"
        )
    return _Read(events, first_ns, document, tuple(problems))


def with_missing(capture: RawCapture) -> RawCapture:
    """Return a capture made from a trace, attributed to torch.profiler, with notes on what is missing."""
    tables = dict(capture.tables)
    for name in (raw.KERNEL, raw.MEMCPY, raw.MEMSET, raw.RUNTIME):
        tables.setdefault(name, pl.DataFrame(schema=dict.fromkeys(raw.TABLES[name].columns, pl.Int64)))
    calls = tables[raw.RUNTIME]
    used = tables[raw.STRINGS].join(calls.select(pl.col("nameId").unique().alias("id")), on="id", how="semi")["value"]
    processes = calls.select((pl.col("globalTid") // (1 << 24)).n_unique()).item()
    problems = (*capture.problems, *missing_notes(tables, used.drop_nulls().to_list(), processes))
    return capture._replace(problems=problems, profiler=raw.TORCH_PROFILER)


def _refusal(name: str, error: NotJsonError) -> ReportError:
    if error.cut_off:
        return DamagedExportError(
            f"{name}: cut off: it {error}; torch leaves such a file when its process ends while it writes: let the "
            "process run until prof.export_chrome_trace(FILE) returns"
        )
    return NotAnExportError(f"{name}: not a trace of torch.profiler: it {error}; {WRITE_ONE}")


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
    for calls_begin, note in ((HIP_CALLS, OF_AMD), (XPU_CALLS, OF_INTEL)):
        if any(name.startswith(calls_begin) for name in calls):
            yield note


def _has_whole_microseconds(tables: Mapping[str, pl.DataFrame]) -> bool:
    ends = pl.concat([tables[name]["end"] for name in (raw.KERNEL, raw.MEMCPY, raw.MEMSET)])
    return len(ends) > 10 and bool((ends % 1000 == 0).all())
