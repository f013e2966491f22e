"""The capture lacks GPU work, NVTX ranges, iterations or CUDA API calls.

Symptom: the capture has no GPU work, range, iteration or API call, so the figures that need them are missing.
Cause: they are not traced, or the program has no annotations. Ranges that nsys lost are a note of the capture's health.
Remedy: capture again, as the advice says. Claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model.analysis import NotMeasured
from traceview.model.profilers import CaptureAdvice, capture_advice
from traceview.pricing.base import CaptureFacts, FindingDraft


def missing_data(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each kind of missing data."""
    trace = facts.analysis.trace
    how_to = capture_advice(trace.info.profiler)
    if trace.operations.is_empty():
        yield FindingDraft(
            id="no_gpu_work",
            title="The capture has no GPU work: only host times are measured",
            advice="Ranges and iterations have host times but no GPU times. Either the program does not use a GPU, "
            f"or CUDA was not traced. Capture it on a machine with a GPU, with `{how_to.gpu}`.",
            code=how_to.code,
        )
    elif trace.api.is_empty():
        yield FindingDraft(
            id="no_cuda_calls",
            title="The capture has no CUDA API calls: the causes of GPU idle time are unknown",
            advice=f"Idle time has the cause `unknown` and synchronizations are not measured. {how_to.calls}",
            code=how_to.code,
        )
    if trace.ranges.is_empty():
        if not any(note.id == "lost_ranges" for note in trace.info.health):
            yield _no_ranges(how_to)
    elif isinstance(facts.analysis.iterations, NotMeasured):
        yield FindingDraft(
            id="no_iterations",
            title="No NVTX range marks the iterations: costs per iteration are not available",
            advice="Open a range around each training step, with the number of the step in its name, or "
            "name the range that marks a step: `--iteration REGEX`.",
            code=how_to.annotate,
        )


def _no_ranges(how_to: CaptureAdvice) -> FindingDraft:
    return FindingDraft(
        id="no_ranges",
        title="The capture has no NVTX ranges: figures per iteration and per phase are not available",
        advice=how_to.ranges,
        code=how_to.annotate,
    )
