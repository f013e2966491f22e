"""The GPU is idle before work whose launch is not in the capture.

Symptom: idle time with the cause `unknown`.
Cause: a migration of managed memory, which no call launches: the host touches its pages. A migration moves at most
2 MB, which the host reads or fills within MAX_FAULT; in a longer gap it works before it touches the memory. Otherwise
the export is a slice (see cut_capture) or has no API calls.
Remedy: for managed memory, copies of whole arrays instead of migrations, or less work of the host. Otherwise capture
whole steps with `-t cuda,nvtx`; this is information.

Claims the idle cause `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from traceview.model.trace import KINDS
from traceview.pricing.base import CaptureFacts, CapturePart, DevicePart, FindingDraft, OldRule
from traceview.pricing.claims import Collected, GapGroup, IdleClaim

MIGRATIONS = [number for number, kind in enumerate(KINDS) if kind.startswith("um_")]
MAX_FAULT = 1_000_000  # ns


def _collect(part: CapturePart, device: DevicePart) -> Collected[tuple[()]]:
    """Group the gaps that end with a migration."""
    kind = part.trace.operations["kind"].to_physical().fill_null(255).to_numpy()
    operation = device.gap_operation
    migrates = np.isin(kind[operation] if len(kind) else kind, MIGRATIONS)
    ended = np.flatnonzero((operation >= 0) & migrates)
    long = device.gap_end[ended] - device.gap_start[ended] > MAX_FAULT
    return Collected((), {"migrations": GapGroup(ended[~long]), "host": GapGroup(ended[long])})


def _decide(facts: CaptureFacts, _sums: Mapping[int, tuple[()]]) -> Iterator[FindingDraft]:
    """Yield the idle time that migrations end, and the idle time that nothing explains."""
    for device in facts.devices:
        if device.use.gaps.causes["unknown"] == 0:
            continue
        yield FindingDraft("managed_wait", device, (IdleClaim(("unknown",), "migrations"),))
        where = {"where": " before it touches managed memory"}
        host = IdleClaim(("unknown",), "host")
        yield FindingDraft("host_bound", device, (host,), where, "elsewhere", key="migrations")
        yield FindingDraft("unknown_launch", device, (IdleClaim(("unknown",)),))


unknown_launch = OldRule("unknown_launch", _decide, _collect, place=220)
