"""The GPU is idle outside the counted iterations: start-up, warm-up and the end of the run.

Symptom: the window of the device is longer than its counted iterations.
Cause: imports, CUDA initialization, model building, compilation, the first steps.
Remedy: capture only steady steps. The cost occurs once, so the severity is low.

Claims all idle causes of gaps that begin outside the steady time, if there are iterations.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.intervals import Times
from traceview.model.analysis import CAUSES
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import duration
from traceview.pricing.ledger import IdleClaim

CODE = """torch.cuda.cudart().cudaProfilerStart()   # after the warm-up steps
# nsys profile -c cudaProfilerApi --capture-range-end=stop -t cuda,nvtx python train.py"""


def start_up(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield the idle time before the first and after the last counted iteration of each device."""
    if facts.counted is None:
        return
    for device in facts.devices:
        before = np.arange(device.steady_gaps.start)
        after = np.arange(device.steady_gaps.stop, device.use.gaps.count)
        yield _draft(device, before, "start_up", "Before the first counted iteration")
        yield _draft(device, after, "after_loop", "After the last counted iteration")


def _draft(device: DeviceFacts, rows: Times, name: str, when: str) -> FindingDraft:
    sums = {cause: int(device.use.gaps.frame[cause].to_numpy()[rows].sum()) for cause in CAUSES}
    largest = sorted(sums, key=lambda cause: -sums[cause])[:2]
    parts = " and ".join(f"{duration(sums[cause])} `{cause}`" for cause in largest if sums[cause])
    return FindingDraft(
        id=name,
        device=device,
        title=f"{when} the GPU is idle for {{cost}}, mostly {parts or 'for unknown causes'}",
        advice="This cost occurs once and does not affect the training speed. To exclude it from all figures, capture "
        "only steady steps, or narrow this report (`--from`, `--to`, `--range`).",
        claims=(IdleClaim(CAUSES, rows=rows),),
        code=CODE,
        severity="low",
        place_label="outside the counted iterations",
    )
