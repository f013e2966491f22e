"""The number of each collective that several ranks take part in, for an export and for predictions of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from traceview.captures.export import ExportContents
from traceview.intervals import Times
from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.model.fleet import Fleet
from traceview.pipeline import analyze_trace
from traceview.ranks.measure_report import measure_trace
from traceview.ranks.merge import merge

NONE = -1


def with_collectives(contents: ExportContents) -> ExportContents:
    """Return the contents of a report with the numbers of the collectives that its GPUs run together."""
    if sum(len(device.communication[0]) > 0 for device in contents.activities) < 2:
        return contents
    trace = contents.trace
    fleet = merge([trace.info.file], [measure_trace(trace)], max_shown=None)
    numbers, arrival = collective_numbers(contents.operations, trace.devices["id"].to_list(), fleet, 0)
    return replace(contents, collective=numbers, arrival=arrival)


def with_answers(
    contents: ExportContents, device: str | None = None, analysis: Analysis | None = None
) -> ExportContents:
    """Return the contents of a report with its collectives, and with the findings of `analyze`.

    `analysis` is the analysis of the contents, if it is known. `device` selects one GPU.
    """
    analysis = analysis or analyze_trace(contents.trace, AnalysisOptions(device=device)).analysis
    return replace(with_collectives(contents), analysis=analysis)


def collective_numbers(
    operations: pl.DataFrame, devices: Sequence[str], fleet: Fleet, report: int
) -> tuple[Times, Times]:
    """Return the number of each operation's collective among all matched ones, and the ranks that arrive before.

    Both are NONE for other operations. `devices` has the ids of the report's devices.
    """
    clock = fleet.clocks[report]
    numbers, arrival = (np.full(len(operations), NONE, np.int64) for _ in range(2))
    device = operations["device"].to_numpy()
    start, end = (clock.to_common(operations[name].to_numpy()) for name in ("start", "end"))
    is_communication = (operations["class"] == "communication").to_numpy()
    first = 0
    for group in fleet.times:
        arrivals = group.start
        for row, rank in enumerate(group.ranks):
            if fleet.ranks[rank].report == report:
                rows = np.flatnonzero(is_communication & (device == devices.index(fleet.ranks[rank].device)))
                places = _places(group.start[row], group.end[row], start[rows], end[rows])
                known = places != NONE
                numbers[rows[known]] = first + places[known]
                earlier = (arrivals < arrivals[row]).sum(axis=0) + (arrivals[:row] == arrivals[row]).sum(axis=0)
                arrival[rows[known]] = earlier[places[known]]
        first += len(group.kind)
    return numbers, arrival


def _places(start: Times, end: Times, kernel_start: Times, kernel_end: Times) -> Times:
    """Return the place of each kernel among the collectives with these times, or NONE."""
    order = np.lexsort((end, start))
    table = np.rec.fromarrays([start[order], end[order]])
    wanted = np.rec.fromarrays([kernel_start, kernel_end])
    place = np.minimum(np.searchsorted(table, wanted), max(len(order) - 1, 0))
    places: Times = np.where(table[place] == wanted, order[place], NONE) if len(order) else np.full(len(wanted), NONE)
    return places
