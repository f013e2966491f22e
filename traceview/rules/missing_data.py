"""The capture lacks GPU work or CUDA API calls.

Symptom: the capture has no GPU work or no API call, so the figures that need them are missing.
Cause: they are not traced. Ranges that nsys lost are a note on the capture's health, and ranges and iterations that are
missing have their notes from the measures.
Remedy: capture again, as the note says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from traceview.model.program import capture_advice
from traceview.model.trace import Note
from traceview.pricing.base import CaptureFacts, OldRule


def _decide(facts: CaptureFacts, _sums: Mapping[int, tuple[()]]) -> Iterator[Note]:
    """Yield a note for each kind of missing data."""
    trace = facts.analysis.trace
    how_to = capture_advice(trace.info.profiler)
    if not facts.operation_count:
        lost = any(note.id == "lost_launches" for note in trace.info.health)
        why = "Either the program uses no GPU of NVIDIA, AMD or Intel, or its work was not traced. Capture it on a "
        why += "machine with such a GPU, "
        yield Note(
            "no_gpu_work",
            "The capture has no GPU work: only ranges, iterations and other times of the host are measured. "
            f"{f'Capture it again, with {how_to.newer}, ' if lost else why}with `{how_to.gpu}`.",
            affects=("devices", "findings"),
        )
    elif not len(facts.analysis.trace.api):
        yield Note(
            "no_cuda_calls",
            "The capture has no CUDA API calls: idle time has the cause `unknown`, and synchronizations are not "
            f"measured. {how_to.calls}",
            affects=("idle", "host.sync", "findings"),
        )


missing_data = OldRule("missing_data", _decide, place=10)
