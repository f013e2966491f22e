"""The GPU waits for CUDA calls that no other rule explains.

Symptom: idle time with the causes `launch`, `api`, `sync`, `blocking_copy` or `memory` that is left, in gaps that are
too long for launch-bound.
Cause: the first launch of a kernel loads its module, calls manage events and streams, or a rare synchronization.
Remedy: warm up before measuring, load modules eagerly, look at the named calls.

Claims these idle causes of the steady gaps; of blocking calls at most their cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np
import polars as pl

from traceview.intervals import EMPTY, largest_positions
from traceview.model.sums import KeyedSums
from traceview.model.trace import Trace
from traceview.model.units import duration
from traceview.pricing.base import CaptureFacts, CapturePart, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import STEADY, Collected, IdleClaim
from traceview.pricing.texts import join_words
from traceview.rules.synchronize import calls_of_device, total_cost

MAX_NAMED_GAPS = 20
MAX_NAMES = 2

LAUNCHING, BLOCKING = ("launch", "api"), ("sync", "blocking_copy", "memory")
CAUSES = LAUNCHING + BLOCKING


class _SlowCallsSums(NamedTuple):
    """The cost of blocking calls in ns, and the longest waits: gap_start, the launch that ends the gap, and ns."""

    blocking: int
    waits: KeyedSums


def _collect(part: CapturePart, device: DevicePart) -> Collected[_SlowCallsSums]:
    host = part.host
    blocking = sum(total_cost(calls_of_device(device, use.frame)) for use in (host.sync, host.implicit_sync))
    return Collected(_SlowCallsSums(blocking, KeyedSums(_longest_waits(part.trace, device), ("gap_start", "launch"))))


def _longest_waits(trace: Trace, device: DevicePart) -> pl.DataFrame:
    """Return the gaps in which the device waits longest for calls, with the name of the launch that ends each."""
    waits = device.gap_waits(CAUSES, device.steady_gaps)
    longest = [] if waits is None else largest_positions(waits, MAX_NAMED_GAPS)
    gaps = np.array(longest, np.int64) + device.steady_gaps.start
    frame = pl.DataFrame(
        {
            "gap_start": device.gap_start[gaps],
            "operation": device.gap_operation[gaps].astype(np.int64),
            "ns": EMPTY.start if waits is None else waits[longest],
        }
    )
    launch = trace.operations["launch"].gather(frame["operation"].replace(-1, None))
    names = trace.api["name"].gather(launch).cast(pl.String) if len(trace.api) else [""] * len(frame)
    return frame.select("gap_start", pl.Series("launch", names, pl.String).fill_null(""), "ns")


def _decide(facts: CaptureFacts, sums: Mapping[int, _SlowCallsSums]) -> Iterator[FindingDraft]:
    """Yield one finding for each device that waits for CUDA calls."""
    for device in facts.devices:
        causes, own = device.use.gaps.causes, sums[device.row]
        if not any(causes[cause] for cause in CAUSES):
            continue
        yield FindingDraft(
            "slow_calls",
            device,
            (IdleClaim(LAUNCHING, STEADY), IdleClaim(BLOCKING, STEADY)),
            {"before": _launches_after_longest(own.waits.frame)},
            at_most=sum(causes[cause] for cause in LAUNCHING) + own.blocking,
        )


def _launches_after_longest(waits: pl.DataFrame) -> str:
    """Return the names of the launches that end the gaps with the longest waits."""
    longest = waits.sort("ns", "gap_start", descending=[True, False]).head(MAX_NAMED_GAPS)
    names = longest.filter(pl.col("launch") != "")["launch"].unique(maintain_order=True).head(MAX_NAMES).to_list()
    return f" (up to {duration(longest['ns'][0])} before {join_words(names)})" if names else ""


slow_calls = OldRule("slow_calls", _decide, _collect, place=200)
