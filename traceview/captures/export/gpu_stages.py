"""A capture in Perfetto's GPU data model: the GPUs, a render stage for each operation, and counters.

Perfetto's tables `gpu`, `gpu_slice`, `gpu_track` and `gpu_counter_track`, and the GPU views of its UI, have what these
messages describe. A stream is a hardware queue. trace_processor itself puts stages of a queue that overlap on several
tracks. Field numbers are from protos/perfetto/trace/gpu, gpu_track_event.proto included, in Perfetto's repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
import polars as pl

from traceview.captures.export.contents import ExportContents
from traceview.captures.export.wire import Chunk, message, messages, text, uint, uints
from traceview.intervals import Times
from traceview.measure import COUNTERS
from traceview.model.sizes import CounterSeries
from traceview.model.trace import KINDS, MEMORIES, SOURCES

STAGES = ("kernel", "communication", "graph", "copy", "memset")
COMPUTE, CUDA, BACKWARDS = 2, 4, 1
# TracePacket, InternedData
GPU_COUNTERS, GPU_STAGE, GPU_INFO = 52, 53, 128
CONTEXTS, SPECIFICATIONS, COMPUTE_KERNELS, ARGUMENT_NAMES = 23, 24, 1000, 1001
# GpuRenderStageEvent
EVENT_ID, DURATION, LAUNCH = 1, 2, 21
STAGE_FIELDS = {5: "context", 11: "gpu", 13: "queue", 14: "stage", 19: "kernel", 20: "name"}
INTEGERS, WORDS = ("correlation", "bytes"), ("kind", "memory")
ARGUMENTS = (*INTEGERS, *WORDS)
GRID, BLOCK = (tuple(f"{name}_{axis}" for axis in "xyz") for name in ("grid", "block"))
LIMITS = ("sm_count", "warps_per_sm", "registers_per_sm", "shared_bytes_per_sm", "blocks_per_sm")
SHAPE_SIZES = {"launch__grid_size": GRID, "launch__block_size": BLOCK}
FIRST_STAGE = 1  # the id of the first operation's render stage
COUNTERS_PER_GPU = 1 << 8
MAX_RATE = 1e15  # bytes/s; above any real copy, so that sums over a damaged capture do not overflow
# Perfetto's units (numerator, denominator) and group, MEMORY or COMPUTE, of a unit of CounterSeries
UNITS = {"bytes": (7, 0, 5), "bytes/s": (7, 22, 5), "%": (37, 0, 6), "MHz": (15, 0, 6)}


def gpu_info(contents: ExportContents) -> bytes:
    """Return the GpuInfo packet of a capture's GPUs."""
    gpus = []
    for device, row in enumerate(contents.trace.devices.iter_rows(named=True)):
        gpu = text(1, contents.device_name(device)) + text(2, "NVIDIA") + text(3, row["name"])
        if row["compute_capability"] is not None:
            gpu += text(4, f"sm_{row['compute_capability']}")
        limits = ((name, row[name]) for name in LIMITS)
        known = (message(6, text(1, name), text(2, str(value))) for name, value in limits if value is not None)
        gpus.append(message(1, gpu, *known))
    return message(GPU_INFO, *gpus)


def stage_specifications(contents: ExportContents) -> Iterator[bytes]:
    """Yield the entries of InternedData that render stages refer to: stages, queues, contexts, kernels, arguments."""
    trace = contents.trace
    for row, stage in enumerate(STAGES):
        category = uint(4, COMPUTE) if stage in STAGES[:3] else b""
        yield message(SPECIFICATIONS, uint(1, row + 1), text(2, stage), text(3, stage), category)
    shared = [len(processes) > 1 for processes in trace.devices["processes"]]
    for row, stream in enumerate(trace.streams.iter_rows(named=True)):
        name = stream["label"] + (f" (process {stream['process']})" if shared[stream["device"]] else "")
        yield message(SPECIFICATIONS, uint(1, len(STAGES) + 1 + row), text(2, name))
    for process, _, number in _contexts(trace.streams).iter_rows():
        yield message(CONTEXTS, uint(1, number), uint(2, process), uint(3, CUDA))
    for row in contents.operations["shape"].unique().sort().to_list():
        if row:  # row 0 stands for operations that are not kernels
            yield _kernel(row, trace.shapes.row(row, named=True))
    for row, name in enumerate(ARGUMENTS):
        yield message(ARGUMENT_NAMES, uint(1, row + 1), text(2, name))


def _contexts(streams: pl.DataFrame) -> pl.DataFrame:
    """Return the number of each CUDA context. Numbers of CUDA repeat in other processes."""
    return (
        streams.select("process", "context")
        .unique(maintain_order=True)
        .with_row_index("number", 1)[["process", "context", "number"]]
    )


def _kernel(row: int, shape: Mapping[str, Any]) -> bytes:
    """Return a kernel of one launch shape. Arguments have the names that Nsight Compute and Perfetto's UI give them."""
    values = {
        "launch__registers_per_thread": shape["registers"],
        "launch__shared_mem_per_block": shape["shared_bytes"],
        **{name: prod(shape[axis] or 0 for axis in axes) for name, axes in SHAPE_SIZES.items()},
    }
    arguments = (message(5, text(2, name), uint(3, value)) for name, value in values.items() if value)
    names = text(2, shape["name"] or "") + text(3, shape["demangled"] or shape["name"] or "")
    return message(COMPUTE_KERNELS, uint(1, row), names, *arguments)


