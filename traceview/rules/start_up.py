"""Idle outside the iterations that count: start-up, warm-up, and what comes after the loop.

Symptom: the window of the device is longer than its iterations.
Cause: imports, CUDA start, model building, compilation, the first steps.
Remedy: capture only steady steps. It is paid once, hence never more than low.

Claims every idle cause of gaps that begin outside the steady time; only where iterations are known.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.intervals import Times
from traceview.model.analysis import CAUSES
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import duration
from traceview.pricing.ledger import Idle

CODE = """torch.cuda.cudart().cudaProfilerStart()   # after the warm-up steps
# nsys profile -c cudaProfilerApi --capture-range-end=stop -t cuda,nvtx python train.py"""


def start_up(facts: Facts) -> Iterator[Draft]:
    """Set aside what is not the loop."""
    if facts.counted is None:
        return
    for device in facts.devices:
        before = np.arange(device.in_steady.start)
        after = np.arange(device.in_steady.stop, device.use.gaps.count)
        yield _draft(device, before, "start_up", "Before the first counted iteration")
        yield _draft(device, after, "after_loop", "After the last counted iteration")


def _draft(device: DeviceFacts, rows: Times, name: str, when: str) -> Draft:
    sums = {cause: int(device.use.gaps.frame[cause].to_numpy()[rows].sum()) for cause in CAUSES}
    worst = sorted(sums, key=lambda cause: -sums[cause])[:2]
    parts = " and ".join(f"{duration(sums[cause])} `{cause}`" for cause in worst if sums[cause])
    return Draft(
        id=name,
        device=device,
        title=f"{when} the GPU idled {{cost}}, mostly {parts or 'for no known cause'}",
        advice="It is paid once and says nothing about the training speed. To keep it out of every "
        "figure, capture only steady steps, or narrow this report (`--from`, `--to`, `--range`).",
        claims=(Idle(CAUSES, rows=rows),),
        code=CODE,
        severity="low",
        place="outside the counted iterations",
    )
