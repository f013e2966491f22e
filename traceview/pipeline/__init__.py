"""The complete path from a report to an Analysis. Read this file first.

    read → normalise → measure → find → price → predict → report

`analyze_trace` has the steps after normalise; commands and Python take the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from traceview.errors import RequestError
from traceview.measure.activity import window_of_range
from traceview.measure.shared_work import started_beside
from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.model.times import window_of_times
from traceview.model.trace import Trace, Window
from traceview.model.unprofiled import ESTIMATE, ProfilerCosts
from traceview.normalise import normalise
from traceview.normalise.limiters import with_limiters
from traceview.pipeline.findings import find
from traceview.pipeline.measure import TraceWork, measure_capture
from traceview.pipeline.model import AnalyzedCapture, Modelled, model_capture
from traceview.process import return_freed_memory
from traceview.read import read_capture
from traceview.read.formats import named_capture
from traceview.read.raw import Wanted
from traceview.replay.gains import with_gains
from traceview.rules.answer import with_answer

Progress = Callable[[str, float], None]
TimeWindow = Window | tuple[str | None, str | None] | None


def open_trace(path: str | Path, wanted: Wanted | None = None) -> Trace:
    """Read and normalise a capture.

    If an SQLite export does not fit into three quarters of the free memory, a steady stretch is read: the trace then
    has its window, and a note.

    Args:
        path: A .sqlite export, a .nsys-rep, a folder of Parquet or Arrow tables, or a trace of torch.profiler; each
            file also compressed. Another folder stands for its only capture, or for the first rank of a run, with a
            warning that names the others.
        wanted: The stretch of a capture that is larger than memory.

    Returns:
        The events as polars frames; times in ns on the capture's clock, sizes in bytes (`FRAMES` of model/trace.py).

    Raises:
        ReportError: The capture cannot be read (NotFoundError, NotAnExportError, DamagedExportError).
        RequestError: The folder holds several captures that are not ranks of a run.
    """
    path = named_capture(Path(path))
    trace = normalise(read_capture(path, wanted))
    return_freed_memory()  # the raw tables took more than the trace does
    return trace


def check_window(window: TimeWindow, range_name: str | None) -> None:
    """Raise RequestError if both narrow the window."""
    if range_name is not None and window not in (None, (None, None)):
        raise RequestError("--range and --from/--to narrow the same window; use one of them")


def narrowed_trace(trace: Trace, window: TimeWindow, range_name: str | None) -> Trace:
    """Return the trace in a window of time, or in that of an NVTX range. Raises RequestError.

    `window` is in ns on the capture's clock, or has two texts from its start on, such as ("120ms", None).
    """
    if range_name is not None:
        return trace.with_window(window_of_range(trace, range_name))
    chosen = window if isinstance(window, Window) or window is None else window_of_times(trace, *window)
    return trace if chosen is None else trace.with_window(chosen)


def analyze_trace(trace: Trace, options: AnalysisOptions | None = None) -> AnalyzedCapture:
    """Analyze a trace inside its window. Raises TraceviewError if the options do not fit it."""
    options = options or AnalysisOptions()
    work = TraceWork.from_trace(trace, options.device)
    measured = measure_capture(work, options)
    modelled = started_beside(partial(model_capture, measured))  # while rules look at the capture
    analysis, changes = _with_findings(work, measured, modelled)

    def other_window() -> Analysis | None:
        if all(use.window == use.steady.window for use in measured.devices):
            return None
        return _with_findings(work, replace(measured, whole=not measured.whole), modelled).analysis

    return AnalyzedCapture(analysis, changes, work, other_window)


def _with_findings(work: TraceWork, measured: Analysis, modelled: Callable[[], Modelled]) -> Modelled:
    """Return an analysis with its findings by gain, its notes and its answer, and the changes that gains are from."""

    def priced() -> Analysis:
        return replace(modelled().analysis, whole=measured.whole)

    findings, notes = find(work, measured, priced)
    analysis = priced()
    changes = modelled().changes
    changes = None if changes is None else changes.with_findings(findings)
    findings = with_gains(analysis, findings, changes)
    return Modelled(with_answer(replace(analysis, findings=findings, notes=(*analysis.notes, *notes))), changes)


def analyze_capture(
    report: str | Path | Trace,
    options: AnalysisOptions,
    *,
    window: TimeWindow = None,
    range_name: str | None = None,
    others: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> AnalyzedCapture:
    """Read and analyze a capture: what `traceview analyze` and `analyze` call. Raises TraceviewError."""
    check_window(window, range_name)
    report_step = progress or (lambda _step, _done: None)
    report_step("read", 0.0)
    if isinstance(report, Trace):
        trace = narrowed_trace(report, window, range_name)
    else:
        texts = (str(window.start), str(window.end)) if isinstance(window, Window) else window or (None, None)
        trace = open_trace(report, Wanted(*texts, range_name))
        # A stretch of a capture larger than memory has its window.
        trace = narrowed_trace(trace, window, range_name) if trace.window is None else trace
    report_step("measure", 0.35)
    return analyze_trace(with_limiters(trace, others), options)


def analyze(
    report: str | Path | Trace,
    *,
    window: TimeWindow = None,
    range_name: str | None = None,
    device: str | None = None,
    iteration: str | None = None,
    skip: int | None = None,
    top: int = 10,
    whole: bool = False,
    flops_per_iteration: int | None = None,
    costs: ProfilerCosts | None = ESTIMATE,
    unprofiled_ns: int | None = None,
    others: Sequence[str | Path] = (),
    progress: Progress | None = None,
) -> Analysis:
    """Measure a capture and find what costs GPU time (docs/definitions.md).

    Args:
        report: A path, as in `open_trace`, or a Trace.
        window: The time that every figure covers: a Window in ns on the capture's clock, or two texts as of `--from`
            and `--to`, such as ("120ms", None). By default all of it.
        range_name: The NVTX ranges that every figure covers, in place of `window`.
        device: The id of the only GPU to measure, such as "GPU 0".
        iteration: A regular expression on the names of the ranges that are iterations. By default they are found.
        skip: The number of warm-up iterations. By default it is found.
        top: The number of longest gaps that are listed; all are counted.
        whole: Whether findings cover the whole window, not the steady part.
        flops_per_iteration: The floating-point operations of an iteration on one GPU, for its speed of light.
        costs: The time that the profiler adds to calls, in ns, by default that of the reference machine
            (benchmarks/calibrate.py measures another). None leaves the time without the profiler unknown.
        unprofiled_ns: The time of an iteration that was measured without the profiler, in ns.
        others: Tables of Nsight Compute of the same program (`ncu --csv --page raw`): what limits each kernel.
        progress: A function that is called before each step with its name and the fraction that is done.

    Returns:
        The figures, in ns and bytes, and the findings, the largest gain first.

    Raises:
        ReportError: The capture cannot be read, or has no GPU work.
        RequestError: An option does not fit the capture.
    """
    report = report if isinstance(report, Trace) else named_capture(Path(report))  # warns in the caller's name
    options = AnalysisOptions(device, iteration, skip, top, whole, flops_per_iteration, costs, unprofiled_ns)
    return analyze_capture(
        report, options, window=window, range_name=range_name, others=others, progress=progress
    ).analysis
