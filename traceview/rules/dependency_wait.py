"""Idle although the work was already launched.

Symptom: the idle cause `queued`: the launch call had returned and the GPU still did nothing.
Cause: the step from one kernel to the next (about 1 µs), a dependency across streams (an event), or a
graph's start.
Remedy: fewer and larger kernels; fewer cross-stream events. Often nothing: information.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.pricing.base import Draft, Facts
from traceview.pricing.format import duration, many
from traceview.pricing.ledger import Idle


def dependency_wait(facts: Facts) -> Iterator[Draft]:
    """Name what is left of the idle time with work in the queue."""
    for device in facts.devices:
        total = device.use.gaps.causes["queued"]
        if total == 0:
            continue
        count = int(np.count_nonzero(device.use.gaps.frame["queued"].to_numpy()))
        each = duration(total / count)
        yield Draft(
            id="dependency_wait",
            device=device,
            title=f"{many(count, 'gap')} with work already launched: the GPU took {each} each to begin it",
            advice="About 1 µs from one kernel to the next is the hardware's own; more is a wait for "
            "an event of another stream or the start of a graph. Larger or fused kernels leave fewer "
            "such steps: torch.compile fuses element-wise chains, and graphs start their kernels "
            "faster.",
            claims=(Idle(("queued",)),),
            code="model = torch.compile(model)",
            severity="info",
            place="work was launched and did not start",
        )
