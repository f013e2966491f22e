"""The overhead of the profiler.

Symptom: idle time inside PROFILER_OVERHEAD intervals.
Cause: nsys flushes buffers or instruments calls. This time is not lost without the profiler.
Remedy: none needed; the share shows how far to trust the capture.

A note, because a run without the profiler does not lose this time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from traceview.model.program import capture_advice
from traceview.model.trace import Note
from traceview.model.units import duration, share
from traceview.pricing.base import MIN_SHARE, CaptureFacts, OldRule


def _decide(facts: CaptureFacts, _sums: Mapping[int, tuple[()]]) -> Iterator[Note]:
    """Yield a note for each device that the profiler keeps idle."""
    for device in facts.devices:
        cost, whole = device.use.gaps.causes["profiler"], device.use.window.length
        if cost >= MIN_SHARE * whole:
            yield Note(
                "profiler_overhead",
                f"The profiler itself keeps {device.use.id} idle for {duration(cost)}, {share(cost, whole)} of the "
                "time. Without the profiler this time is not lost. If the share is large, trace less "
                f"({capture_advice(facts.analysis.trace.info.profiler).less}) or fewer steps.",
                affects=("idle.profiler",),
            )


profiler_overhead = OldRule("profiler_overhead", _decide, place=50)
