"""The public functions `whatif` and `export`, and what the methods of results do (model/columns.py).

`analyze` and `open_trace` are in pipeline/, `compare` in comparison/, and `fleet` in ranks/.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import polars as pl

from traceview.captures.export import FORMATS, check_output, collect, write
from traceview.captures.export.tables import declared_frame
from traceview.errors import RequestError
from traceview.measure.event_tables import EVENT_TABLES, ITERATIONS, event_table, iterations_table
from traceview.model.analysis import Analysis, AnalysisOptions, NotMeasured
from traceview.model.columns import Table
from traceview.model.comparison import Comparison
from traceview.model.fleet import Fleet
from traceview.model.trace import Trace
from traceview.model.unprofiled import ESTIMATE, ProfilerCosts
from traceview.model.whatif import WhatIf
from traceview.pipeline import TimeWindow, analyze, analyze_trace, check_window, narrowed_trace, open_trace
from traceview.pipeline.page import page_inputs
from traceview.replay import prediction
from traceview.replay.changes import ranks as data_parallel
from traceview.report import analysis as analysis_report
from traceview.report import comparison as comparison_report
from traceview.report import fleet as fleet_report
from traceview.report import whatif as whatif_report
from traceview.report.analysis.page import render as analysis_page
from traceview.report.comparison.terminal import to_markdown as comparison_markdown
from traceview.report.files import check_different, write_text
from traceview.report.notebook import html, markdown, representation

__all__ = ["export", "frame", "html", "representation", "to_html", "to_json", "to_markdown", "whatif"]

Format = Literal["perfetto", "parquet"]


def whatif(
    capture: str | Path | Trace | Analysis,
    *,
    faster: Mapping[str, float] | None = None,
    ranks: int | None = None,
    gradient_bytes: int | None = None,
    iteration: str | None = None,
    skip: int | None = None,
    costs: ProfilerCosts | None = ESTIMATE,
    unprofiled_ns: int | None = None,
) -> WhatIf | NotMeasured:
    """Predict the time of an iteration after each change alone, and after several together.

    Args:
        capture: A path, a Trace or an Analysis.
        faster: The speedup of kernels by name; by default the kernel with the most time gets a speedup of 2.
        ranks: The number of GPUs of one host, each with its own batch. It needs `gradient_bytes`.
        gradient_bytes: The size of the gradients in bytes that `ranks` GPUs average in each step.
        iteration: As in `analyze`; like `skip`, `costs` and `unprofiled_ns` it does not apply to an Analysis.
        skip: The number of warm-up iterations.
        costs: What the profiler adds to calls, as in `analyze`.
        unprofiled_ns: The measured time of an iteration without the profiler, in ns.

    Returns:
        The predictions, or NotMeasured with the reason why no model predicts changes of this capture.

    Raises:
        TraceviewError: The capture cannot be read, or no kernel has a name of `faster`.
    """
    if (ranks is None) != (gradient_bytes is None):
        raise RequestError("ranks and gradient_bytes belong together, for example ranks=2, gradient_bytes=253_000_000")
    if not isinstance(capture, Analysis):
        capture = analyze(capture, iteration=iteration, skip=skip, costs=costs, unprofiled_ns=unprofiled_ns)
    more = (data_parallel(ranks, gradient_bytes),) if ranks and gradient_bytes else ()
    return prediction.whatif(capture, faster_kernels=faster, more=more)


def export(
    capture: str | Path | Trace | Analysis,
    path: str | Path,
    *,
    format: Format = "perfetto",
    window: TimeWindow = None,
    range_name: str | None = None,
    device: str | None = None,
) -> None:
    """Write a capture in the format of another tool, as `traceview export` does (docs/export.md).

    Args:
        capture: A path, a Trace or an Analysis.
        path: The file or, for "parquet", the folder. A file that ends with .gz is compressed.
        format: "perfetto" or "parquet".
        window: Export only this time, as in `analyze`.
        range_name: Export only the time of the NVTX ranges with this name.
        device: Export only this GPU, for example "GPU 0", and its processes.

    Raises:
        TraceviewError: The capture cannot be read, or the output cannot be written.
    """
    if format not in FORMATS:
        raise RequestError(f"format={format!r}: choose {', '.join(FORMATS)}")
    if isinstance(capture, (str, Path)):
        check_different([Path(capture)], [Path(path)])
    check_output(format, Path(path))
    check_window(window, range_name)
    trace = capture.trace if isinstance(capture, Analysis) else capture
    trace = trace if isinstance(trace, Trace) else open_trace(trace)
    contents = collect(narrowed_trace(trace, window, range_name), device)
    if format == "perfetto":
        is_whole = window is None and range_name is None and device is None
        known = capture if isinstance(capture, Analysis) and is_whole else None
        analysis = known or analyze_trace(contents.trace, AnalysisOptions(device=device)).analysis
        contents = replace(contents, analysis=analysis)
    write(contents, format, Path(path))


def to_json(result: Analysis | Comparison | Fleet | WhatIf) -> str:
    """Return the JSON of a result."""
    writers: Mapping[type, Any] = {
        Analysis: analysis_report.to_json,
        Comparison: comparison_report.to_json,
        Fleet: fleet_report.to_json,
        WhatIf: whatif_report.to_json,
    }
    text: str = writers[type(result)](result)
    return text


def to_markdown(result: Analysis | Comparison | Fleet | WhatIf) -> str:
    """Return a result as GitHub's Markdown; a comparison as `compare --markdown` writes it."""
    return comparison_markdown(result) if isinstance(result, Comparison) else markdown(result)


def to_html(result: Analysis | Fleet, path: str | Path) -> None:
    """Write the page of a result. That of an analysis shows events that the analysis lacks: it measures them again."""
    if isinstance(result, Analysis):
        page = analysis_page(page_inputs(analyze_trace(result.trace, result.options)))
    else:
        page = fleet_report.render(result)
    write_text(Path(path), page)


def frame(analysis: Analysis, name: str) -> pl.DataFrame:
    """Return a declared table of an analysis, or one of its events, as a frame (Analysis.table)."""
    if name in EVENT_TABLES:
        return event_table(analysis, name)
    if name == ITERATIONS.name:
        return _measured_frame(analysis, iterations_table(analysis))
    uses = {use.id: {**use.tables, **analysis.covered(use).tables} for use in analysis.devices}
    of_devices = {device: tables[name] for device, tables in uses.items() if name in tables}
    if name in analysis.tables:
        return _measured_frame(analysis, analysis.tables[name])
    if not of_devices:
        names = sorted(
            {*EVENT_TABLES, ITERATIONS.name, *analysis.tables, *(each for use in uses.values() for each in use)}
        )
        raise RequestError(f"no table is called {name!r}; choose from {', '.join(names)}")
    frames = [
        _measured_frame(analysis, table).insert_column(0, pl.lit(device).alias("device"))
        for device, table in of_devices.items()
    ]
    return pl.concat(frames, how="vertical_relaxed")


def _measured_frame(analysis: Analysis, table: Table) -> pl.DataFrame:
    if table.not_measured is not None:
        raise RequestError(f"{analysis.info.file}: no table {table.name}: {table.not_measured}")
    return declared_frame(table)
