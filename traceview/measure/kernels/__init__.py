"""Kernels by launch shape, family and place, and how a launch fills a GPU (docs/definitions.md "Kernels", "Places").

The rules of occupancy are those of cudaOccupancyMaxActiveBlocksPerMultiprocessor; an SM gives as much shared memory as
it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from traceview import intervals
from traceview.intervals import Times, first_equal_rows, number_distinct
from traceview.measure.activity import Activity
from traceview.measure.base import DeviceInput, Measure
from traceview.measure.kernels.families import shape_kinds
from traceview.measure.places import PLACE, Places
from traceview.measure.shared_work import once_per_frame
from traceview.measure.sums import sums_by_owner
from traceview.model.columns import Table, partial_row
from traceview.model.rows import KernelFamily, KernelPlace, KernelUse, ModuleUse
from traceview.model.trace import SHAPES, Trace, enum_texts

MAX_KERNELS = 200
DIGITS = 6


def kernel_uses(given: DeviceInput) -> tuple[KernelUse, ...]:
    """Return one row for each name and launch shape, the costliest first; one row for all beyond MAX_KERNELS."""
    sums, limits = _sums_by_shape(given), sm_limits(given.trace, given.activity.device)
    total = int(sums["total_ns"].sum())
    first, rest = costliest(sums, SHAPES, MAX_KERNELS)
    rows = [_kernel_use(row, total, limits) for row in first.iter_rows(named=True)]
    return (*rows, *([_rest_row(rest, total)] if len(rest) else []))


def costliest(totals: pl.DataFrame, keys: Iterable[str], limit: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows with most `total_ns`, at most `limit`, and the others; equal ones are in the order of `keys`."""
    names = [*keys]
    if len(totals) <= limit:
        return totals.sort(["total_ns", *names], descending=[True, *[False] * len(names)]), totals.clear()
    some = intervals.rows_of_largest(totals["total_ns"].to_numpy(), limit)  # often few of many: only these are sorted
    first = totals[some].with_columns(row=some)
    first = first.sort(["total_ns", *names], descending=[True, *[False] * len(names)]).head(limit)
    others = np.ones(len(totals), np.bool_)
    others[first["row"].to_numpy()] = False
    return first.drop("row"), totals.filter(others)


def kernel_families(given: DeviceInput) -> tuple[KernelFamily, ...]:
    """Return one row for each family that occurs, the costliest first."""
    kernels, work = given.kernels, given.activity
    family = shape_kinds(given.trace.shapes)["family"]
    code = family.to_physical().to_numpy()
    counts, totals = (
        sums_by_owner(code, sums, len(enum_texts(family))).tolist() for sums in (kernels.counts, kernels.total)
    )
    busy = totals
    if kernels.overlap:
        shape = work.select(given.trace.operations["shape"].to_numpy())
        rows, busy = intervals.rows_where(shape > 0), totals.copy()
        for each, members in intervals.rows_by_code(code[shape[rows]]):
            busy[each] = intervals.union_length(work.start, work.end, rows[members])
    every = zip(enum_texts(family), counts, totals, busy, strict=True)
    uses = (KernelFamily(*figures) for figures in every if figures[1])
    return tuple(sorted(uses, key=lambda row: (-row.total_ns, row.family)))


def _sums_by_shape(given: DeviceInput) -> pl.DataFrame:
    """Return the columns of SHAPES and of the kinds of kernels with count, total_ns, min_ns and max_ns."""
    kernels, shapes, used = given.kernels, given.trace.shapes, np.flatnonzero(given.kernels.counts)
    names = {"count": kernels.counts, "total_ns": kernels.total, "min_ns": kernels.low, "max_ns": kernels.high}
    sums = pl.DataFrame({name: values[used] for name, values in names.items()})
    return pl.concat([shapes[used], shape_kinds(shapes)[used], sums], how="horizontal")


