"""The host synchronizes with the GPU in every iteration.

Symptom: cudaStreamSynchronize, cudaDeviceSynchronize or cudaEventSynchronize at least once in each step; the GPU runs
out of work and restarts.
Cause: `loss.item()`, `print(tensor)`, `.cpu()`, `torch.cuda.synchronize()`, `if tensor > x`, boolean indexing.
Remedy: keep the value on the device, read it every N steps, or use a non-blocking copy and an event.

Claims the idle cause `sync`, and after the return of each wait the causes `launch`, `api` and `host`, together at most
the cost of the calls (docs/definitions.md "Synchronization"), not the time for which they block.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import join_words
from traceview.pricing.ledger import IdleClaim
from traceview.pricing.waits import calls_of_device, restart_claim, total_cost
from traceview.rules.advice.host import SYNCHRONIZE
from traceview.units import duration, quantity

MIN_CALLS = 10  # fewest calls that count in a capture without iterations


def synchronize(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device with repeated synchronizations."""
    for device in facts.devices:
        calls = calls_of_device(device, facts.analysis.host.sync.frame)
        if len(calls) >= (facts.counted / 2 if facts.counted else MIN_CALLS) and len(calls) > 1:
            yield _draft(facts, device, calls)


def _draft(facts: CaptureFacts, device: DeviceFacts, calls: pl.DataFrame) -> FindingDraft:
    counts = calls["name"].value_counts(sort=True)
    names = join_words([f"{count:,} {name}" for name, count in counts.iter_rows()])
    fix = SYNCHRONIZE.choose(facts.program)
    return FindingDraft(
        id="synchronize",
        device=device,
        title=f"{quantity(len(calls), 'synchronization')}{facts.per_iteration(len(calls))} cost the GPU {{cost}}"
        + _main_range(facts, calls),
        advice=f"{names} blocked the host for {duration(int(calls['blocked'].sum()))}; the GPU was busy for "
        f"{duration(int(calls['waited'].sum()))} of it. {fix.advice}",
        code=fix.code,
        claims=(
            IdleClaim(("sync",), rows=device.steady_gaps),
            restart_claim(device, calls),
        ),
        change="sync",
        at_most=total_cost(calls),
        place_label="the GPU runs out of work at a synchronization and restarts",
    )


def _main_range(facts: CaptureFacts, calls: pl.DataFrame) -> str:
    """Return " (mostly in `sync`)", the range with most of these calls, or ""."""
    owner = facts.ranges_at(calls["thread"].cast(pl.Int64).to_numpy(), calls["start"].to_numpy())
    names, which = facts.range_names(owner[owner >= 0])
    counts = np.bincount(which, minlength=1)
    most = int(counts.argmax())
    return f" (mostly in `{names[most]}`)" if 2 * int(counts[most]) > len(calls) else ""