def stage_frame(contents: ExportContents, names: pl.Series) -> pl.DataFrame:
    """Return the columns of the render stages: those of GpuRenderStageEvent, and ARGUMENTS with nulls.

    `names` has the numbers of the operations' names in the interned texts.
    """
    frame, trace = contents.operations, contents.trace
    stage = np.array([STAGES.index({"memcpy": "copy"}.get(name, name)) for name in SOURCES])
    stage = stage[frame["source"].to_physical().to_numpy()]
    stage[(frame["class"] == "communication").to_numpy()] = STAGES.index("communication")
    stream = frame["stream"].to_numpy().astype(np.int64)
    context = trace.streams.join(_contexts(trace.streams), on=["process", "context"], maintain_order="left")
    sized = pl.col("source").is_in(["memcpy", "memset"])
    shape = trace.shapes.select(*GRID, *BLOCK)[frame["shape"]]
    own = frame.select(
        *("start", "end"),
        pl.col("correlation").cast(pl.Int64),
        pl.when(sized).then("bytes").alias("bytes"),
        *(pl.col(name).to_physical().cast(pl.Int64) for name in WORDS),
        pl.when(pl.col("shape") > 0).then("shape").cast(pl.Int64).alias("kernel"),
    )
    return own.hstack(shape).with_columns(
        event=pl.int_range(FIRST_STAGE, FIRST_STAGE + len(frame)),
        stage=pl.Series(stage + 1),
        queue=pl.Series(stream + len(STAGES) + 1),
        gpu=frame["device"].cast(pl.Int64),
        context=context["number"].gather(stream),
        name=names,
    )


def stage_parts(alike: pl.DataFrame, words: Mapping[str, int]) -> list[Chunk]:
    """Return the render stages of operations with the same known columns. `words` has the number of each text."""

    def column(name: str) -> Times:
        return alike[name].to_numpy().astype(np.int64)

    known = {name for name in alike.columns if alike[name].null_count() == 0}
    chunks: list[Chunk] = [*uints(EVENT_ID, column("event")), *uints(DURATION, column("end") - column("start"))]
    for row, name in STAGE_FIELDS.items():
        if name in known:
            chunks += uints(row, column(name))
    launch: list[Chunk] = []
    for place, axes in ((1, GRID), (2, BLOCK)):
        if known.issuperset(axes):
            launch += messages(place, [each for row, axis in enumerate(axes) for each in uints(row + 1, column(axis))])
    for row, name in enumerate(ARGUMENTS):
        if name in known:
            codes = {"kind": KINDS, "memory": MEMORIES}.get(name)
            value = column(name) if codes is None else np.array([words[code] for code in codes])[column(name)]
            launch += messages(3, [uint(1, row + 1), *uints(3 if codes is None else 7, value)])
    return messages(GPU_STAGE, [*chunks, *(messages(LAUNCH, launch) if launch else ())])


def counter_series(contents: ExportContents) -> Iterator[CounterSeries]:
    """Yield the counters of the GPUs in the window: copies under way, memory in use, and samples of the hardware."""
    devices, window = {each.device for each in contents.activities}, contents.trace.window or contents.trace.span
    for device in sorted(devices):
        yield from _throughput(contents, device)
    for counter in (counter for counters in COUNTERS for counter in counters(contents.trace)):
        if counter.device in devices and counter.unit in UNITS:
            following = np.append(counter.start[1:], window.end)
            kept = np.flatnonzero((following > window.start) & (counter.start < window.end))
            if len(kept):
                start = np.append(np.maximum(counter.start[kept], window.start), window.end)
                yield counter._replace(start=start, value=np.append(counter.value[kept], counter.value[kept[-1]]))


def counter_packets(counter: CounterSeries, number: int, gpu: int) -> tuple[bytes, Times, list[Chunk]]:
    """Return the descriptor of a counter, the times of its samples, and their messages.

    A sample of a GPU has the value since the sample before it, so that each value stands at the time of the next one.
    """
    unit, per, group = UNITS[counter.unit]
    identity = gpu * COUNTERS_PER_GPU + number
    described = uint(1, identity) + text(2, counter.name) + uint(7, unit) + (uint(8, per) if per else b"")
    descriptor = message(1, message(1, described + uint(10, group) + uint(11, BACKWARDS)))
    value = np.rint(np.asarray(counter.value, np.float64)).astype(np.int64)
    sample = messages(2, [uint(1, identity), *uints(2, np.append(0, value[:-1]))])
    return (
        message(GPU_COUNTERS, descriptor + uint(3, gpu)),
        counter.start,
        messages(GPU_COUNTERS, [*sample, uint(3, gpu)]),
    )


def _throughput(contents: ExportContents, device: int) -> Iterator[CounterSeries]:
    """Yield the summed rate of all copies under way, for each kind of copy of a device."""
    copies = contents.operations.filter((pl.col("device") == device) & pl.col("kind").is_not_null())
    copies = copies.filter(pl.col("end") > pl.col("start"))
    for kind in copies["kind"].cast(pl.String).unique().sort():
        mine = copies.filter(pl.col("kind").cast(pl.String) == kind)
        # A copy that the window cuts keeps the rate of the full copy.
        uncut = contents.trace.operations[mine["row"].to_numpy()]
        length = (uncut["end"] - uncut["start"]).to_numpy()
        rate = np.rint(np.clip(mine["bytes"].to_numpy() / length * 1e9, 0, MAX_RATE)).astype(np.int64)
        at = np.concatenate([mine["start"].to_numpy(), mine["end"].to_numpy()])
        change = pl.DataFrame({"at": at, "change": np.concatenate([rate, -rate])})
        change = change.group_by("at").agg(pl.col("change").sum()).sort("at")
        yield CounterSeries(
            f"{kind} copies", "bytes/s", change["at"].to_numpy(), change["change"].cum_sum().to_numpy(), device
        )
