"""The overhead of the profiler.

Symptom: idle time inside PROFILER_OVERHEAD intervals.
Cause: nsys flushes buffers or instruments calls. This time is not lost without the profiler.
Remedy: none needed; the share shows how far to trust the capture.

Claims the idle cause `profiler`.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.pricing.base import CaptureFacts, FindingDraft
from traceview.pricing.ledger import IdleClaim


def profiler_overhead(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device that the profiler keeps idle."""
    for device in facts.devices:
        yield FindingDraft(
            id="profiler_overhead",
            device=device,
            title="The profiler itself keeps the GPU idle for {cost}",
            advice="Without the profiler this time ({share} of the window) is not lost. If the share is large, trace "
            "less (`-t cuda,nvtx -s none --cpuctxsw=none`) or fewer steps.",
            claims=(IdleClaim(("profiler",)),),
            severity="info",
            place_label="profiler overhead",
        )
