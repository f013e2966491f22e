"""The complete path from a report to an Analysis. Read this file first.

    read → normalise → measure → find → price → predict → report

engine/analyze.py has the steps after normalise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from traceview.engine.analyze import analyze_trace
from traceview.engine.memory import check_fits
from traceview.measure.activity import window_of_range
from traceview.model.analysis import Analysis, AnalysisOptions
from traceview.model.trace import Trace, Window
from traceview.model.unprofiled import ESTIMATE, ProfilerCosts
from traceview.normalise import normalise
from traceview.normalise.limiters import with_limiters
from traceview.process import return_freed_memory
from traceview.read import read_capture
from traceview.read.formats import named_capture

Progress = Callable[[str, float], None]


def open_trace(path: str | Path) -> Trace:
    """Read and normalise a capture: a .sqlite file, also compressed, a .nsys-rep, a parquetdir or an arrowdir.

    A folder stands for its only capture, or for the first rank of a run, with a warning that names the others.

    Raises ReportError (NotFoundError, NotAnExportError or DamagedExportError) if it cannot be read, or not within the
    free memory, and RequestError for a folder of other captures.
    """
    path = named_capture(Path(path))
    check_fits(path)
    trace = normalise(read_capture(path))
    return_freed_memory()  # the raw tables took more than the trace does
    return trace


def analyze(
    report: str | Path | Trace,
    *,
    window: Window | None = None,
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
    """Measure a capture and find what costs GPU time.

    `window` (ns on the capture's clock) or `range_name` (an NVTX range) restricts every figure to a time window.
    `device` selects one GPU. `iteration` is a regular expression on range names. `skip` is the number of warm-up
    iterations. `whole` looks for findings in the whole window, not in the steady part. `top` is the number of longest
    gaps to list; all gaps are counted. `flops_per_iteration` are the floating-point operations of an iteration on one
    GPU, for its speed of light. `costs` is the time that the profiler adds to calls, by default that of the reference
    machine (benchmarks/calibrate.py measures another); None leaves the profiler's part unknown. `unprofiled_ns` is the
    time of an iteration that was measured without the profiler. `others` are tables of Nsight Compute of the same
    program (`ncu --csv --page raw`), which say what limits each kernel. `progress` is called before each step with its
    name and the fraction that is done.

    Raises TraceviewError (see errors.py) if the analysis fails.
    """
    report_step = progress or (lambda _step, _done: None)
    report_step("read", 0.0)
    report = report if isinstance(report, Trace) else named_capture(Path(report))
    trace = report if isinstance(report, Trace) else open_trace(report)
    if range_name is not None:
        window = window_of_range(trace, range_name)
    if window is not None:
        trace = trace.with_window(window)
    report_step("measure", 0.35)
    options = AnalysisOptions(device, iteration, skip, top, whole, flops_per_iteration, costs, unprofiled_ns)
    return analyze_trace(with_limiters(trace, others), options).analysis
