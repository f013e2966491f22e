"""The GPU is idle although work is already launched.

Symptom: idle time with the cause `queued`: the launch call has returned and the GPU still does nothing.
Cause: the step from one kernel to the next (about 1 µs), a dependency on another stream (an event), or the start of
a CUDA graph.
Remedy: fewer and larger kernels, fewer cross-stream events. Often no change is needed, so this is information.

Claims the idle cause `queued` that is left, in gaps longer than the hardware needs. Short gaps count only where they
take MIN_SHORT_SHARE of the time: then the kernels are too small.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.pricing.base import CaptureFacts, FindingDraft
from traceview.pricing.ledger import IdleClaim
from traceview.rules.advice.launches import DEPENDENCY_WAIT
from traceview.units import duration, quantity

HARDWARE_GAP = 2_000  # ns; from one kernel to the next, 1 to 1.5 µs on an H200
MIN_SHORT_SHARE = 0.05


def dependency_wait(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device that is idle while work is queued."""
    fix = DEPENDENCY_WAIT.choose(facts.program)
    for device in facts.devices:
        if device.use.gaps.causes["queued"] == 0:
            continue
        queued = device.use.gaps.frame["queued"].to_numpy()
        short = queued <= HARDWARE_GAP
        few = int(queued[short].sum()) < MIN_SHORT_SHARE * device.use.window.length
        rows = np.flatnonzero(~short) if few else np.flatnonzero(queued)
        mean = duration(int(queued[rows].sum()) / max(len(rows), 1))
        gaps = quantity(len(rows), "gap")
        yield FindingDraft(
            id="dependency_wait",
            device=device,
            title=f"{gaps} with work already launched: the GPU takes {mean} on average to start it",
            advice="About 1 µs from one kernel to the next is hardware latency. A longer gap is a wait for an event "
            f"of another stream or the start of a CUDA graph. {fix.advice}",
            claims=(IdleClaim(("queued",), rows),),
            code=fix.code,
            place_label="launched work has not started",
        )
