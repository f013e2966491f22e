"""Allocation and free while the loop runs.

Symptom: cudaMalloc, cudaFree, cudaHostAlloc and the like inside iterations; the idle cause `memory`.
Cause: a growing or fragmented caching allocator, `torch.cuda.empty_cache()` in the loop, pinned buffers
made per batch. cudaMalloc and cudaFree also wait for the GPU.
Remedy: allocate once, before the loop; let the caching allocator keep its memory.

Claims the idle cause `memory` in the steady time (in the whole window where iterations are not known).
"""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import listed, many
from traceview.pricing.ledger import Idle

ADVICE = (
    "Allocate before the loop and reuse. In PyTorch: no `torch.cuda.empty_cache()` in the loop; "
    "pinned buffers made once, not per batch; pad to a few shapes, or let segments grow in place. "
    "Where memory is nearly full the allocator must free to allocate, and only a smaller batch or "
    "less cached memory helps."
)
CODE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py"


def allocation(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each device that waited for allocations in the loop."""
    for device in facts.devices:
        count, names = _calls(facts, device)
        if count == 0:
            continue
        where = "inside the iterations" if facts.counted else "in the capture"
        yield Draft(
            id="allocation",
            device=device,
            title=f"{many(count, 'allocation or free', 'allocations and frees')} "
            f"{where}{facts.per_iteration(count)} hold the GPU idle for {{cost}} ({names})",
            advice=ADVICE,
            code=CODE,
            claims=(Idle(("memory",), rows=device.in_steady),),
            place="the host was allocating or freeing memory",
        )


def _calls(facts: Facts, device: DeviceFacts) -> tuple[int, str]:
    """Return the number of such calls in the steady time and the most frequent of them."""
    found = facts.analysis.trace.api.lazy().filter(
        (pl.col("role") == "memory")
        & (pl.col("start") >= device.steady.start)
        & (pl.col("start") < device.steady.end)
        & pl.col("process").is_in(list(device.use.process_ids))
    )
    counts = found.select("name").collect()["name"].value_counts(sort=True)
    names = listed([f"{count} {name}" for name, count in counts.head(3).iter_rows()])
    return int(counts["count"].sum()), names
