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

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import polars as pl

from traceview.model.units import quantity, verb
from traceview.pricing.base import CaptureFacts, CapturePart, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import STEADY, Collected, IdleClaim
from traceview.pricing.texts import join_words
from traceview.rules.synchronize import RESTART_CLAIM, RESTARTS, calls_of_device, count_names, restart_gaps, total_cost

MAX_NAMES = 3


class _AllocationSums(NamedTuple):
    """Allocations and frees by name, and the most ns that they cost."""

    calls: dict[str, int]
    cost: int


def _collect(part: CapturePart, device: DevicePart) -> Collected[_AllocationSums]:
    """Count the calls, and group the gaps after those that block."""
    calls = _memory_calls(part, device)
    implicit = calls_of_device(device, part.host.implicit_sync.frame)
    blocking = implicit.filter(pl.col("api").is_in(calls["row"].implode()))
    queued = calls.filter(~pl.col("implicit")).select((pl.col("end") - pl.col("start")).sum()).item()
    sums = _AllocationSums(count_names(calls), total_cost(implicit) + queued)
    return Collected(sums, {RESTARTS: restart_gaps(device, blocking)})


def _memory_calls(part: CapturePart, device: DevicePart) -> pl.DataFrame:
    """Return the memory calls that start in the steady time of the part, with their rows of Trace.api."""
    window = part.trace.window or device.steady
    return (
        part.trace.api.lazy()
        .with_row_index("row")
        .filter(
            (pl.col("role") == "memory")
            & (pl.col("start") >= max(device.steady.start, window.start))
            & (pl.col("start") < min(device.steady.end, window.end))
            & pl.col("process").is_in(list(device.process_ids))
        )
        .select(pl.col("row").cast(pl.Int64), "start", "end", "name", "implicit")
        .collect()
    )


def _decide(facts: CaptureFacts, sums: Mapping[int, _AllocationSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device that waits for allocations in the loop."""
    for device in facts.devices:
        counts = sums[device.row].calls
        if not counts:
            continue
        count = sum(counts.values())
        values = {
            "count": quantity(count, "allocation or free", "allocations and frees"),
            "keep": verb(count, "keep"),
            "where": "inside the iterations" if facts.counted else "in the capture",
            "per_iteration": facts.per_iteration(count),
            "names": _frequent_names(counts),
        }
        yield FindingDraft(
            "allocation",
            device,
            (IdleClaim(("memory",), STEADY), RESTART_CLAIM),
            values,
            at_most=sums[device.row].cost,
            same_everywhere=True,
        )


def _frequent_names(counts: dict[str, int]) -> str:
    names = sorted(counts, key=lambda name: (-counts[name], name))[:MAX_NAMES]
    return join_words([f"{counts[name]} {name}" for name in names])


allocation = OldRule("allocation", _decide, _collect, place=100)
