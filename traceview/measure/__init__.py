"""Measures: pure functions from the typed frames of a Trace to typed rows.

To add a measure, write a module in this package, add its measure to MEASURES, and write a test
(docs/extending.md "A measure"). One of another package has the same form (docs/extending.md "In your own package").

Measures of other packages are loaded by entry point and guarded: a faulty one does not end the analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isfinite
from typing import Any, NamedTuple

import polars as pl

from traceview.measure.base import CaptureMeasure, DeviceMeasure, Failed, Measure, PartMeasure, UndeclaredMergeError
from traceview.measure.gpu_metrics import GPU_METRICS, ITERATION_METRICS, metric_curves
from traceview.measure.host import LINES
from traceview.measure.kernels import FAMILIES, KERNEL_PLACES, KERNELS, MODULES
from traceview.measure.matrix_shapes import MATRIX_SHAPES
from traceview.measure.memory import MEMORY_USE, memory_curves
from traceview.measure.nvtx_ranges import PHASES, RANGES
from traceview.measure.overlap import COMMUNICATION, COPIES
from traceview.measure.queues import QUEUE_LENGTH, QUEUE_OVER_TIME, QUEUED_FOR
from traceview.measure.rates import COLLECTIVES, MATRIX_PRECISIONS, SPEED_OF_LIGHT
from traceview.measure.streams import STREAMS
from traceview.measure.sync import IMPLICIT_CALLS, SYNC_CALLS
from traceview.model.analysis import NotMeasured
from traceview.model.columns import Table, Unit, columns
from traceview.model.plugins import MEASURE_GROUP, Plugin, is_fault, plugins
from traceview.model.sizes import CounterSeries
from traceview.model.trace import Trace

KINDS = (PartMeasure, DeviceMeasure, CaptureMeasure)
# The types of values by unit, where these are not numbers.
TYPES: Mapping[Unit, tuple[type, ...]] = {
    **dict.fromkeys(("text", "code"), (str,)),
    "flag": (bool,),
    "size": (tuple,),
    "causes": (Mapping,),
}


@dataclass(frozen=True, slots=True)
class _FaultyRow:
    """The row type of a measure that cannot be loaded."""


def measures_of_packages(taken: frozenset[str]) -> tuple[Measure, ...]:
    """Return the measures of other packages, whose tables do not have the names in `taken`.

    A measure that cannot be loaded becomes one without rows, which states the reason. So does a measure whose function
    fails or returns rows that do not fit its columns.
    """
    return _loaded(plugins(MEASURE_GROUP), taken)


@lru_cache(maxsize=1)
def _loaded(entries: tuple[Plugin, ...], taken: frozenset[str]) -> tuple[Measure, ...]:
    names = set(taken)
    loaded = []
    for plugin in entries:
        measure = _load(plugin, names)
        names.add(measure.table.name)
        loaded.append(measure)
    return tuple(loaded)


def _load(plugin: Plugin, names: Collection[str]) -> Measure:
    try:
        measure = plugin.load()
        name = measure.table.name if isinstance(measure, KINDS) else ""
    except BaseException as error:
        if not is_fault(error):
            raise
        known = isinstance(error, UndeclaredMergeError)
        return _faulty(plugin, plugin.left_out(str(error)) if known else plugin.failure(error))
    if not isinstance(measure, KINDS):
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        return _faulty(plugin, f"{plugin.words} is not a measure ({kinds}) and is left out")
    if not name.isidentifier() or name in names:
        return _faulty(plugin, f"{plugin.words} is left out: its table needs another name than {name[:40]!r}")
    table = replace(measure.table, package=plugin.package)
    measure = replace(measure, table=table)
    guard = _Guard(plugin, measure)
    return replace(measure, rows=guard.rows, totals=measure.totals and guard.totals)


def _faulty(plugin: Plugin, reason: str) -> Measure:
    table = Table(name=plugin.name, title=plugin.name, row_type=_FaultyRow, package=plugin.package)
    return CaptureMeasure(table, lambda _given: Failed(reason))


class _Guard(NamedTuple):
    """The functions of a measure; their errors and unfit results become the reason that its table states."""

    plugin: Plugin
    measure: Measure

    def rows(self, *given: Any) -> tuple[Any, ...] | NotMeasured:
        """Return the rows, in their order."""

        def ordered() -> tuple[Any, ...] | NotMeasured:
            rows, order = self.measure.rows(*given), self.measure.order
            if isinstance(rows, NotMeasured):
                return rows
            return tuple(sorted(rows, key=order) if order else rows)

        rows = self._called(ordered)
        if isinstance(rows, NotMeasured):
            return rows
        fault = _fault(self.measure.table, rows)
        return self._left_out(fault) if fault else rows

    def totals(self, given: Any) -> pl.DataFrame | NotMeasured:
        """Return the totals."""
        totals = self._called(lambda: self.measure.totals and self.measure.totals(given))
        if isinstance(totals, NotMeasured):
            return totals
        if not isinstance(totals, pl.DataFrame):
            return self._left_out(f"its totals are a {type(totals).__name__}, not a polars.DataFrame")
        try:
            self.measure.merge_rules(totals)
        except UndeclaredMergeError as error:
            return self._left_out(str(error))
        return totals

    def _called(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except BaseException as error:
            if not is_fault(error):
                raise
            return Failed(self.plugin.failure(error))

    def _left_out(self, fault: str) -> Failed:
        return Failed(self.plugin.left_out(fault))


def _fault(table: Table, rows: tuple[Any, ...]) -> str:
    """Return why rows do not fit the declaration of their table; "" if they do."""
    if table.single and len(rows) != 1:
        return f"its table has one row, not {len(rows)}"
    declared = [(column.name, TYPES.get(column.unit, (int, float))) for column in columns(table.row_type)]
    for row in rows:
        if not isinstance(row, table.row_type):
            return f"a row is a {type(row).__name__}, not a {table.row_type.__name__}"
        for name, types in declared:
            value = getattr(row, name)
            if value is not None and (
                not isinstance(value, types) or (isinstance(value, float) and not isfinite(value))
            ):
                return f"column {name!r} holds a value of type {type(value).__name__} that does not fit its unit"
    return ""


# In the order in which JSON and tables show them.
MEASURES: tuple[Measure, ...] = (
    COPIES,
    COMMUNICATION,
    COLLECTIVES,
    STREAMS,
    QUEUED_FOR,
    QUEUE_LENGTH,
    QUEUE_OVER_TIME,
    FAMILIES,
    KERNELS,
    KERNEL_PLACES,
    MODULES,
    MATRIX_PRECISIONS,
    MATRIX_SHAPES,
    GPU_METRICS,
    ITERATION_METRICS,
    SPEED_OF_LIGHT,
    SYNC_CALLS,
    IMPLICIT_CALLS,
    LINES,
    MEMORY_USE,
    RANGES,
    PHASES,
)
# Quantities over time that a capture has, in the order of their rows on the timeline. A page alone measures them.
COUNTERS: tuple[Callable[[Trace], Iterable[CounterSeries]], ...] = (memory_curves, metric_curves)


def all_measures() -> tuple[Measure, ...]:
    """Return MEASURES and the measures of other packages."""
    return (*MEASURES, *measures_of_packages(frozenset(measure.table.name for measure in MEASURES)))


def measure_counters(trace: Trace) -> tuple[CounterSeries, ...]:
    """Return every counter of a capture that has a value."""
    return tuple(counter for measure in COUNTERS for counter in measure(trace) if len(counter.start))
