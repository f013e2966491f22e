"""A synchronization in every iteration.

Symptom: cudaStreamSynchronize, cudaDeviceSynchronize or cudaEventSynchronize once or more in each step;
the GPU runs dry and starts again.
Cause: `loss.item()`, `print(tensor)`, `.cpu()`, `torch.cuda.synchronize()`, `if tensor > x`, boolean
indexing.
Remedy: keep the value on the device, read it every N steps, or through a non-blocking copy and an event.

What a call costs the GPU is `starved + refill` (METRICS.md "Synchronization"), not how long it blocks. Claims
the idle cause `sync`, and after each call's return the causes `launch`, `api` and `host` up to its refill,
and at most REFILLED of it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from traceview.intervals import Times
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import duration, listed, many
from traceview.pricing.ledger import Idle

REFILLED = 1_000_000  # ns; a host that needs longer to launch again is busy with something else: `host_bound`
RARE = 10  # without iterations: fewer calls than this in a capture are no habit
ADVICE = (
    "A wait while the GPU works costs it nothing; what costs is that it runs dry and the host must "
    "launch again. Remove `torch.cuda.synchronize()`; read scalars every N steps, or copy them with "
    "`non_blocking=True` to pinned memory and read them a step late; replace `if tensor > x` and "
    "boolean indexing by `torch.where`. It pays as far as the host then runs ahead of the GPU: where "
    "the loop is launch-bound, cure that first."
)
CODE = """losses.append(loss.detach())                      # stays on the GPU
if step % 50 == 0:
    log(torch.stack(losses).mean().item()); losses.clear()"""


def synchronize(facts: Facts) -> Iterator[Draft]:
    """Yield one finding for each device that is synchronized with again and again."""
    for device in facts.devices:
        calls = _calls(facts, device)
        if len(calls) >= (facts.counted / 2 if facts.counted else RARE) and len(calls) > 1:
            yield _draft(facts, device, calls)


def _calls(facts: Facts, device: DeviceFacts) -> pl.DataFrame:
    return facts.analysis.host.sync.frame.filter(
        pl.col("process").is_in(list(device.use.process_ids))
        & (pl.col("end") > device.steady.start)
        & (pl.col("start") < device.steady.end)
    )


def _draft(facts: Facts, device: DeviceFacts, calls: pl.DataFrame) -> Draft:
    rows, refill = _refilled(device, calls)
    counts = calls["name"].value_counts(sort=True)
    names = listed([f"{count:,} {name}" for name, count in counts.iter_rows()])
    return Draft(
        id="synchronize",
        device=device,
        title=f"{many(len(calls), 'synchronization')}{facts.per_iteration(len(calls))} cost the GPU {{cost}}"
        + _where(facts, calls),
        advice=f"{names}: they held the host for {duration(int(calls['blocked'].sum()))}, of which "
        f"the GPU worked {duration(int(calls['waited'].sum()))}. {ADVICE}",
        code=CODE,
        claims=(
            Idle(("sync",), rows=device.in_steady),
            Idle(("host", "launch", "api"), rows=rows, at_most=refill),
        ),
        place="ran dry at a synchronization and was filled again",
    )


def _refilled(device: DeviceFacts, calls: pl.DataFrame) -> tuple[Times, Times]:
    """Return the steady gaps in which calls returned, and how long it took at most to fill the GPU again in each."""
    gap = device.gap_of(calls["end"].to_numpy())
    refill = np.minimum(calls["refill"].to_numpy(), REFILLED)
    some = np.flatnonzero((refill > 0) & (gap >= device.in_steady.start) & (gap < device.in_steady.stop))
    rows, which = np.unique(gap[some], return_inverse=True)
    most = np.zeros(len(rows), np.int64)
    np.maximum.at(most, which, refill[some])
    return rows, most


def _where(facts: Facts, calls: pl.DataFrame) -> str:
    """Return " (mostly in `sync`)": the range in which most of these calls were made."""
    owner = facts.ranges_at(calls["thread"].cast(pl.Int64).to_numpy(), calls["start"].to_numpy())
    names, which = facts.range_names(owner[owner >= 0])
    counts = np.bincount(which, minlength=1)
    most = int(counts.argmax())
    return f" (mostly in `{names[most]}`)" if 2 * int(counts[most]) > len(calls) else ""
