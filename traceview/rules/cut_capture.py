"""The capture is cut: GPU work without its launch, or ranges without an end.

Symptom: operations with a correlation id that no API call has; open NVTX ranges.
Cause: the export is a slice, or the capture starts or stops in the middle of the run.
Remedy: start and stop the capture between two steps, while the GPU is idle. A note, because it costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from traceview.model.trace import Note
from traceview.model.units import quantity, share
from traceview.pricing.base import CaptureFacts, OldRule


def _decide(facts: CaptureFacts, _sums: Mapping[int, tuple[()]]) -> Iterator[Note]:
    """Yield a note if operations lack their launch or ranges lack their end."""
    unmatched = facts.analysis.unmatched
    count = unmatched.kernels + unmatched.copies + unmatched.memsets + unmatched.graphs
    open_ranges = int(facts.analysis.trace.ranges["open"].sum())
    total = facts.operation_count
    if count == 0 and open_ranges == 0:
        return
    parts = [f"{quantity(count, 'GPU operation')} ({share(count, total)}) without a launch"] if count else []
    parts += [f"{quantity(open_ranges, 'range')} without an end"] if open_ranges else []
    yield Note(
        "cut_capture",
        f"The capture is cut: {' and '.join(parts)}. Idle time before an operation without a launch has the cause "
        "`unknown`, and such an operation belongs to no range. A range without an end lasts until the end of the "
        "capture. Start and stop the capture between two steps, while the GPU is idle.",
        affects=("idle.unknown", "nvtx"),
    )


cut_capture = OldRule("cut_capture", _decide, place=20)
