"""The profiler's own cost.

Symptom: idle time inside PROFILER_OVERHEAD intervals.
Cause: nsys flushing buffers or instrumenting; it is not there without the profiler.
Remedy: none needed; it tells how far to trust the capture. Claims the idle cause `profiler`.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.pricing.base import Draft, Facts
from traceview.pricing.ledger import Idle


def profiler_overhead(facts: Facts) -> Iterator[Draft]:
    """Set aside the idle time that the profiler made."""
    for device in facts.devices:
        yield Draft(
            id="profiler_overhead",
            device=device,
            title="The profiler itself held the GPU idle for {cost}",
            advice="This time ({share} of the window) is not lost without the profiler. Where it is "
            "large, trace less (`-t cuda,nvtx -s none --cpuctxsw=none`) or fewer steps.",
            claims=(Idle(("profiler",)),),
            severity="info",
            place="the profiler was at work",
        )
