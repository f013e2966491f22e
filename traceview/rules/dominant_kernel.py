"""The GPU computes nearly all the time: the kernels themselves are what is left to improve.

Symptom: kernels run for more than 80% of the steady part.
Cause: the kernels limit the program; copies, waits and launches cost little.
Remedy: a faster kernel. The note names the one that takes most of the time.

A note, because no idle or exposed time is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview.measure.activity import COMPUTE
from traceview.model.trace import Note
from traceview.normalise.codes import categories
from traceview.pricing.base import CaptureFacts, DeviceFacts
from traceview.rules.shared_gpu import metric_sentence
from traceview.units import duration, quantity, share

MIN_COMPUTE = 0.8  # share of the steady part


def dominant_kernel(facts: CaptureFacts) -> Iterator[Note]:
    """Yield a note on the costliest kernel of each device that computes nearly all the time."""
    for device in facts.devices:
        if device.use.compute_ns > MIN_COMPUTE * device.use.window.length:
            yield _note(facts, device)


def _note(facts: CaptureFacts, device: DeviceFacts) -> Note:
    work, use = device.activity, device.use
    computes = work.codes == COMPUTE
    names = facts.analysis.trace.operations["name"]
    code = work.select(names.to_physical().to_numpy())[computes]
    length = (work.end - work.start)[computes]
    total = np.bincount(code, weights=length)
    most = int(total.argmax())
    count = int(np.count_nonzero(code == most))
    mean = int(total[most]) / count
    whole = use.window.length
    return Note(
        "dominant_kernel",
        f"{use.id} computes {share(use.compute_ns, whole)} of the time, so only faster kernels make the program much "
        f"faster. {categories(names)[most]} takes {share(min(float(total[most]), whole), whole)} of the time: "
        f"{quantity(count, 'run')} of {duration(mean)} on average.{metric_sentence(use)}",
    )
