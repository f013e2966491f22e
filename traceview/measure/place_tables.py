"""The kernels of each place in the program (docs/definitions.md "Places")."""

from __future__ import annotations

import numpy as np
import polars as pl

from traceview.measure.base import PartContext, PartInput, PartMeasure
from traceview.measure.kernels import rounded_share
from traceview.measure.kernels.families import shape_kinds
from traceview.measure.places import PLACE
from traceview.measure.sums import sums_by_owner
from traceview.model.columns import Table, partial_row
from traceview.model.rows import KernelPlace, ModuleUse

MAX_PLACES = 500
MAX_PAIRS = 1 << 20  # pairs of a place and a shape; up to so many sums are kept in one array
ELSEWHERE = "(no module and no op)"
KEYS = ("kernel", "family", *PLACE)


def kernel_places(_part: PartContext, totals: pl.DataFrame) -> tuple[KernelPlace, ...]:
    """Return one row for each kernel name and place, the costliest first; one row for all beyond MAX_PLACES."""
    totals = _costliest_first(totals)
    total = int(totals["total_ns"].sum())
    rows = [
        KernelPlace(**row, share=rounded_share(row["total_ns"], total))
        for row in totals.head(MAX_PLACES).iter_rows(named=True)
    ]
    rest = totals[MAX_PLACES:]
    return (*rows, *([_rest_row(rest, total)] if len(rest) else []))


def place_totals(given: PartInput, *more: str) -> pl.DataFrame:
    """Return KEYS, and `more` columns of places, with count and total_ns."""
    work, shapes = given.activity, len(given.trace.shapes)
    pair = work.select(given.places.code) * np.int64(shapes) + work.select(given.trace.operations["shape"].to_numpy())
    kinds, size = None, shapes * len(given.places.table)
    if size > MAX_PAIRS:
        kinds, pair = np.unique(pair, return_inverse=True)
        size = len(kinds)
    count = np.bincount(pair, minlength=size)
    used = np.flatnonzero(count)
    total = sums_by_owner(pair, work.end - work.start, size)[used]
    place, shape = np.divmod(used if kinds is None else kinds[used], shapes)
    return (
        pl.concat([_kernel_names(given)[shape], given.places.table[place]], how="horizontal")
        .with_columns(pl.Series("count", count[used], pl.Int64), pl.Series("total_ns", total))
        .filter(pl.Series(shape > 0))  # shape 0 is work that is not a kernel
        .group_by(*KEYS, *more)
        .agg(pl.col("count", "total_ns").sum())
    )


def _costliest_first(totals: pl.DataFrame) -> pl.DataFrame:
    return totals.sort(["total_ns", *KEYS], descending=[True, *[False] * len(KEYS)])


def _module_totals(given: PartInput) -> pl.DataFrame:
    """Return the result of place_totals, or an empty frame if the capture has neither ops nor modules."""
    return pl.DataFrame() if given.trace.scopes.is_empty() else place_totals(given)


def module_uses(_part: PartContext, totals: pl.DataFrame) -> tuple[ModuleUse, ...]:
    """Return one row for each module, op and direction, the costliest first; none if the capture has neither."""
    if totals.is_empty() or not any(totals.select(pl.col("module", "op").is_not_null().any()).row(0)):
        return ()
    total = int(totals["total_ns"].sum())
    place = pl.concat_str("module", "op", separator=" ", ignore_nulls=True)
    rows = (
        totals.group_by(pl.when(place == "").then(pl.lit(ELSEWHERE)).otherwise(place).alias("place"), "direction")
        .agg(pl.col("count", "total_ns").sum())
        .sort("total_ns", "place", "direction", descending=[True, False, False])
        .head(MAX_PLACES)
    )
    return tuple(ModuleUse(**row, share=rounded_share(row["total_ns"], total)) for row in rows.iter_rows(named=True))


def _kernel_names(given: PartInput) -> pl.DataFrame:
    """Return the label and the family of the kernels of each of Trace.shapes."""
    kinds = [(kind.label, kind.family) for kind in shape_kinds(given.trace.shapes)]
    return pl.DataFrame(kinds, schema=dict.fromkeys(KEYS[:2], pl.String), orient="row")


def _rest_row(rest: pl.DataFrame, total: int) -> KernelPlace:
    """Return one row for many places."""
    count, ns = rest.select(pl.col("count", "total_ns").sum()).row(0)
    name = f"({len(rest)} other places)"
    return partial_row(KernelPlace, kernel=name, count=count, total_ns=ns, share=rounded_share(ns, total))


KERNEL_PLACES = PartMeasure(
    Table(name="kernel_places", title="Kernels by place", row_type=KernelPlace, listed=False),
    kernel_places,
    totals=place_totals,
)
MODULES = PartMeasure(
    Table(
        name="modules",
        title="Kernels by module and op",
        note="Backward kernels count for the module and the op of their forward.",
        row_type=ModuleUse,
        shown=("place", "share", "total_ns", "count", "direction"),
        in_json=False,
    ),
    module_uses,
    totals=_module_totals,
)
