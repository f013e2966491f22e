"""Groups of a device's kernels with the longest, the median and the first of each, for the page's table of kernels.

The kernels of each launch shape, place and length are one row of a small frame, and all figures follow from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import BEFORE_ALL, Times, distinct_rows, integer_type, rows_where
from traceview.measure.activity import KERNEL, overlaps_window
from traceview.measure.kernels.families import shape_kinds
from traceview.measure.places import PLACE, Places
from traceview.model.analysis import DeviceUse
from traceview.model.charts import KernelGrouping, KernelInstance, LaunchShape, SimilarKernels
from traceview.model.trace import SHAPES, Trace

MAX_GROUPS = 200  # the costliest groups of a grouping; the others are one group
MAX_SUMS = 200_000  # rows of KernelSums.sums; lengths are rounded where there are more
DIGITS = (3, 2, 1)  # digits of a rounded length; the first that gives at most MAX_SUMS rows is used
# A kernel counts in the window of its device, in the steady part, or in both. One that crosses the border of the steady
# part counts twice, with its length inside the window and with its length inside the steady part.
IN_WINDOW, IN_BOTH, IN_STEADY = range(3)
KEYS = ("shape", "place", "part")


class KernelSums(NamedTuple):
    """The kernels of a device.

    `sums` has a row for each launch shape, place, part (IN_WINDOW, ...) and length in ns: shape (row of `shapes`),
    place (row of `places`), part, ns, count, total_ns, and start, end and stream of the first of these kernels. If
    lengths are rounded, a row has the longest kernel, and the first of each shape, place and part has its own row. Rows
    are in the order of time. `shapes` has the columns of SHAPES, `places` those of PLACE.
    """

    sums: pl.DataFrame
    shapes: pl.DataFrame
    places: pl.DataFrame


def sum_kernels(trace: Trace, device: DeviceUse, places: Places) -> KernelSums:
    """Return the kernels inside the window of a device."""
    operations, window, steady = trace.operations, device.window, device.steady.window
    is_kernel = operations["source"].to_physical().to_numpy() == KERNEL
    on_device = operations["device"].to_numpy() == device.device
    rows = rows_where(is_kernel & on_device)
    start, end = (operations[name].to_numpy()[rows] for name in ("start", "end"))
    last = int(operations["end"].to_numpy().max(initial=BEFORE_ALL, where=on_device))
    inside = overlaps_window(start, end, window, last)
    if not inside.all():
        rows, start, end = rows[inside], start[inside], end[inside]
    length = np.minimum(end, window.end) - np.maximum(start, window.start)
    steady_length = np.minimum(end, steady.end) - np.maximum(start, steady.start)
    is_steady = overlaps_window(start, end, steady, last) & (steady.length > 0)
    crosses = np.flatnonzero(is_steady & (steady_length != length))
    where = np.where(is_steady, np.int8(IN_BOTH), np.int8(IN_WINDOW))
    where[crosses] = IN_WINDOW
    distinct, (number,) = distinct_rows([places.table.select(PLACE)])
    most = max(int(length.max(initial=0)), 3 * len(trace.shapes) * len(distinct))
    narrow = integer_type(most)  # grouping takes as much more memory as its columns are wider
    pair = operations["shape"].to_numpy()[rows].astype(narrow) * narrow(len(distinct))
    pair += number.astype(narrow)[places.code[rows]]
    row = np.arange(len(rows), dtype=np.int32)
    if len(crosses):
        row, pair = np.append(row, row[crosses]), np.append(pair, pair[crosses])
        where = np.append(where, np.full(len(crosses), IN_STEADY))
        length = np.append(length, steady_length[crosses])
    sums = (
        pl.DataFrame({"key": pair * narrow(3) + where, "ns": length.astype(narrow), "row": row})
        .group_by("key", "ns")
        .agg(pl.len().cast(pl.Int64).alias("count"), pl.col("row").min())
        .sort("row", "key")
        .cast({"ns": pl.Int64})
    )
    pair, where = np.divmod(sums["key"].to_numpy(), 3)
    shape, place = np.divmod(pair, max(len(distinct), 1))
    first = sums["row"].to_numpy()
    sums = sums.select(
        pl.Series("shape", shape, pl.Int32),
        pl.Series("place", place, pl.Int32),
        pl.Series("part", where, pl.Int8),
        "ns",
        "count",
        (pl.col("ns") * pl.col("count")).alias("total_ns"),
        pl.Series("start", start[first]),
        pl.Series("end", end[first]),
        pl.Series("stream", operations["stream"].to_numpy()[rows[first]]),
    )
    return KernelSums(with_at_most(sums, MAX_SUMS), trace.shapes, distinct)


def with_at_most(sums: pl.DataFrame, limit: int) -> pl.DataFrame:
    """Return KernelSums.sums with at most `limit` rows, if rounded lengths allow it."""
    is_first = pl.struct(KEYS).is_first_distinct()
    for digits in DIGITS:
        if len(sums) <= limit:
            break
        rounded = pl.when(is_first).then(None).otherwise(pl.col("ns").round_sig_figs(digits)).alias("rounded")
        longest = pl.col("start", "end", "stream").get(pl.col("ns").arg_max())
        grouped = sums.group_by(*KEYS, rounded, maintain_order=True)
        sums = grouped.agg(pl.col("ns").max(), pl.col("count", "total_ns").sum(), longest).select(sums.columns)
    return sums


def kernel_groupings(device: KernelSums, *, steady: bool) -> tuple[KernelGrouping, ...]:
    """Return the kernels of the window of a device, or of its steady part, by launch shape, name, family and place.

    The groups by launch shape are in the order of the table of kernels. A place that no kernel has is left out.
    """
    kernels = device.sums.with_row_index("row").filter(pl.col("part") != (IN_WINDOW if steady else IN_STEADY))
    kernels = kernels.sort("ns", "row")
    shape, place = (kernels[name].to_numpy() for name in ("shape", "place"))
    shape_groups = [
        KernelGrouping(name, _groups(kernels, codes[shape], texts)) for name, codes, texts in _by_shape(device.shapes)
    ]
    place_groups = [
        KernelGrouping(name, _groups(kernels, codes[place], texts))
        for name, codes, texts in _by_place(device.places)
        if codes[place].any()
    ]
    return (*shape_groups, *place_groups) if len(kernels) else ()


def _by_shape(shapes: pl.DataFrame) -> Iterator[tuple[str, Times, Sequence[str | None]]]:
    """Yield each attribute of a launch shape: its code for each shape, in the order of groups that cost equally much.

    The third item is the text of each code.
    """
    order = shapes.with_row_index("row").sort(list(SHAPES))["row"].to_numpy()
    yield "shape", np.argsort(order), [None] * len(order)
    kinds = shape_kinds(shapes)
    for name, texts in (("kernel", kinds["label"]), ("family", kinds["family"].cast(pl.String))):
        yield name, *_numbered(texts)


def _by_place(places: pl.DataFrame) -> Iterator[tuple[str, Times, Sequence[str | None]]]:
    """Yield each attribute of a place: its code for each place, 0 for null, and the text of each code."""
    for name in PLACE:
        yield name, *_numbered(places[name])


def _numbered(texts: pl.Series) -> tuple[Times, list[str | None]]:
    """Return the code of each text in alphabetic order, 0 for null, and the text of each code."""
    known = texts.drop_nulls().unique().sort()
    codes = texts.replace_strict(known, np.arange(1, len(known) + 1), default=0, return_dtype=pl.Int64)
    return codes.to_numpy(), [None, *known.to_list()]


MEDIAN = (pl.col("count").cum_sum() > (pl.col("count").sum() - 1) // 2).arg_max()
INSTANCES = {  # rows are in the order of ns and time
    "median": (pl.col("ns") == pl.col("ns").get(MEDIAN)).arg_max(),
    "longest": pl.col("ns").arg_max(),
    "first": pl.col("row").arg_min(),
}
INSTANCE = ("start", "end", "stream")


def _groups(kernels: pl.DataFrame, code: Times, texts: Sequence[str | None]) -> tuple[SimilarKernels, ...]:
    """Return one group for each code, the costliest first, and one for all codes beyond MAX_GROUPS.

    `kernels` has rows of KernelSums.sums with `row`, their order in time; it is sorted by ns and row.
    """
    coded = kernels.with_columns(pl.Series("code", code))
    costliest = coded.group_by("code").agg(pl.col("total_ns").sum()).sort("total_ns", "code", descending=[True, False])
    shown = costliest["code"].to_numpy()[:MAX_GROUPS]
    rank = np.full(len(texts), len(shown))
    rank[shown] = np.arange(len(shown))
    figures = [
        pl.col(name).get(place).alias(f"{which}_{name}") for which, place in INSTANCES.items() for name in INSTANCE
    ]
    groups = coded.group_by(pl.Series("rank", rank[code])).agg(pl.col("count", "total_ns").sum(), *figures)
    names = [*(texts[at] for at in shown.tolist()), f"({len(costliest) - len(shown)} others)"]
    return tuple(
        SimilarKernels(names[at], count, ns, *(KernelInstance(*each[i : i + len(INSTANCE)]) for i in (0, 3, 6)))
        for at, count, ns, *each in groups.sort("rank").iter_rows()
    )


MAX_LAUNCH_SHAPES = 5000  # those with the most kernels


def launch_shapes(devices: Sequence[KernelSums], shapes: pl.DataFrame) -> tuple[LaunchShape, ...]:
    """Return the shapes of all devices' kernels with their number and median length, those with most kernels first.

    LaunchShape.shape is the row of `shapes`.
    """
    if not devices:
        return ()
    before, count = pl.col("count").cum_sum(), pl.col("count").sum()
    shorter, longer = (pl.col("ns").get((before > (count - odd) // 2).arg_max()) for odd in (1, 0))
    uses = (
        pl.concat([device.sums for device in devices])
        .filter(pl.col("part") != IN_STEADY)
        .sort("ns")
        .group_by("shape")
        .agg(pl.col("count", "total_ns").sum(), ((shorter + longer) // 2).alias("median_ns"))
    )
    shape, family = uses["shape"].to_numpy(), shape_kinds(shapes)["family"]
    uses = pl.concat([shapes[shape], family[shape].to_frame(), uses], how="horizontal")
    uses = uses.sort("count", *SHAPES, descending=[True, *[False] * len(SHAPES)]).head(MAX_LAUNCH_SHAPES)
    return tuple(
        LaunchShape(
            **{name: row[name] for name in ("shape", "name", "demangled", "registers", "shared_bytes")},
            **{name: row[name] for name in ("count", "total_ns", "median_ns", "family")},
            grid=_size(row, "grid"),
            block=_size(row, "block"),
        )
        for row in uses.iter_rows(named=True)
    )


def _size(row: dict[str, int | None], name: str) -> tuple[int, ...] | None:
    sizes = [row[f"{name}_{axis}"] for axis in "xyz"]
    return None if sizes[0] is None else tuple(size or 0 for size in sizes)
