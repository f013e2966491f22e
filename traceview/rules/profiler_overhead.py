"""The overhead of the profiler.

Symptom: idle time inside PROFILER_OVERHEAD intervals.
Cause: nsys flushes buffers or instruments calls. This time is not lost without the profiler.
Remedy: none needed; the share shows how far to trust the capture.

A note, because a run without the profiler does not lose this time.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model.program import capture_advice
from traceview.model.trace import Note
from traceview.model.units import duration, share
from traceview.pricing.base import MIN_SHARE, GpuWork, MeasuredCapture, Rule


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[Note]:
    """Yield a note if the profiler keeps a GPU idle."""
    cost, whole = device.use.gaps.causes["profiler"], device.use.window.length
    if cost >= MIN_SHARE * whole:
        yield Note(
            "profiler_overhead",
            f"The profiler itself keeps {device.id} idle for {duration(cost)}, {share(cost, whole)} of the time. "
            "Without the profiler this time is not lost. If the share is large, trace less "
            f"({capture_advice(capture.trace.info.profiler).less}) or fewer steps.",
            affects=("idle.profiler",),
        )


profiler_overhead = Rule("profiler_overhead", find)
