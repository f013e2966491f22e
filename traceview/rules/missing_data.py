"""The capture lacks GPU work, NVTX ranges, iterations or CUDA API calls.

Symptom: the capture has no GPU work, range, iteration or API call, so the figures that need them are missing.
Cause: they are not traced, the program has no annotations, or the ranges are lost: with the Python package `nvtx`
0.2.12 and later, nsys 2022.4 and 2024.2 record the domain but no range.
Remedy: capture again, as the advice says. Claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model.analysis import NotMeasured
from traceview.model.profilers import CaptureAdvice, capture_advice
from traceview.pricing.base import CaptureFacts, FindingDraft
from traceview.pricing.figures import quantity

NVTX_TABLE = "NVTX_EVENTS"


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
        yield _no_ranges(trace.info.tables.get(NVTX_TABLE, 0), how_to)
    elif isinstance(facts.analysis.iterations, NotMeasured):
        yield FindingDraft(
            id="no_iterations",
            title="No NVTX range marks the iterations: costs per iteration are not available",
            advice="Open a range around each training step, with the number of the step in its name, or "
            "name the range that marks a step: `--iteration REGEX`.",
            code=how_to.annotate,
        )


def _no_ranges(events: int, how_to: CaptureAdvice) -> FindingDraft:
    if events:
        return FindingDraft(
            id="lost_ranges",
            title=f"The capture has {quantity(events, 'NVTX event')} but no range: the ranges were lost during capture",
            advice="The program is annotated, but the profiler dropped its ranges: since version 0.2.12 the Python "
            "package `nvtx` writes ranges that nsys 2022.4 and 2024.2 discard, except for their domains. Use "
            "nvtx 0.2.11, torch.cuda.nvtx or a newer nsys, and capture again. Without ranges, figures per range and "
            "per iteration are not available.",
            code="pip install 'nvtx<0.2.12'",
        )
    return FindingDraft(
        id="no_ranges",
        title="The capture has no NVTX ranges: figures per iteration and per phase are not available",
        advice=how_to.ranges,
        code=how_to.annotate,
    )
