"""The GPU waits for CUDA calls that no other rule explains.

Symptom: idle time with the causes `launch`, `api`, `sync`, `blocking_copy` or `memory` that is left, in gaps that are
too long for launch-bound.
Cause: the first launch of a kernel loads its module, calls manage events and streams, or a rare synchronization.
Remedy: warm up before measuring, load modules eagerly, look at the named calls.

Claims these idle causes of the steady gaps; of blocking calls at most their cost.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import polars as pl

from traceview.intervals import Times, largest_positions
from traceview.model.trace import Trace
from traceview.model.units import duration
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim
from traceview.pricing.texts import join_words
from traceview.rules.synchronize import calls_of_device, total_cost

MAX_NAMED_GAPS = 20
MAX_NAMES = 2

LAUNCHING, BLOCKING = ("launch", "api"), ("sync", "blocking_copy", "memory")
CAUSES = LAUNCHING + BLOCKING


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield a finding for a GPU that waits for CUDA calls."""
    waits = device.gap_waits(CAUSES, device.steady_gaps)
    if waits is None:
        return
    steady, host = device.steady_gaps, capture.host
    blocking = sum(total_cost(calls_of_device(device, use.frame)) for use in (host.sync, host.implicit_sync))
    yield FindingDraft(
        "slow_calls",
        device,
        (GapClaim(LAUNCHING, steady), GapClaim(BLOCKING, steady)),
        {"before": _launches_after_longest(capture.trace, device, waits)},
        at_most=sum(device.use.gaps.causes[cause] for cause in LAUNCHING) + blocking,
    )


def _launches_after_longest(trace: Trace, device: GpuWork, waits: Times) -> str:
    """Return the names of the launches that end the steady gaps with the longest waits."""
    longest = np.array(largest_positions(waits, MAX_NAMED_GAPS), np.int64)
    operations = device.gap_operation[longest + device.steady_gaps.start]
    launches = trace.operations["launch"].gather(operations[operations >= 0]).drop_nulls()
    names = trace.api["name"].gather(launches).cast(pl.String).unique(maintain_order=True).head(MAX_NAMES)
    return f" (up to {duration(int(waits[longest[0]]))} before {join_words(names.to_list())})" if len(names) else ""


slow_calls = Rule("slow_calls", find)
