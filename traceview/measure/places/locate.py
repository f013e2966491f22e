"""The place in the program that launches each operation (docs/definitions.md "Places")."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.measure.nvtx.names import phase_names, without_library_ranges
from traceview.measure.nvtx.projection import Projection, project_operations
from traceview.model.trace import Trace

PLACE = ("range", "module", "op", "inner_op", "line", "direction")


@dataclass(frozen=True, slots=True)
class Places:
    """`table` has one row for each place, with the columns of PLACE; row 0 is the unknown place, null in all columns.

    `code` is the row of the place that launches each of Trace.operations.
    """

    table: pl.DataFrame
    code: NDArray[np.int32]


def locate_operations(trace: Trace, projection: Projection) -> Places:
    """Find the place of every operation; `projection` is the result of project_operations."""
    names, code = _range_names(trace, projection)
    unknown = dict.fromkeys(PLACE[1:], pl.Series([None], dtype=pl.String).new_from_index(0, len(names)))
    return Places(pl.DataFrame({"range": names, **unknown}), code)


def _range_names(trace: Trace, projection: Projection) -> tuple[pl.Series, NDArray[np.int32]]:
    """Return the names of ranges, null first, and the place in them of each operation's innermost range."""
    own = without_library_ranges(trace.ranges)
    if len(own) < len(trace.ranges):
        projection = project_operations(replace(trace, ranges=own))
    unique, codes = _numbered(phase_names(own))
    stretches = projection.stretches
    place = stretches.place[projection.stretch]
    code = np.zeros(len(place), np.int32)
    inside = np.flatnonzero(place >= 0)
    code[inside] = codes[stretches.nesting.rows[place[inside]]]
    return unique, np.repeat(code, np.diff(projection.begin, append=projection.operations))


def _numbered(names: pl.Series) -> tuple[pl.Series, NDArray[np.int32]]:
    """Return null and every distinct name, and the place of each name among them."""
    unique = names.unique(maintain_order=True)
    codes = names.cast(pl.Enum(unique)).to_physical().to_numpy().astype(np.int32) + 1
    return pl.concat([pl.Series([None], dtype=pl.String), unique]), codes
