"""Notes on what a capture lost, what was left out of it, and what is not measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from traceview.model.analysis import Analysis, Iterations, NotMeasured
from traceview.model.columns import Table
from traceview.model.devices import DeviceUse
from traceview.model.trace import Note, ReportInfo


def with_tables(analysis: Analysis, tables: Mapping[str, Table]) -> Analysis:
    """Return the analysis with its tables, and with the notes on what they and the capture lack."""
    notes = _notes(analysis.info, analysis.devices, tables, analysis.iterations)
    return replace(analysis, tables=tables, notes=(*notes, *analysis.notes))


def _notes(
    info: ReportInfo, devices: Sequence[DeviceUse], tables: Mapping[str, Table], iterations: Iterations | NotMeasured
) -> Iterator[Note]:
    """Yield notes on what the capture lost, what was left out of it, and what is not measured."""
    yield from info.health
    yield from info.left_out
    lost_ranges = any(note.id == "lost_ranges" for note in info.health)
    every = [table for device in devices for table in device.tables.values()] + list(tables.values())
    for table in {table.name: table for table in every if table.not_measured}.values():
        kind = "package" if table.package else "no"
        if not (lost_ranges and table.name == "nvtx"):
            yield Note(f"{kind}_{table.name}", str(table.not_measured), affects=(table.name,))
    if isinstance(iterations, NotMeasured):
        yield Note("no_iterations", iterations.reason, affects=("iterations",))
