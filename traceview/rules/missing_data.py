"""The capture lacks GPU work, ranges or CUDA calls.

Symptom: no GPU work, NVTX range, iteration or CUDA API call in the capture, so figures that need them are
missing.
Cause: they were not traced, the program has no annotations, or they were lost: with the Python package
`nvtx` 0.2.12 and later, nsys 2022.4 and 2024.2 record the domain but lose every range.
Remedy: capture again, as the advice says. Nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model.analysis import NotMeasured
from traceview.model.profilers import Capturing, capturing
from traceview.pricing.base import Draft, Facts
from traceview.pricing.format import many

NVTX_TABLE = "NVTX_EVENTS"


def missing_data(facts: Facts) -> Iterator[Draft]:
    """Say what could not be measured and how to capture it."""
    trace = facts.analysis.trace
    how = capturing(trace.info.profiler)
    if trace.operations.is_empty():
        yield Draft(
            id="no_gpu_work",
            title="The capture has no GPU work: only where the host's time went can be said",
            advice="Ranges and iterations have their times on the host, and nothing on a GPU. Either the program "
            f"used none, or CUDA was not traced: capture it on a machine with a GPU, with `{how.gpu}`.",
            code=how.code,
        )
    elif trace.api.is_empty():
        yield Draft(
            id="no_cuda_calls",
            title="The capture has no CUDA API calls: why the GPU waited cannot be said",
            advice=f"Idle time has the cause `unknown` and synchronizations are not measured. {how.calls}",
            code=how.code,
        )
    if trace.ranges.is_empty():
        yield _no_ranges(trace.info.tables.get(NVTX_TABLE, 0), how)
    elif isinstance(facts.analysis.iterations, NotMeasured):
        yield Draft(
            id="no_iterations",
            title="No iterations were found among the NVTX ranges: no cost per iteration",
            advice="Open a range around each training step, with the step's number in its name, or "
            "name the range that is one: `--iteration REGEX`.",
            code=how.annotate,
        )


def _no_ranges(events: int, how: Capturing) -> Draft:
    if events:
        return Draft(
            id="lost_ranges",
            title=f"The capture has {many(events, 'NVTX event')} but no range: they were lost while "
            "capturing",
            advice="This is no program without annotations. Since version 0.2.12 the Python package "
            "`nvtx` writes ranges that nsys 2022.4 and 2024.2 drop, domains excepted. Use nvtx "
            "0.2.11, torch.cuda.nvtx or a newer nsys, and capture again; until then nothing can be "
            "said per range or per iteration.",
            code="pip install 'nvtx<0.2.12'",
        )
    return Draft(
        id="no_ranges",
        title="The capture has no NVTX ranges: nothing can be said per iteration or per phase",
        advice=how.ranges,
        code=how.annotate,
    )
