"""Memory is allocated or freed inside the loop.

Symptom: cudaMalloc, cudaFree, cudaHostAlloc, cuMemMap, cudaHostRegister or similar calls inside iterations; idle time
with the cause `memory`.
Cause: a caching allocator that grows or fragments, `torch.cuda.empty_cache()` in the loop, or pinned buffers
allocated for each batch. cudaMalloc and cudaFree also wait for the GPU.
Remedy: allocate before the loop and let the caching allocator keep its memory.

Claims the idle cause `memory` of the steady gaps (of all gaps in a capture without iterations) and the restart gaps of
the calls, at most the cost of implicitly synchronizing calls. A call that only queues its work, such as
cudaMallocAsync, costs at most its length.
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from traceview.model.units import quantity, verb
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim
from traceview.pricing.texts import join_words
from traceview.rules.synchronize import calls_of_device, count_names, restart_claim, total_cost

MAX_NAMES = 3


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding for a GPU that waits for allocations in the loop."""
    calls = _memory_calls(capture, device)
    if calls.is_empty():
        return
    count = len(calls)
    values = {
        "count": quantity(count, "allocation or free", "allocations and frees"),
        "keep": verb(count, "keep"),
        "where": "inside the iterations" if capture.counted else "in the capture",
        "per_iteration": capture.per_iteration(count),
        "names": join_words([f"{each} {name}" for name, each in count_names(calls)[:MAX_NAMES]]),
    }
    implicit = calls_of_device(device, capture.host.implicit_sync.frame)
    restarts = restart_claim(device, implicit.filter(pl.col("api").is_in(calls["row"].implode())))
    queued = calls.filter(~pl.col("implicit"))
    yield FindingDraft(
        "allocation",
        device,
        (GapClaim(("memory",), device.steady_gaps), restarts),
        values,
        at_most=total_cost(implicit) + int((queued["end"] - queued["start"]).sum()),
        same_everywhere=True,
    )


def _memory_calls(capture: MeasuredCapture, device: GpuWork) -> pl.DataFrame:
    """Return the memory calls of the device's processes that start in its steady time; `row` is that of Trace.api."""
    return (
        capture.trace.api.lazy()
        .with_row_index("row")
        .filter(
            (pl.col("role") == "memory")
            & pl.col("start").is_between(device.steady.start, device.steady.end, closed="left")
            & pl.col("process").is_in(list(device.process_ids))
        )
        .select(pl.col("row").cast(pl.Int64), "start", "end", "name", "implicit")
        .collect()
    )


allocation = Rule("allocation", find)
