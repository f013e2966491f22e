"""Groups of a device's kernels with the longest, the median and the first of each, for the page's table of kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.intervals import Times, rows_where
from traceview.measure.activity import KERNEL, overlaps_window
from traceview.measure.kernels import shape_identities, shape_kinds
from traceview.measure.places.locate import PLACE, Places
from traceview.model.charts import KernelGroup, KernelGrouping, KernelInstance
from traceview.model.trace import Trace, Window

MAX_GROUPS = 200  # the costliest groups of a grouping; the others are one group


class _Kernels(NamedTuple):
    """The kernels of a part of a device's window, and their lengths inside it."""

    start: Times
    end: Times
    ns: Times
    stream: NDArray[np.integer]


def kernel_groupings(trace: Trace, device: int, window: Window, places: Places) -> tuple[KernelGrouping, ...]:
    """Return the kernels of a part of a device's window by launch shape, name, family and place.

    The groups by launch shape are in the order of the table of kernels. A place that no kernel has is left out.
    """
    operations = trace.operations
    on_device = operations["device"].to_numpy() == device
    rows = rows_where(on_device & (operations["source"].to_physical().to_numpy() == KERNEL))
    start, end = (operations[name].to_numpy()[rows] for name in ("start", "end"))
    inside = overlaps_window(start, end, window)
    if not inside.all():
        rows, start, end = rows[inside], start[inside], end[inside]
    ns = np.minimum(end, window.end) - np.maximum(start, window.start)
    kernels = _Kernels(start, end, ns, operations["stream"].to_numpy()[rows])
    shape, place = operations["shape"].to_numpy()[rows], places.code[rows]
    shape_groups = [
        KernelGrouping(name, _groups(kernels, codes[shape], texts)) for name, codes, texts in _by_shape(trace)
    ]
    place_groups = [
        KernelGrouping(name, _groups(kernels, codes[place], texts))
        for name, codes, texts in _by_place(places)
        if codes[place].any()
    ]
    return (*shape_groups, *place_groups) if len(rows) else ()


def _by_shape(trace: Trace) -> Iterator[tuple[str, NDArray[np.integer], Sequence[str | None]]]:
    """Yield each attribute of a launch shape: its code for each of Trace.shapes, and the text of each code."""
    kinds = shape_kinds(trace.shapes)
    identities = shape_identities(trace.shapes)
    yield "shape", identities, [None] * len(identities)
    for name, texts in (("kernel", [kind.label for kind in kinds]), ("family", [kind.family for kind in kinds])):
        yield name, *_numbered(pl.Series(texts, dtype=pl.String))


def _by_place(places: Places) -> Iterator[tuple[str, NDArray[np.integer], Sequence[str | None]]]:
    """Yield each attribute of a place: its code for each place, 0 for null, and the text of each code."""
    for name in PLACE:
        yield name, *_numbered(places.table[name])


def _numbered(texts: pl.Series) -> tuple[NDArray[np.integer], list[str | None]]:
    """Return the code of each text, 0 for null, and the text of each code."""
    unique = texts.drop_nulls().unique(maintain_order=True)
    codes = texts.cast(pl.Enum(unique)).to_physical().cast(pl.Int32) + 1
    return codes.fill_null(0).to_numpy(), [None, *unique.to_list()]


def _groups(
    kernels: _Kernels, code: NDArray[np.integer], texts: Sequence[str | None], limit: int = MAX_GROUPS
) -> tuple[KernelGroup, ...]:
    """Return one group for each code, the costliest first, and one for all codes beyond `limit`."""
    count = np.bincount(code, minlength=len(texts))
    total = np.zeros(len(texts), np.int64)
    np.add.at(total, code, kernels.ns)
    used = np.flatnonzero(count)
    costliest = used[np.argsort(-total[used], kind="stable")]
    rank = np.full(len(texts), limit, np.uint8 if limit < 256 else np.uint16)
    rank[costliest[:limit]] = np.arange(min(limit, len(costliest)))
    members = rank[code]
    order = np.argsort(members, kind="stable")
    ends = np.cumsum(np.bincount(members, minlength=min(limit, len(costliest))))
    names = [texts[at] for at in costliest[:limit].tolist()] + [f"({len(costliest) - limit} others)"]
    return tuple(
        _group(kernels, name, order[first:last])
        for name, first, last in zip(names, [0, *ends[:-1].tolist()], ends.tolist(), strict=False)
    )


def _group(kernels: _Kernels, name: str | None, rows: Times) -> KernelGroup:
    ns = kernels.ns[rows]
    middle = (len(rows) - 1) // 2
    chosen = (rows[np.argpartition(ns, middle)[middle]], rows[np.argmax(ns)], rows[0])
    median, longest, first = (
        KernelInstance(int(kernels.start[row]), int(kernels.end[row]), int(kernels.stream[row])) for row in chosen
    )
    return KernelGroup(name, len(rows), int(ns.sum()), median, longest, first)
