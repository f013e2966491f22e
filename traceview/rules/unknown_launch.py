"""Idle before work whose launch the capture lacks.

Symptom: the idle cause `unknown`.
Cause: a slice (see cut_capture), or no API calls in the capture.
Remedy: capture whole steps with `-t cuda,nvtx`. Information.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.rules.base import Draft, Facts
from traceview.rules.ledger import Idle


def unknown_launch(facts: Facts) -> Iterator[Draft]:
    """Name the idle time that nothing explains."""
    for device in facts.devices:
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
