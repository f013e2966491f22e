"""CUDA graphs are traced as a whole.

Symptom: GPU work is in CUPTI_ACTIVITY_KIND_GRAPH_TRACE; the KERNEL table is missing or has few rows.
Cause: by default nsys traces a CUDA graph as one operation (`--cuda-graph-trace=graph`).
Remedy: capture again with `--cuda-graph-trace=node` to see the kernels, copies and gaps inside the graphs.

A note, because no figure includes the gaps, kernels and communication inside the graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from traceview import intervals
from traceview.model.trace import SOURCES, Note
from traceview.model.units import duration, quantity, share
from traceview.pricing.base import CaptureFacts, CapturePart, DeviceFacts, DevicePart, Rule
from traceview.pricing.claims import Collected

GRAPH = SOURCES.index("graph")


class _Sums(NamedTuple):
    """The number of graphs traced as a whole, and the ns in which one runs."""

    graphs: int
    ns: int


def _collect(part: CapturePart, device: DevicePart) -> Collected[_Sums]:
    work, members = device.activity, np.flatnonzero(device.column(part.trace, "source") == GRAPH)
    inside = intervals.length(intervals.union(work.start[members], work.end[members], ordered=True))
    return Collected(_Sums(len(members), inside))


def _decide(facts: CaptureFacts, sums: Mapping[int, _Sums]) -> Iterator[Note]:
    """Yield a note for each device with graphs traced as a whole."""
    for device in facts.devices:
        graphs = sums[device.row]
        if graphs.graphs:
            yield _note(device, graphs.graphs, graphs.ns)


def _note(device: DeviceFacts, count: int, inside: int) -> Note:
    use = device.use
    kernels = (
        "the kernel table is missing"
        if use.kernel_count == 0
        else quantity(use.kernel_count, "kernel") + " outside graphs"
    )
    return Note(
        "whole_graphs",
        f"{share(inside, use.compute_ns)} of the compute of {use.id} is inside "
        f"{quantity(count, 'CUDA graph launch', 'CUDA graph launches')} traced as a whole; {kernels}. Each "
        f"graph launch is one busy block ({duration(inside)} in total). Kernels, copies, communication and idle gaps "
        "inside it are not measured, so the true idle time is at least, and the true overlap at most, the figure "
        "shown. To see inside, capture a few steps with `--cuda-graph-trace=node`. This slows each launch, so take run "
        "times from this capture.",
        affects=("compute", "idle", "communication", "copies", "findings"),
    )


whole_graphs = Rule("whole_graphs", _decide, _collect, place=40)
