"""CUDA graphs were traced whole.

Symptom: GPU work is in CUPTI_ACTIVITY_KIND_GRAPH_TRACE; the KERNEL table is missing or holds little.
Cause: nsys traces a CUDA graph as one piece by default (`--cuda-graph-trace=graph`).
Remedy: capture once more with `--cuda-graph-trace=node` to see kernels, copies and gaps inside the graphs.

Where graphs are most of the compute this is a premise: gaps, kernels and communication inside them
are in no other figure. Nothing is claimed.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.intervals import Times
from traceview.model.analysis import Place
from traceview.model.trace import SOURCES
from traceview.pricing.base import DeviceFacts, Draft, Facts
from traceview.pricing.format import duration, many, share

MOST = 0.5
GRAPH = SOURCES.index("graph")
CODE = "nsys profile --cuda-graph-trace=node -t cuda,nvtx -o report python train.py"


def whole_graphs(facts: Facts) -> Iterator[Draft]:
    """Say which part of the compute cannot be looked into."""
    for device in facts.devices:
        members = np.flatnonzero(device.column(facts.analysis.trace, "source") == GRAPH)
        if len(members):
            yield _draft(facts, device, members)


def _draft(facts: Facts, device: DeviceFacts, members: Times) -> Draft:
    work, use = device.activity, device.use
    start, end = work.start[members], work.end[members]
    inside = intervals.length(intervals.union(start, end, ordered=True))
    most = inside >= MOST * use.compute_ns
    kernels = (
        "there is no kernel table"
        if use.kernel_count == 0
        else many(use.kernel_count, "kernel") + " beside them"
    )
    longest = np.argsort(start - end, kind="stable")[:3]
    streams = facts.analysis.trace.operations["stream"].to_numpy()[work.rows[members]]
    return Draft(
        id="whole_graphs",
        device=device,
        title=f"{share(inside, use.compute_ns)} of the compute is inside "
        f"{many(len(members), 'CUDA graph launch', 'CUDA graph launches')} traced whole: "
        f"{kernels}",
        advice=f"A graph shows as one busy block ({duration(inside)} in all). Kernels, copies, "
        "communication and idle gaps inside cannot be measured, so idle time is at least, and "
        "overlap at most, what is shown. To look inside, capture a few steps with "
        "`--cuda-graph-trace=node`; that slows each launch, so take run times from this capture.",
        code=CODE,
        severity="high" if most else "info",
        premise=most,
        evidence=tuple(
            Place(
                f"CUDA graph, {duration(int(end[row] - start[row]))}",
                int(start[row]),
                int(end[row]),
                use.id,
                int(streams[row]),
            )
            for row in longest
        ),
    )
