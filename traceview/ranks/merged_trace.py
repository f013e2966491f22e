"""One Perfetto trace of many reports, on one clock, with arrows between the ranks of a collective.

The reports are read twice: once in workers for the clocks and the matched collectives, and once one by one for their
events, so that memory holds the events of one report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from traceview.captures.export import ExportContents, collect
from traceview.captures.export.perfetto import PlacedCapture, merged_pieces
from traceview.errors import RequestError
from traceview.intervals import Times
from traceview.model.analysis import Analysis, AnalysisOptions, NotMeasured
from traceview.model.fleet import Clock, Fleet
from traceview.pipeline import analyze_trace, open_trace
from traceview.ranks.analyze_reports import report_names
from traceview.ranks.measure_report import measure_trace
from traceview.ranks.merge import merge, report_label
from traceview.replay.prediction import whatif

NONE = -1


def merged_trace(paths: Sequence[Path], fleet: Fleet, on_report: Callable[[int], None]) -> Iterator[bytes]:
    """Yield the trace of the reports that `fleet` has read; calls `on_report` with the index of each.

    The trace begins where the first report's clock is 0, so that no time is negative. Raises RequestError if a clock is
    unknown, because then no place of the report's events is right.
    """
    unknown = [clock.file for clock in fleet.clocks if clock.method == "unknown"]
    if unknown:
        raise RequestError(
            f"{unknown[0]}: its clock cannot be compared with the others', because it has no collective in common with "
            "them and no session start time; export it alone"
        )
    path_of = dict(zip(report_names(paths), paths, strict=True))
    zero = min(int(clock.to_common(np.zeros(1, np.int64))[0]) for clock in fleet.clocks)

    def captures() -> Iterator[PlacedCapture]:
        for report, clock in enumerate(fleet.clocks):
            on_report(report)
            contents = collect(open_trace(path_of[clock.file]))
            yield _placed_capture(_with_numbers(contents, fleet, report), fleet, report, zero)

    return merged_pieces(captures(), len(fleet.clocks))


def _placed_capture(contents: ExportContents, fleet: Fleet, report: int, zero: int) -> PlacedCapture:
    clock = fleet.clocks[report]

    def to_trace(times: Times) -> Times:
        # Only a damaged report has events before 0 of its own clock.
        return np.maximum(clock.to_common(times) - zero, 0)

    return PlacedCapture(
        contents=contents, label=report_label(clock.file), to_trace=to_trace, clock=_clock_arguments(clock, zero)
    )


def _clock_arguments(clock: Clock, zero: int) -> dict[str, int | str]:
    arguments: dict[str, int | str] = {
        "file": clock.file,
        "method": clock.method,
        "offset_ns": clock.offset,
        "drift_ns_per_s": clock.drift,
        "collectives": clock.count,
        "trace_begins_ns": zero,
    }
    if clock.uncertainty is not None:
        arguments |= {"uncertainty_ns": clock.uncertainty, "scatter_ns": clock.scatter}
    return arguments


def with_collectives(contents: ExportContents) -> ExportContents:
    """Return the contents of one report with the numbers of the collectives that its GPUs run together."""
    if sum(len(device.communication[0]) > 0 for device in contents.activities) < 2:
        return contents
    file = contents.trace.info.file
    fleet = merge([file], [measure_trace(contents.trace)], max_shown=None)
    return _with_numbers(contents, fleet, 0)


def with_answers(
    contents: ExportContents, device: str | None = None, analysis: Analysis | None = None
) -> ExportContents:
    """Return the contents of one report with its collectives, and with what `analyze` and `whatif` answer for it.

    `analysis` is the analysis of the contents, if it is known. `device` selects one GPU.
    """
    analysis = analysis or analyze_trace(contents.trace, AnalysisOptions(device=device)).analysis
    predicted = whatif(analysis)
    return replace(
        with_collectives(contents),
        analysis=analysis,
        predicted=None if isinstance(predicted, NotMeasured) else predicted,
    )


def _with_numbers(contents: ExportContents, fleet: Fleet, report: int) -> ExportContents:
    """Return the contents with the number of each operation's collective among all matched ones."""
    numbers, arrival = collective_numbers(contents.operations, contents.trace.devices["id"].to_list(), fleet, report)
    return replace(contents, collective=numbers, arrival=arrival)


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
