"""Measures of other packages: loaded by entry point, and guarded, so that a faulty one does not end the analysis."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import lru_cache
from math import isfinite
from typing import Any

from traceview.frozen import frozen
from traceview.measure.base import CaptureMeasure, DeviceMeasure, Measure, PartMeasure
from traceview.model.analysis import NotMeasured
from traceview.model.columns import Table, Unit, columns
from traceview.plugins import MEASURES, Plugin, is_fault, plugins

KINDS = (PartMeasure, DeviceMeasure, CaptureMeasure)
# The types of values by unit, where these are not numbers.
TYPES: Mapping[Unit, tuple[type, ...]] = {
    **dict.fromkeys(("text", "code"), (str,)),
    "flag": (bool,),
    "size": (tuple,),
    "causes": (Mapping,),
}


@frozen
class _FaultyRow:
    """The row type of a measure that cannot be loaded."""


def measures_of_packages(taken: frozenset[str]) -> tuple[Measure, ...]:
    """Return the measures of other packages, whose tables do not have the names in `taken`.

    A measure that cannot be loaded becomes one without rows, which states the reason. So does a measure whose function
    fails or returns rows that do not fit its columns.
    """
    return _loaded(plugins(MEASURES), taken)


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
        return _faulty(plugin, plugin.failure(error))
    if not isinstance(measure, KINDS):
        kinds = ", ".join(kind.__name__ for kind in KINDS)
        return _faulty(plugin, f"{plugin.words} is not a measure ({kinds}) and is left out")
    if not name.isidentifier() or name in names:
        return _faulty(plugin, f"{plugin.words} is left out: its table needs another name than {name[:40]!r}")
    table = replace(measure.table, package=plugin.package)
    return type(measure)(table, _guarded(plugin, table, measure.rows))


def _faulty(plugin: Plugin, reason: str) -> Measure:
    table = Table(name=plugin.name, title=plugin.name, row_type=_FaultyRow, package=plugin.package)
    return CaptureMeasure(table, lambda _given: NotMeasured(reason))


def _guarded(plugin: Plugin, table: Table, rows: Any) -> Any:
    """Return the function of a measure; its errors and unfit rows become the reason that its table states."""

    def guarded(given: Any) -> tuple[Any, ...] | NotMeasured:
        try:
            result = rows(given)
            if isinstance(result, NotMeasured):
                return result
            fault = _fault(table, result := tuple(result))
        except BaseException as error:
            if not is_fault(error):
                raise
            fault = plugin.failure(error)
        else:
            fault = fault and f"{plugin.words} is left out: {fault}"
        return NotMeasured(fault) if fault else result

    return guarded


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
