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
from traceview.pricing.waits import calls_of_device, count_names, restart_claim
from traceview.rules.advice.host import SYNCHRONIZE
from traceview.units import duration, quantity

MIN_CALLS = 10  # fewest calls that count in a capture without iterations


def synchronize(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device with repeated synchronizations."""
    for device in facts.devices:
        calls = calls_of_device(device, facts.analysis.host.sync.frame)
        counts = device.total("synchronizations", count_names(calls))
        figures = {name: int(calls[name].sum()) for name in ("blocked", "waited", "cost")}
        figures = device.total("synchronized_ns", figures)
        count = sum(counts.values())
        if count >= (facts.counted / 2 if facts.counted else MIN_CALLS) and count > 1:
            yield _draft(facts, device, calls, counts, figures)


def _draft(
    facts: CaptureFacts, device: DeviceFacts, calls: pl.DataFrame, counts: dict[str, int], figures: dict[str, int]
) -> FindingDraft:
    """Return the finding; `counts` are the numbers of calls by name, `figures` their ns."""
    count = sum(counts.values())
    names = join_words([f"{counts[name]:,} {name}" for name in sorted(counts, key=lambda name: (-counts[name], name))])
    fix = SYNCHRONIZE.choose(facts.program)
    return FindingDraft(
        id="synchronize",
        device=device,
        title=f"{quantity(count, 'synchronization')}{facts.per_iteration(count)} cost the GPU {{cost}}"
        + _main_range(facts, device, calls, count),
        advice=f"{names} blocked the host for {duration(figures['blocked'])}; the GPU was busy for "
        f"{duration(figures['waited'])} of it. {fix.advice}",
        code=fix.code,
        claims=(
            IdleClaim(("sync",), rows=device.steady_gaps),
            restart_claim(device, calls),
        ),
        change="sync",
        at_most=figures["cost"],
        place_label="the GPU runs out of work at a synchronization and restarts",
    )


def _main_range(facts: CaptureFacts, device: DeviceFacts, calls: pl.DataFrame, count: int) -> str:
    """Return " (mostly in `sync`)", the range with most of `count` calls, or ""."""
    owner = facts.ranges_at(calls["thread"].cast(pl.Int64).to_numpy(), calls["start"].to_numpy())
    names, which = facts.range_names(owner[owner >= 0])
    own = np.bincount(which, minlength=len(names)).tolist()
    counts = device.shown("ranges of synchronizations", dict(zip(names, own, strict=True)))
    most = max(counts, key=counts.__getitem__, default="")
    return f" (mostly in `{most}`)" if 2 * counts.get(most, 0) > count else ""
