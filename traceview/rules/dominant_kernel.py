"""The GPU computes nearly all the time: the kernels themselves are what is left to improve.

Symptom: kernels run for more than 80% of the steady part.
Cause: the kernels limit the program; copies, waits and launches cost little.
Remedy: a faster kernel. The note names the one that takes most of the time.

A note, because no idle or exposed time is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from traceview.measure.activity import COMPUTE
from traceview.model.analysis import DeviceUse
from traceview.model.trace import Note
from traceview.model.units import duration, quantity, share
from traceview.normalise.codes import categories
from traceview.pricing.base import CaptureFacts, CapturePart, DevicePart, Rule
from traceview.pricing.claims import Collected
from traceview.rules.shared_gpu import metric_sentence

MIN_COMPUTE = 0.8  # share of the steady part


class _Sums(NamedTuple):
    """The ns and the number of runs of each compute kernel, by name."""

    ns: dict[str, int]
    runs: dict[str, int]


def _collect(part: CapturePart, device: DevicePart) -> Collected[_Sums]:
    if not _computes_nearly_always(device.use):
        return Collected(_Sums({}, {}))
    work = device.activity
    computes = work.codes == COMPUTE
    names = part.trace.operations["name"]
    code = work.select(names.to_physical().to_numpy())[computes]
    sums, counts = np.bincount(code, weights=(work.end - work.start)[computes]), np.bincount(code)
    text = categories(names)
    used = np.flatnonzero(counts).tolist()
    return Collected(_Sums({text[row]: int(sums[row]) for row in used}, {text[row]: int(counts[row]) for row in used}))


def _computes_nearly_always(use: DeviceUse) -> bool:
    return use.compute_ns > MIN_COMPUTE * use.window.length


def _decide(facts: CaptureFacts, sums: Mapping[int, _Sums]) -> Iterator[Note]:
    """Yield a note on the costliest kernel of each device that computes nearly all the time."""
    for device in facts.devices:
        kernels = sums[device.row]
        if kernels.ns:
            yield _note(device.use, kernels)


def _note(use: DeviceUse, kernels: _Sums) -> Note:
    whole, most = use.window.length, max(kernels.ns, key=kernels.ns.__getitem__)
    total, count = kernels.ns[most], kernels.runs[most]
    return Note(
        "dominant_kernel",
        f"{use.id} computes {share(use.compute_ns, whole)} of the time, so only faster kernels make the program much "
        f"faster. {most} takes {share(min(float(total), whole), whole)} of the time: "
        f"{quantity(count, 'run')} of {duration(total / count)} on average.{metric_sentence(use)}",
    )


dominant_kernel = Rule("dominant_kernel", _decide, _collect)
