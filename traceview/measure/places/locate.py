"""The place in the program that launches each operation (docs/definitions.md "Places")."""

from __future__ import annotations

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.frozen import frozen
from traceview.intervals import Times, first_equal_rows, number_distinct, row_hashes
from traceview.measure.nvtx.projection import Projection
from traceview.measure.places.launches import LaunchPlaces, locate_launches
from traceview.measure.places.ranges import BACKWARD, DIRECTIONS, FORWARD, OPTIMIZER, RangePlaces, locate_ranges
from traceview.model.trace import Trace

PLACE = ("range", "module", "op", "inner_op", "line", "direction")
CODES = ("module", "op", "inner_op", "line")


@frozen
class Places:
    """`table` has one row for each place: the columns of PLACE, and `ranges`, all its ranges, the outermost first.

    `code` is the row of the place that launches each of Trace.operations. What is unknown is null.
    """

    table: pl.DataFrame
    code: NDArray[np.int32]


def locate_operations(trace: Trace, projection: Projection) -> Places:
    """Find the place of every operation; `projection` is the result of project_operations."""
    ranges = locate_ranges(trace, projection)
    if trace.scopes.is_empty():
        return _places(ranges, {}, None)
    thread, start = _launch_moments(trace)
    first, number = number_distinct(first_equal_rows(row_hashes([thread, start])))
    launches = locate_launches(trace.scopes, thread[first], start[first])
    ranges = ranges.per_operation()
    direction = _directions(ranges, launches, number)
    codes = {name: getattr(launches, name)[number] for name in CODES}
    return _places(ranges._replace(direction=direction), codes, launches)


def _launch_moments(trace: Trace) -> tuple[Times, Times]:
    """Return the thread and the time that launched each operation, -1 if unknown; a captured kernel has its capture."""
    launch = trace.operations["launch"].fill_null(-1).to_numpy()
    thread, start = (np.append(trace.api[name].to_numpy(), -1).astype(np.int64)[launch] for name in ("thread", "start"))
    captured = trace.captures["operation"].to_numpy()
    thread[captured], start[captured] = (trace.captures[name].to_numpy() for name in ("thread", "start"))
    return thread, start


def _directions(ranges: RangePlaces, launches: LaunchPlaces, number: NDArray[np.intp]) -> Times:
    """Return the direction of each operation: autograd's ops and modules know it better than ranges do.

    An optimizer may work inside a backward op, on autograd's thread.
    """
    optimizer = (ranges.direction == DIRECTIONS.index(OPTIMIZER)) & ~ranges.via_process
    forward = np.where(launches.is_forward[number], DIRECTIONS.index(FORWARD), -1)
    known = np.where(ranges.direction >= 0, ranges.direction, forward)
    return np.where(launches.is_backward[number] & ~optimizer, DIRECTIONS.index(BACKWARD), known)


def _places(ranges: RangePlaces, codes: dict[str, Times], launches: LaunchPlaces | None) -> Places:
    """Return the distinct places of runs of operations; `codes` are those of CODES, or empty."""
    columns = [ranges.stack, ranges.direction, *codes.values()]
    first, number = number_distinct(first_equal_rows(row_hashes(columns)))
    unknown = pl.Series([None], dtype=pl.String).new_from_index(0, len(first))
    texts = dict.fromkeys(CODES, unknown)
    if launches is not None:
        known = {name: launches.paths if name == "module" else launches.names for name in CODES}
        texts = {name: _texts(known[name], codes[name][first]) for name in CODES}
    direction = _texts(pl.Series(DIRECTIONS), ranges.direction[first])
    names = pl.DataFrame({**texts, "direction": direction})
    table = pl.concat([ranges.stacks[ranges.stack[first]], names], how="horizontal").select(*PLACE, "ranges")
    return Places(table, np.repeat(number.astype(np.int32), ranges.length))


def _texts(texts: pl.Series, place: Times) -> pl.Series:
    """Return the text at each place, null at -1."""
    return texts.gather(pl.Series(place, dtype=pl.Int64).replace(-1, None))
