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
            yield from _note(facts, device)


def _note(facts: CaptureFacts, device: DeviceFacts) -> Iterator[Note]:
    work, use = device.activity, device.use
    computes = work.codes == COMPUTE
    names = facts.analysis.trace.operations["name"]
    code = work.select(names.to_physical().to_numpy())[computes]
    length = (work.end - work.start)[computes]
    used = np.unique(code).tolist()
    sums, counts = np.bincount(code, weights=length), np.bincount(code)
    text = categories(names)
    total = device.total("kernel ns", {text[number]: int(sums[number]) for number in used})
    count = device.total("kernel counts", {text[number]: int(counts[number]) for number in used})
    if not total:
        return  # a slice of the capture, before its sums are known
    most = max(total, key=total.__getitem__)
    whole = use.window.length
    yield Note(
        "dominant_kernel",
        f"{use.id} computes {share(use.compute_ns, whole)} of the time, so only faster kernels make the program much "
        f"faster. {most} takes {share(min(float(total[most]), whole), whole)} of the time: "
        f"{quantity(count[most], 'run')} of {duration(total[most] / count[most])} on average.{metric_sentence(use)}",
    )
