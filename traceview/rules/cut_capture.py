"""The capture was cut: GPU work whose launch it does not hold, ranges that never end.

Symptom: operations with a correlation id that no API call has; open NVTX ranges.
Cause: the export is a slice, or the capture began or ended in the middle of the run.
Remedy: start and stop the capture between two steps, with the GPU idle. Nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.pricing.base import Draft, Facts, severity_of
from traceview.pricing.format import many, share

CODE = """torch.cuda.synchronize(); torch.cuda.cudart().cudaProfilerStart()   # between two steps
# nsys profile -c cudaProfilerApi --capture-range-end=stop -t cuda,nvtx python train.py"""


def cut_capture(facts: Facts) -> Iterator[Draft]:
    """Say how much of the capture lacks its other half."""
    lost = facts.analysis.unmatched
    count = lost.kernels + lost.copies + lost.memsets + lost.graphs
    open_ranges = int(facts.analysis.trace.ranges["open"].sum())
    total = len(facts.analysis.trace.operations)
    if count == 0 and open_ranges == 0:
        return
    parts = [f"{many(count, 'GPU operation')} ({share(count, total)}) without a launch"] if count else []
    parts += [f"{many(open_ranges, 'NVTX range')} without an end"] if open_ranges else []
    severity = severity_of(count / max(total, 1))
    yield Draft(
        id="cut_capture",
        title=f"The capture was cut: {' and '.join(parts)}",
        advice="Idle time before such an operation has the cause `unknown`, and the operation "
        "belongs to no NVTX range; a range without an end is taken to last to the end of the "
        "capture. Everything else is measured as usual. Capture whole steps, from idle to idle.",
        code=CODE,
        severity="info" if severity == "low" else severity,
    )
