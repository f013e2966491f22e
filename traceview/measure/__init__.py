"""Measures: pure functions from the typed frames of a Trace to typed rows.

To add a measure, write a module in this package, add its measure to MEASURES, and write a test
(docs/extending.md "A measure"). One of another package has the same form (docs/extending.md "In your own package").

Measures of other packages are loaded by entry point and guarded: a faulty one does not end the analysis.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from math import isfinite
from typing import Any

from traceview.measure.base import Measure
from traceview.measure.gpu_metrics import GPU_METRICS, metric_curves
from traceview.measure.host import LINES
from traceview.measure.kernels import FAMILIES, KERNEL_PLACES, KERNELS, MODULES
from traceview.measure.matrix_shapes import MATRIX_SHAPES
from traceview.measure.memory import MEMORY_USE, memory_curves
from traceview.measure.nvtx_ranges import PHASES, RANGES
from traceview.measure.overlap import COMMUNICATION, CONTENTION, COPIES, EXPOSED_RANGES
from traceview.measure.queues import QUEUE_LENGTH, QUEUED_FOR
from traceview.measure.rates import COLLECTIVES, MATRIX_PRECISIONS, SPEED_OF_LIGHT
from traceview.measure.streams import STREAMS
from traceview.measure.sync import IMPLICIT_CALLS, SYNC_CALLS
from traceview.model.analysis import NotMeasured
from traceview.model.columns import Table, Unit, columns
from traceview.model.frozen import dataclass
from traceview.model.plugins import MEASURE_GROUP, Plugin, is_fault, plugins
from traceview.model.sizes import CounterSeries
from traceview.model.trace import Trace

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


@lru_cache(maxsize=1)
def _load_measures(entries: tuple[Plugin, ...], taken: frozenset[str]) -> tuple[Measure, ...]:
    """Return the measures of other packages, whose tables do not have the names in `taken`.

    A measure that cannot be loaded becomes one without rows, which states the reason. So does a measure whose function
    fails or returns rows that do not fit its columns.
    """
    names, loaded = set(taken), list[Measure]()
    for plugin in entries:
        loaded.append(_load(plugin, names))
        names.add(loaded[-1].table.name)
    return tuple(loaded)


def _load(plugin: Plugin, names: Collection[str]) -> Measure:
    try:
        measure = plugin.load()
    except BaseException as error:
        if not is_fault(error):
            raise
        return _faulty(plugin, plugin.failure(error))
    if not isinstance(measure, Measure):
        return _faulty(plugin, plugin.left_out("it is not a traceview.plugin.Measure"))
    name = measure.table.name
    if not name.isidentifier() or name in names:
        return _faulty(plugin, plugin.left_out(f"its table needs another name than {name[:40]!r}"))

    def rows(given: Any) -> tuple[Any, ...] | NotMeasured:
        try:
            result = measure.rows(given)
            fault = _fault(measure.table, result)
        except BaseException as error:
            if not is_fault(error):
                raise
            return NotMeasured(plugin.failure(error))
        return NotMeasured(plugin.left_out(fault)) if fault else result

    return replace(measure, table=replace(measure.table, package=plugin.package), rows=rows)


def _faulty(plugin: Plugin, reason: str) -> Measure:
    table = Table(name=plugin.name, title=plugin.name, row_type=_FaultyRow, package=plugin.package)
    return Measure(table, lambda _given: NotMeasured(reason), "capture")


def _fault(table: Table, rows: tuple[Any, ...] | NotMeasured) -> str:
    """Return why rows do not fit the declaration of their table; "" if they do."""
    if isinstance(rows, NotMeasured):
        return ""
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
    EXPOSED_RANGES,
    CONTENTION,
    STREAMS,
    QUEUED_FOR,
    QUEUE_LENGTH,
    FAMILIES,
    KERNELS,
    KERNEL_PLACES,
    MODULES,
    MATRIX_PRECISIONS,
    MATRIX_SHAPES,
    GPU_METRICS,
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
    return (*MEASURES, *_load_measures(plugins(MEASURE_GROUP), frozenset(measure.table.name for measure in MEASURES)))


def measure_counters(trace: Trace) -> tuple[CounterSeries, ...]:
    """Return every counter of a capture that has a value."""
    return tuple(counter for measure in COUNTERS for counter in measure(trace) if len(counter.start))
