"""Names that an export refers to and does not hold: their rows cannot be classified by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.model.trace import SOURCES, Note
from traceview.normalise.codes import UNNAMED, categories
from traceview.read import raw
from traceview.units import quantity, share

AFFECTED: Mapping[str, tuple[str, ...]] = {
    "kernel": ("compute", "communication", "devices.kernels", "iterations"),
    "CUDA API call": ("idle", "host.sync"),
    "NVTX range": ("nvtx", "iterations"),
}
MEANING: Mapping[str, str] = {
    "kernel": "communication among them counts as compute, and their families are unknown",
    "CUDA API call": "synchronizations, copies and allocations among them count as other calls",
    "NVTX range": f"they share the name {UNNAMED}, so that iterations and ranges may be others",
}


class Named(NamedTuple):
    """How many rows have no name, of how many."""

    missing: int
    total: int


def named_ids(ids: pl.DataFrame, tables: Mapping[str, pl.DataFrame]) -> Named:
    """Count the rows of `ids` (name, an id of a string; count) without a string."""
    known = ids["name"].is_in(tables[raw.STRINGS]["id"].to_list())
    return Named(int(ids.filter(~known)["count"].sum()), int(ids["count"].sum()))


def named_kernels(operations: pl.DataFrame) -> Named:
    """Count the kernels of model.OPERATIONS without a name."""
    kernels = operations["source"].to_physical().to_numpy() == SOURCES.index("kernel")
    return Named(int(np.count_nonzero(kernels & _are_unnamed(operations["name"]))), int(np.count_nonzero(kernels)))


def named_calls(api: pl.DataFrame) -> Named:
    """Count the calls of model.API without a name."""
    return Named(int(np.count_nonzero(_are_unnamed(api["name"]))), len(api))


def named_ranges(tables: Mapping[str, pl.DataFrame]) -> Named:
    """Count the NVTX ranges whose text is an id without a string; one without an id was never named."""
    nvtx = tables.get(raw.NVTX, pl.DataFrame())
    if nvtx.is_empty() or "textId" not in nvtx.columns:
        return Named(0, len(nvtx))
    ranges = nvtx.filter(pl.col("eventType").is_in(raw.RANGE_TYPES))
    own = ranges.filter(pl.col("text").is_null()) if "text" in nvtx.columns else ranges
    return Named(
        named_ids(own["textId"].drop_nulls().value_counts().rename({"textId": "name"}), tables).missing, len(ranges)
    )


def _are_unnamed(names: pl.Series) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    texts = categories(names)
    code = texts.index(UNNAMED) if UNNAMED in texts else len(texts)
    return names.to_physical().to_numpy() == code  # type: ignore[no-any-return]


def missing_name_notes(kernels: Named, calls: Named, ranges: Named) -> Iterator[Note]:
    """Yield a Note for each kind of rows whose names are missing, with what they may change."""
    for what, named in zip(AFFECTED, (kernels, calls, ranges), strict=True):
        if named.missing:
            part = f"{named.missing:,} of {quantity(named.total, what)} ({share(named.missing, named.total)})"
            yield Note(
                "missing_names",
                f"the names of {part} are missing from the capture: {MEANING[what]}; export the report again",
                AFFECTED[what],
            )
