"""Idle before work whose launch the capture lacks.

Symptom: the idle cause `unknown`.
Cause: a migration of managed memory, which no call launches: the host touched its pages. Else a slice (see
cut_capture), or no API calls in the capture.
Remedy: for managed memory, whole copies in place of migrations. Else capture whole steps with `-t cuda,nvtx`:
information.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.intervals import Times
from traceview.model.trace import KINDS
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.ledger import Idle

MIGRATIONS = [number for number, kind in enumerate(KINDS) if kind.startswith("um_")]


def unknown_launch(facts: Facts) -> Iterator[Draft]:
    """Name the idle time that ends in a migration, and what nothing explains."""
    for device in facts.devices:
        if device.use.gaps.causes["unknown"] == 0:
            continue
        yield Draft(
            id="managed_wait",
            device=device,
            title="The GPU idles {cost} until managed memory migrates: the host works on it page by page",
            advice="No call launches a migration: one side touched pages that the other one has, and what the host did "
            "until then is not in the capture. Fetch what the host needs in one piece before it is needed, or let it "
            "work on pinned memory of its own. The GPU's page faults make its kernels longer and are no idle time: "
            "`--cuda-um-gpu-page-faults=true` shows them.",
            claims=(Idle(("unknown",), _before_migrations(facts, device)),),
            code="cudaMemPrefetchAsync(pointer, bytes, cudaCpuDeviceId, stream);",
            place="a migration of managed memory ended this gap",
        )
        yield Draft(
            id="unknown_launch",
            device=device,
            title="{cost} of idle time cannot be explained: the capture lacks the launch that ended it",
            advice="Capture whole steps, from idle to idle, with `-t cuda,nvtx`.",
            claims=(Idle(("unknown",)),),
            code="nsys profile -c cudaProfilerApi --capture-range-end=stop -t cuda,nvtx python train.py",
            severity="info",
            place="what ended this gap has no launch in the capture",
        )


def _before_migrations(facts: Facts, device: DeviceFacts) -> Times:
    """Return which gaps of the device end in a migration."""
    kind = facts.analysis.trace.operations["kind"].to_physical().fill_null(255).to_numpy()
    ended_by = device.gap_operation
    return np.flatnonzero((ended_by >= 0) & np.isin(kind[ended_by] if len(kind) else kind, MIGRATIONS))
