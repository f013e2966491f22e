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

from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import join_words
from traceview.pricing.ledger import IdleClaim
from traceview.pricing.waits import calls_of_device, count_names, restart_claim, total_cost
from traceview.rules.advice.host import ALLOCATION
from traceview.units import quantity

MAX_NAMES = 3


def allocation(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device that waits for allocations in the loop."""
    for device in facts.devices:
        calls = _calls(facts, device)
        counts = device.total("allocations", count_names(calls))
        implicit = calls_of_device(device, facts.analysis.host.implicit_sync.frame)
        blocking = implicit.filter(pl.col("api").is_in(calls["row"].implode()))
        queued = calls.filter(~pl.col("implicit")).select((pl.col("end") - pl.col("start")).sum()).item()
        at_most = device.total("allocation_ns", total_cost(implicit) + queued)
        if not counts:
            continue
        count, names = sum(counts.values()), _frequent_names(counts)
        where = "inside the iterations" if facts.counted else "in the capture"
        yield FindingDraft(
            id="allocation",
            device=device,
            title=f"{quantity(count, 'allocation or free', 'allocations and frees')} "
            f"{where}{facts.per_iteration(count)} keep the GPU idle for {{cost}} ({names})",
            advice=ALLOCATION.choose(facts.program).advice,
            code=ALLOCATION.choose(facts.program).code,
            claims=(IdleClaim(("memory",), rows=device.steady_gaps), restart_claim(device, blocking)),
            at_most=at_most,
            place_label="the host allocates or frees memory",
            same_everywhere=True,
        )


def _calls(facts: CaptureFacts, device: DeviceFacts) -> pl.DataFrame:
    """Return the memory calls that start in the steady time, with their rows of Trace.api.

    A slice of a capture has calls of its neighbours too, which do not count.
    """
    window = facts.analysis.trace.window or device.steady
    return (
        facts.analysis.trace.api.lazy()
        .with_row_index("row")
        .filter(
            (pl.col("role") == "memory")
            & (pl.col("start") >= max(device.steady.start, window.start))
            & (pl.col("start") < min(device.steady.end, window.end))
            & pl.col("process").is_in(list(device.use.process_ids))
        )
        .select(pl.col("row").cast(pl.Int64), "start", "end", "name", "implicit")
        .collect()
    )


def _frequent_names(counts: dict[str, int]) -> str:
    names = sorted(counts, key=lambda name: (-counts[name], name))[:MAX_NAMES]
    return join_words([f"{counts[name]} {name}" for name in names])
