"""The capture is cut: GPU work without its launch, or ranges without an end.

Symptom: operations with a correlation id that no API call has; open NVTX ranges.
Cause: the export is a slice, or the capture starts or stops in the middle of the run.
Remedy: start and stop the capture between two steps, while the GPU is idle. Claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.pricing.base import CaptureFacts, FindingDraft, severity_from_share
from traceview.pricing.figures import quantity, share

CODE = """torch.cuda.synchronize(); torch.cuda.cudart().cudaProfilerStart()   # between two steps
# nsys profile -c cudaProfilerApi --capture-range-end=stop -t cuda,nvtx python train.py"""


def cut_capture(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield a finding if operations lack their launch or ranges lack their end."""
    unmatched = facts.analysis.unmatched
    count = unmatched.kernels + unmatched.copies + unmatched.memsets + unmatched.graphs
    open_ranges = int(facts.analysis.trace.ranges["open"].sum())
    total = len(facts.analysis.trace.operations)
    if count == 0 and open_ranges == 0:
        return
    parts = [f"{quantity(count, 'GPU operation')} ({share(count, total)}) without a launch"] if count else []
    parts += [f"{quantity(open_ranges, 'NVTX range')} without an end"] if open_ranges else []
    severity = severity_from_share(count / max(total, 1))
    yield FindingDraft(
        id="cut_capture",
        title=f"The capture is cut: {' and '.join(parts)}",
        advice="Idle time before an operation without a launch has the cause `unknown`, and such an operation "
        "belongs to no NVTX range. A range without an end lasts until the end of the capture. All other figures "
        "are complete. Start and stop the capture between two steps, while the GPU is idle.",
        code=CODE,
        severity="info" if severity == "low" else severity,
    )