def _kernel_use(row: Mapping[str, Any], total: int, limits: SmLimits | None) -> KernelUse:
    grid, block = (_dimensions([row[f"{name}_{axis}"] for axis in "xyz"]) for name in ("grid", "block"))
    return KernelUse(
        name=row["name"],
        **{name: row[name] for name in ("label", "family", "precision", "tensor_core")},
        **_figures(row["count"], row["total_ns"], row["min_ns"], row["max_ns"], total),
        demangled=row["demangled"],
        grid=grid,
        block=block,
        registers=row["registers"],
        shared_bytes=row["shared_bytes"],
        **_launch_fill(limits, grid, block, row["registers"], row["shared_bytes"]),
        limiter=row.get("limiter"),  # normalise/limiters.py
        compute_fraction=row.get("compute_fraction"),
        memory_fraction=row.get("memory_fraction"),
    )


def _figures(count: int, ns: int, low: int, high: int, total: int) -> dict[str, Any]:
    share = rounded_share(ns, total)
    return {"count": count, "total_ns": ns, "mean_ns": ns // count, "min_ns": low, "max_ns": high, "share": share}


def rounded_share(ns: int, total: int) -> float:
    """Return a share of a total, rounded as all kernel figures are; 0 if the total is 0."""
    return round(ns / total, DIGITS) if total else 0.0


def _dimensions(sizes: list[int | None]) -> tuple[int, ...] | None:
    return None if None in sizes else tuple(int(size or 0) for size in sizes)


def launch_sizes(limits: SmLimits | None, shape: Mapping[str, Any]) -> tuple[int, float]:
    """Return the blocks of a row of Trace.shapes, 0 if unknown, and its waves, NaN if unknown."""
    grid, block = (_dimensions([shape[f"{name}_{axis}"] for axis in "xyz"]) for name in ("grid", "block"))
    waves = _launch_fill(limits, grid, block, shape["registers"], shape["shared_bytes"])["waves"]
    return 0 if grid is None else int(np.prod(grid, dtype=object)), np.nan if waves is None else waves


def _launch_fill(
    limits: SmLimits | None,
    grid: tuple[int, ...] | None,
    block: tuple[int, ...] | None,
    registers: int | None,
    shared_bytes: int | None,
) -> dict[str, Any]:
    """Return how the launch fills the device; None where the capture lacks the data."""
    fields: dict[str, Any] = dict.fromkeys(("blocks_per_sm", "waves", "occupancy", "occupancy_limit"))
    if limits is None or grid is None:
        return fields
    blocks = int(np.prod(grid, dtype=object))
    fields["blocks_per_sm"] = round(blocks / limits.sms, DIGITS)
    if block is None or registers is None or shared_bytes is None or not limits.registers or not limits.warps:
        return fields
    resident = occupancy(limits, int(np.prod(block, dtype=object)), registers, shared_bytes)
    if resident is not None:
        fields["waves"] = round(blocks / (resident.blocks * limits.sms), DIGITS)
        fields["occupancy"] = round(resident.fraction, DIGITS)
        fields["occupancy_limit"] = resident.limit
    return fields


def sm_limits(trace: Trace, device: int) -> SmLimits | None:
    """Return the limits of a device; None without its number of SMs. Other limits are 0 where they are unknown."""
    row = {name: value or 0 for name, value in trace.devices.row(device, named=True).items()}
    if not row["sm_count"]:
        return None
    return SmLimits(
        sms=row["sm_count"],
        warps=row["warps_per_sm"],
        registers=row["registers_per_sm"],
        shared_bytes=row["shared_bytes_per_sm"],
        blocks=row["blocks_per_sm"],
        capability=row["compute_capability"],
    )


def _rest_row(rest: pl.DataFrame, total: int) -> KernelUse:
    """Return one row for many kernels: only their figures, without names and shapes."""
    count, ns, low, high = rest.select(
        pl.col("count", "total_ns").sum(), pl.col("min_ns").min(), pl.col("max_ns").max()
    ).row(0)
    name = f"({len(rest)} other kernels)"
    return partial_row(KernelUse, name=name, label=name, **_figures(count, ns, low, high, total))


LIMITS = ("limiter", "compute_fraction", "memory_fraction")  # from a table of Nsight Compute
KERNELS = Measure(
    Table(
        name="kernels",
        title="Kernels",
        note="By name and launch shape, costliest first.",
        row_type=KernelUse,
        first=5,
        shown=(
            "label",
            "share",
            "total_ns",
            "count",
            "mean_ns",
            "family",
            "precision",
            "waves",
            "occupancy",
            "grid_text",
            *LIMITS,
        ),
        optional=LIMITS,
    ),
    kernel_uses,
)
FAMILIES = Measure(
    Table(name="kernel_families", title="Kernel families", row_type=KernelFamily),
    kernel_families,
)


MAX_PLACES = 500
MAX_PAIRS = 1 << 20  # pairs of a place and a shape; up to so many sums are kept in one array
ELSEWHERE = "(no module and no op)"
KEYS = ("kernel", "family", *PLACE)


def kernel_places(given: DeviceInput) -> tuple[KernelPlace, ...]:
    """Return one row for each kernel name and place, the costliest first; one row for all beyond MAX_PLACES."""
    sums = sums_by_place(given.trace, given.activity, given.places)
    total = int(sums["total_ns"].sum())
    first, rest = costliest(sums, KEYS, MAX_PLACES)
    rows = [KernelPlace(**row, share=rounded_share(row["total_ns"], total)) for row in first.iter_rows(named=True)]
    if rest.is_empty():
        return tuple(rows)
    count, ns = rest.select(pl.col("count", "total_ns").sum()).row(0)
    name, share = f"({len(rest)} other places)", rounded_share(ns, total)
    return (*rows, partial_row(KernelPlace, kernel=name, count=count, total_ns=ns, share=share))


def sums_by_place(trace: Trace, work: Activity, places: Places, *more: str) -> pl.DataFrame:
    """Return KEYS, and `more` columns of places, with count and total_ns."""
    (names, kernel), (spots, spot) = _kernel_names(trace.shapes), _spots(places.table)
    if more:
        spots, spot = places.table.select(*PLACE, *more), np.arange(len(places.table))
    count_of_names = len(names) + 1  # the last stands for work that is not a kernel
    pair = spot[work.select(places.code)] * count_of_names
    pair += kernel[work.select(trace.operations["shape"].to_numpy())]
    kinds, size = None, count_of_names * len(spots)
    if size > MAX_PAIRS:
        kinds, pair = np.unique(pair, return_inverse=True)
        size = len(kinds)
    count, total = np.bincount(pair, minlength=size), sums_by_owner(pair, work.end - work.start, size)
    used = np.flatnonzero(count)
    place, name = np.divmod(used if kinds is None else kinds[used], count_of_names)
    used, place, name = (each[name < len(names)] for each in (used, place, name))
    sums = pl.DataFrame({"count": count[used], "total_ns": total[used]})
    return pl.concat([names[name], spots[place], sums], how="horizontal")


@once_per_frame
def _kernel_names(shapes: pl.DataFrame) -> tuple[pl.DataFrame, Times]:
    """Return the labels and families of kernels, and the position of that of each of Trace.shapes."""
    names = shape_kinds(shapes)[1:].select(pl.col("label").alias("kernel"), "family")
    first, number = number_distinct(first_equal_rows(names.hash_rows().to_numpy()))
    return names[first], np.append(len(first), number)  # the first shape is that of work that is not a kernel


@once_per_frame
def _spots(places: pl.DataFrame) -> tuple[pl.DataFrame, Times]:
    """Return the distinct PLACE of a table of places, and the position of that of each row."""
    spots, (position,) = intervals.distinct_rows([places.select(PLACE)])
    return spots, position


def module_uses(given: DeviceInput) -> tuple[ModuleUse, ...]:
    """Return one row for each module, op and direction, the costliest first; none if the capture has neither."""
    if given.trace.scopes.is_empty():
        return ()
    sums = sums_by_place(given.trace, given.activity, given.places)
    if not any(sums.select(pl.col("module", "op").is_not_null().any()).row(0)):
        return ()
    total = int(sums["total_ns"].sum())
    place = pl.concat_str("module", "op", separator=" ", ignore_nulls=True)
    keys = pl.when(place == "").then(pl.lit(ELSEWHERE)).otherwise(place).alias("place"), pl.col("direction")
    first, rest = costliest(
        sums.group_by(keys).agg(pl.col("count", "total_ns").sum()), ("place", "direction"), MAX_PLACES
    )
    rows = [ModuleUse(**row, share=rounded_share(row["total_ns"], total)) for row in first.iter_rows(named=True)]
    if len(rest):
        count, ns = rest.select(pl.col("count", "total_ns").sum()).row(0)
        rows.append(ModuleUse(f"({len(rest)} others)", None, count, ns, rounded_share(ns, total)))
    return tuple(rows)


KERNEL_PLACES = Measure(
    Table(name="kernel_places", title="Kernels by place", row_type=KernelPlace, listed=False),
    kernel_places,
)
MODULES = Measure(
    Table(
        name="modules",
        title="Kernels by module and op",
        note="Backward kernels count for the module and the op of their forward.",
        row_type=ModuleUse,
        shown=("place", "share", "total_ns", "count", "direction"),
    ),
    module_uses,
)


WARP = 32
REGISTER_UNIT = 256  # registers are given to a warp in units of this size, from compute capability 3.0 on
WARP_UNIT = 4  # an SM has four register files, each for a quarter of the warps
SHARED_UNIT, SHARED_UNIT_BEFORE_8 = 128, 256  # bytes
RESERVED_SHARED = 1024  # bytes per block that CUDA keeps for itself, from compute capability 8.0 on


class SmLimits(NamedTuple):
    """The limits of one SM (Trace.devices), and the number of SMs. `capability` is 90 for 9.0."""

    sms: int
    warps: int
    registers: int
    shared_bytes: int
    blocks: int
    capability: int


class Occupancy(NamedTuple):
    """Resident blocks and warps of one SM. `limit` is what bounds them; None if a launch fills all warps."""

    blocks: int
    fraction: float
    limit: str | None


def occupancy(limits: SmLimits, threads: int, registers: int, shared_bytes: int) -> Occupancy | None:
    """Return the occupancy of blocks with `threads` threads; None if no block fits, so that the data contradict it."""
    if threads <= 0:
        return None
    warps = -(-threads // WARP)
    bounds = {
        "threads": limits.warps // warps,
        "blocks": limits.blocks,
        "registers": _blocks_by_registers(limits, warps, registers),
        "shared_memory": _blocks_by_shared_memory(limits, shared_bytes),
    }
    limit = min(bounds, key=lambda name: bounds[name])
    resident = bounds[limit]
    if resident <= 0:
        return None
    fraction = resident * warps / limits.warps
    return Occupancy(resident, fraction, None if resident * warps == limits.warps else limit)


def _blocks_by_registers(limits: SmLimits, warps: int, registers: int) -> int:
    if registers <= 0:
        return limits.blocks
    each = -(-registers * WARP // REGISTER_UNIT) * REGISTER_UNIT
    resident_warps = limits.registers // WARP_UNIT // each * WARP_UNIT
    return resident_warps // warps


def _blocks_by_shared_memory(limits: SmLimits, shared_bytes: int) -> int:
    recent = limits.capability >= 80
    unit = SHARED_UNIT if recent else SHARED_UNIT_BEFORE_8
    each = -(-(shared_bytes + (RESERVED_SHARED if recent else 0)) // unit) * unit
    return limits.shared_bytes // each if each else limits.blocks
