"""A rule and a measure of your own for traceview: copy this package, and change its names."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from traceview.plugin import (
    DeviceInput,
    FindingDraft,
    GapClaim,
    GpuWork,
    Measure,
    MeasuredCapture,
    Rule,
    Table,
    column,
)

MAX_LENGTH = 5_000  # ns; the kernels of the table are shorter


def find_polling(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """The program polls CUDA events.

    Symptom: the GPU is idle inside CUDA calls of a program that calls cudaEventQuery.
    Cause: a loop asks again and again whether the GPU has finished.
    Remedy: wait with cudaEventSynchronize, or look at the event once in each iteration.

    Claims the idle time in CUDA calls (cause `api`).
    """
    name = pl.col("name").cast(pl.String)
    queries = capture.calls_for(device).filter(name.str.starts_with("cudaEventQuery"))
    if len(queries):
        yield FindingDraft("event_polling", device, (GapClaim(("api",)),), {"queries": f"{len(queries):,}"})


TEXTS = {
    "title": "The program polls events: cudaEventQuery is called {queries} times",
    "advice": "The GPU is idle for {cost} in CUDA calls. {fix}",
    "remedy": "Wait for the event instead of polling it.",
    "loss": "polling of events",
    "effect": "waiting for events",
    "place": "inside a CUDA call",
    "cuda": {"fix": "Wait with cudaEventSynchronize instead of polling.", "code": "cudaEventSynchronize(event);"},
    "pytorch": {"fix": "Wait with `event.synchronize()` instead of polling.", "code": "event.synchronize()"},
}
event_polling = Rule("event_polling", find_polling, {"event_polling": TEXTS})


@dataclass(frozen=True)
class ShortKernels:
    """The short kernels of one stream."""

    stream: int = column("id", "stream", "CUDA's id of the stream.")
    count: int = column("count", "kernels", "Number of kernels shorter than 5 µs.")
    total_ns: int = column("ns", "time", "Sum of their lengths.")


def short_kernels(given: DeviceInput) -> tuple[ShortKernels, ...]:
    """Return the short kernels of each stream of a GPU, in the order of the streams."""
    length = pl.col("end") - pl.col("start")
    kernels = given.trace.operations[given.activity.rows].filter(pl.col("source").cast(pl.String) == "kernel")
    short = kernels.filter(length < MAX_LENGTH).group_by("stream").agg(pl.len(), length.sum().alias("ns"))
    ids = given.trace.streams["stream_id"]
    return tuple(ShortKernels(ids[stream], count, ns) for stream, count, ns in short.sort("stream").iter_rows())


SHORT_KERNELS = Measure(Table(name="short_kernels", title="Short kernels", row_type=ShortKernels), short_kernels)
