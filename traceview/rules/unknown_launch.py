"""The GPU is idle before work whose launch is not in the capture.

Symptom: idle time with the cause `unknown`.
Cause: a migration of managed memory, which no call launches: the host touches its pages. A migration moves at most
2 MB, which the host reads or fills within MAX_FAULT; in a longer gap it works before it touches the memory. Otherwise
the export is a slice or has no API calls.
Remedy: for managed memory, copies of whole arrays instead of migrations, or less work of the host. Otherwise capture
whole steps with `-t cuda,nvtx`; this is information.

Claims the idle cause `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.model.trace import KINDS
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim

MIGRATIONS = [number for number, kind in enumerate(KINDS) if kind.startswith("um_")]
MAX_FAULT = 1_000_000  # ns


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[FindingDraft]:
    """Yield the idle time that migrations end, and the idle time that nothing explains."""
    if device.use.gaps.causes["unknown"] == 0:
        return
    kind = capture.trace.operations["kind"].to_physical().fill_null(255).to_numpy()
    ended = np.flatnonzero((device.gap_operation >= 0) & np.isin(kind[device.gap_operation], MIGRATIONS))
    long = device.gap_end[ended] - device.gap_start[ended] > MAX_FAULT
    yield FindingDraft("managed_wait", device, (GapClaim(("unknown",), ended[~long]),))
    where = {"where": " before it touches managed memory"}
    host = GapClaim(("unknown",), ended[long])
    yield FindingDraft("host_bound", device, (host,), where, "elsewhere", key="migrations")
    yield FindingDraft("unknown_launch", device, (GapClaim(("unknown",)),))


unknown_launch = Rule("unknown_launch", find)
