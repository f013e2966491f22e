"""The normalised frames and the tables of measures as Parquet, for polars, pandas and DuckDB.

Columns in ns end in `_ns`; times are on the capture's clock. The first column of a frame's table is the row number in
the full capture. A column of the same name in another table refers to it. Tables of measures have the columns of the
JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import polars as pl
from polars import selectors as cs

from traceview.captures.export.contents import ExportContents
from traceview.measure import MEASURES
from traceview.measure.devices import measure_device
from traceview.measure.host import LINES, HostIdle
from traceview.measure.nvtx import project_operations
from traceview.measure.places import locate_operations
from traceview.model.analysis import CAUSES, DeviceUse
from traceview.model.columns import Table, Unit, columns, field_names
from traceview.model.rows import size_text

DEVICE_FIGURES = ("kernel_count", "busy_ns", "compute_ns", "communication_ns", "idle_ns")
UNIT_TYPES: Mapping[Unit, type[pl.DataType] | None] = {
    **dict.fromkeys(("text", "code", "size"), pl.String),
    **dict.fromkeys(("fraction", "ratio", "bytes_per_ns", "flops", "flops_per_s"), pl.Float64),
    "flag": pl.Boolean,
    "causes": None,  # a struct with a field for each cause
}
# Row numbers and ids have the same type in all tables, so that any program can join them.
COMMON_TYPES = (cs.by_dtype(pl.Int16).cast(pl.Int32), cs.by_dtype(pl.UInt32).cast(pl.Int64))


# Builds a table from the contents and the figures of the devices.
Build = Callable[[ExportContents, tuple[DeviceUse, ...]], pl.DataFrame]


def tables(contents: ExportContents) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield every table with its name."""
    places = locate_operations(contents.trace, project_operations(contents.trace))
    devices = tuple(measure_device(contents.trace, contents.host, work, places) for work in contents.activities)
    for name, build in TABLES.items():
        yield name, build(contents, devices).with_columns(COMMON_TYPES)


def _times(*columns: str) -> list[pl.Expr]:
    start, end = pl.col("start"), pl.col("end")
    return [*map(pl.col, columns), start.alias("start_ns"), end.alias("end_ns"), (end - start).alias("duration_ns")]


def _operations(contents: ExportContents, _devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    # The id of a GPU, as in the JSON.
    ids = contents.trace.devices["id"].gather(contents.operations["device"])
    call = pl.col("launch").cast(pl.Int64)
    return contents.operations.with_columns(ids.alias("device"), call=call, operation="row").select(
        *_times("operation"),
        *("class", "source", "kind", "memory", "bytes", "name", "process", "device", "stream", "correlation", "call"),
    )


def _api(contents: ExportContents, _devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    return contents.api.with_columns(call="row", blocks_implicitly="implicit").select(
        *_times("call"), "name", "role", "blocks_implicitly", "process", "thread", "correlation"
    )


def _ranges(contents: ExportContents, _devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    return contents.ranges.with_columns(range="row").select(
        *_times("range"), "name", "domain", "process", "thread", "open"
    )


def _gaps(contents: ExportContents, devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    frames = [
        use.gaps.frame.with_columns(pl.lit(use.id).alias("device"), gap=pl.int_range(pl.len(), dtype=pl.Int64))
        for use in devices
    ]
    if not frames:
        return pl.DataFrame(schema=dict.fromkeys(("gap", "device", "start_ns", "end_ns", "duration_ns"), pl.Int64))
    largest = pl.max_horizontal(*CAUSES)
    main = pl.coalesce(pl.when(pl.col(name) == largest).then(pl.lit(name)) for name in CAUSES)
    frame = pl.concat(frames)
    exported = frame["operation"].is_in(contents.operations["row"].cast(pl.Int32).implode())
    return frame.with_columns(operation=pl.when(exported).then("operation").cast(pl.Int64), cause=main).select(
        *_times("gap", "device"),
        *("cause", "operation", "thread"),
        *(pl.col(name).alias(f"{name}_ns") for name in CAUSES),
    )


def _streams(contents: ExportContents, devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    rows = pl.Series("stream", [use.stream for device in devices for use in device.streams], dtype=pl.Int32)
    return _device_table("streams")(contents, devices).insert_column(0, rows)


def _devices(_contents: ExportContents, devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
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


def _threads(contents: ExportContents, _devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    return contents.trace.threads.with_columns(thread=pl.int_range(pl.len(), dtype=pl.Int32)).select(
        "thread", "process", "tid", "name"
    )


def _device_table(name: str) -> Build:
    """Return what builds the table of a measure of each device, with a column that names the device."""

    def build(_contents: ExportContents, devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
        frames = [declared_frame(use.tables[name]).insert_column(0, pl.lit(use.id).alias("device")) for use in devices]
        frame = pl.concat(frames) if frames else pl.DataFrame(schema={"device": pl.String})
        return frame.drop("causes", "exposed_causes", strict=False)  # a table in a flat format has no struct

    return build


def _lines(contents: ExportContents, devices: tuple[DeviceUse, ...]) -> pl.DataFrame:
    host_idle = HostIdle.build(contents.trace, contents.host)
    rows = () if host_idle is None else host_idle.lines([use.gaps.frame for use in devices])
    return declared_frame(LINES.table.with_rows(rows))


def declared_frame(table: Table) -> pl.DataFrame:
    """Return the rows of a declared table with its fields as columns.

    A size becomes a text, `132x2`. Times by cause are a struct.
    """
    fields = set(field_names(table.row_type))
    declared = {column.name: column.unit for column in columns(table.row_type) if column.name in fields}
    values = {
        name: [size_text(getattr(row, name)) if unit == "size" else getattr(row, name) for row in table.rows]
        for name, unit in declared.items()
    }
    return pl.DataFrame(values, schema={name: UNIT_TYPES.get(unit, pl.Int64) for name, unit in declared.items()})


TABLES: Mapping[str, Build] = {
    "operations": _operations,
    "api": _api,
    "ranges": _ranges,
    "gaps": _gaps,
    "streams": _streams,
    "devices": _devices,
    "threads": _threads,
    "lines": _lines,
    **{
        measure.table.name: _device_table(measure.table.name)
        for measure in MEASURES
        if measure.scope != "capture" and measure.table.in_json and measure.table.name != "streams"
    },
}
FILES = tuple(f"{name}.parquet" for name in TABLES)


def write_tables(contents: ExportContents, folder: Path) -> None:
    """Write every table into a folder. Raises OSError if the disk is full."""
    for name, frame in tables(contents):
        try:
            frame.write_parquet(folder / f"{name}.parquet")
        except pl.exceptions.ComputeError as error:  # polars raises this for a full disk
            raise OSError(None, str(error).rpartition("IO error: ")[2]) from None
