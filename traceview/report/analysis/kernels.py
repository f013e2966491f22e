"""The page's table of kernels: rows by launch shape, name, family and place, each with its instances."""

from __future__ import annotations

from typing import Any

from traceview.model.analysis import Analysis, NotMeasured
from traceview.model.charts import KernelGrouping, KernelInstance, SimilarKernels
from traceview.model.columns import Column, columns
from traceview.model.devices import DeviceUse
from traceview.model.rows import KernelUse
from traceview.report.analysis.answer import covered
from traceview.report.format import plain

Json = dict[str, Any]
FIGURES = ("share", "total_ns", "per_iteration_ns", "count", "mean_ns")  # the figures of every row
SHAPE = (
    "family",
    "precision",
    "tensor_core",
    "waves",
    "occupancy",
    "grid_text",
    "occupancy_limit",
    "registers",
    "shared_bytes",
)
PLACE = ("range", "module", "op", "inner_op", "line", "direction")
PER_ITERATION = Column("per_iteration_ns", "ns", "per iteration", "Total over the number of iterations.")
MAX_NAME = 300


def kernel_section(analysis: Analysis, device: DeviceUse, groupings: tuple[KernelGrouping, ...], zero: int) -> Json:
    """Return the kernels of the part of a device's window that findings cover; times count from `zero`."""
    part = analysis.part(device)
    total = sum(group.total_ns for group in groupings[0].groups) if groupings else 0
    times = _iteration_count(analysis)
    declared = {column.name: column for column in (*columns(KernelUse), PER_ITERATION)}
    figures = [name for name in FIGURES if times or name != "per_iteration_ns"]

    def values(count: int, ns: int) -> list[float | int]:
        each = {"share": ns / total if total else 0.0, "per_iteration_ns": ns // (times or 1), "mean_ns": ns // count}
        return [(each | {"count": count, "total_ns": ns})[name] for name in figures]

    def row(group: SimilarKernels, use: KernelUse | None) -> Json:
        return {
            "name": plain((use.label if use else group.name) or "", MAX_NAME),
            "full": plain(use.demangled or "", 2 * MAX_NAME) if use else "",
            "values": values(group.count, group.total_ns) + ([getattr(use, name) for name in SHAPE] if use else []),
            "instances": [_instance(each, zero) for each in (group.median, group.longest, group.first)],
        }

    def rows(grouping: KernelGrouping) -> list[Json]:
        uses: tuple[KernelUse | None, ...] = (None,) * len(grouping.groups)
        if grouping.by == "shape":
            uses = part.tables["kernels"].rows
        return [row(group, use) for group, use in zip(grouping.groups, uses, strict=True)]

    return {
        "device": device.id,
        "covers": covered(analysis, device),
        "columns": [_column(declared[name]) for name in (*figures, *SHAPE)],
        "figures": len(figures),
        "groupings": [{"by": grouping.by, "rows": rows(grouping)} for grouping in groupings],
        "places": [
            {
                "name": plain(place.kernel, MAX_NAME),
                "full": "",
                "values": values(place.count, place.total_ns),
                "instances": [],
                "place": {name: plain(text, MAX_NAME) for name in PLACE if (text := getattr(place, name)) is not None},
            }
            for place in part.tables["kernel_places"].rows
        ],
    }


def _iteration_count(analysis: Analysis) -> int | None:
    iterations = analysis.iterations
    if isinstance(iterations, NotMeasured):
        return None
    return iterations.count if analysis.whole else iterations.count - iterations.skipped


def _column(column: Column) -> Json:
    return {"name": column.name, "title": column.title, "unit": column.unit}


def _instance(instance: KernelInstance, zero: int) -> tuple[int, int, int]:
    return instance.start - zero, instance.end - instance.start, instance.stream
