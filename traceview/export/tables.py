"""The normalised frames as flat tables, for pandas, polars and spreadsheets.

Times and lengths are ns on the capture's clock and end in `_ns`. The first column of a table numbers its rows as
the whole capture has them; a column of that name in another table refers to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import polars as pl
from polars import selectors as cs

from traceview.export.contents import Contents
from traceview.measure.devices import measure_devices
from traceview.model.analysis import CAUSES, DeviceUse

DEVICE_FIGURES = ("kernel_count", "busy_ns", "compute_ns", "communication_ns", "idle_ns")
STREAM_FIGURES = (
    *("label", "kernel_count", "copy_count", "operation_count", "bytes"),
    *("busy_ns", "compute_ns", "communication_ns", "copy_ns", "gap_count", "gap_ns"),
)
# Rows and ids have one type in all tables, so that any program can join them.
WIDER = (cs.by_dtype(pl.Int16).cast(pl.Int32), cs.by_dtype(pl.UInt32).cast(pl.Int64))


@dataclass(frozen=True, slots=True)
class Table:
    """One table: its name, and how it is made of what is exported and of the devices' figures."""

    name: str
    make: Callable[[Contents, tuple[DeviceUse, ...]], pl.DataFrame]


def tables(of: Contents) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield every table with its name."""
    devices = measure_devices(of.trace, of.host, of.activities)
    for table in TABLES:
        yield table.name, table.make(of, devices).with_columns(WIDER)


def _times(*columns: str) -> list[pl.Expr]:
    start, end = pl.col("start"), pl.col("end")
    return [*map(pl.col, columns), start.alias("start_ns"), end.alias("end_ns"), (end - start).alias("duration_ns")]


def _operations(of: Contents, _devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    # A GPU is called by its id everywhere, as in the JSON.
    ids = of.trace.devices["id"].gather(of.operations["device"])
    call = pl.col("launch").cast(pl.Int64)
    return of.operations.with_columns(ids.alias("device"), call=call, operation="row").select(
        *_times("operation"),
        *("class", "source", "kind", "memory", "bytes", "name", "process", "device", "stream", "correlation", "call"),
    )


def _api(of: Contents, _devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    return of.api.with_columns(call="row", blocks_implicitly="implicit").select(
        *_times("call"), "name", "role", "blocks_implicitly", "process", "thread", "correlation"
    )


def _ranges(of: Contents, _devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    return of.ranges.with_columns(range="row").select(*_times("range"), "name", "domain", "process", "thread", "open")


def _gaps(of: Contents, devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    frames = [
        use.gaps.frame.with_columns(pl.lit(use.id).alias("device"), gap=pl.int_range(pl.len(), dtype=pl.Int64))
        for use in devices
    ]
    if not frames:
        return pl.DataFrame(schema=dict.fromkeys(("gap", "device", "start_ns", "end_ns", "duration_ns"), pl.Int64))
    largest = pl.max_horizontal(*CAUSES)
    main = pl.coalesce(pl.when(pl.col(name) == largest).then(pl.lit(name)) for name in CAUSES)
    frame = pl.concat(frames)
    exported = frame["operation"].is_in(of.operations["row"].cast(pl.Int32).implode())
    return frame.with_columns(operation=pl.when(exported).then("operation").cast(pl.Int64), cause=main).select(
        *_times("gap", "device"),
        *("cause", "operation", "thread"),
        *(pl.col(name).alias(f"{name}_ns") for name in CAUSES),
    )


def _streams(_of: Contents, devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    uses = [(device, use) for device in devices for use in device.streams]
    return pl.DataFrame(
        {
            "stream": pl.Series([use.stream for _, use in uses], dtype=pl.Int32),
            "device": [device.id for device, _ in uses],
            "process": pl.Series([use.process_id for _, use in uses], dtype=pl.Int32),
            "context": [use.context_id for _, use in uses],
            "stream_id": [use.id for _, use in uses],
            **{name: [getattr(use, name) for _, use in uses] for name in STREAM_FIGURES},
        }
    )


def _devices(_of: Contents, devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "device": [use.id for use in devices],
            "name": [use.name for use in devices],
            "processes": [" ".join(map(str, use.process_ids)) for use in devices],
            "window_start_ns": [use.window.start for use in devices],
            "window_end_ns": [use.window.end for use in devices],
            **{name: [getattr(use, name) for use in devices] for name in DEVICE_FIGURES},
        }
    )


def _threads(of: Contents, _devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    return of.trace.threads.with_columns(thread=pl.int_range(pl.len(), dtype=pl.Int32)).select(
        "thread", "process", "tid", "name"
    )


TABLES = (
    Table("operations", _operations),
    Table("api", _api),
    Table("ranges", _ranges),
    Table("gaps", _gaps),
    Table("streams", _streams),
    Table("devices", _devices),
    Table("threads", _threads),
)
