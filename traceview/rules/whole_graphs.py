"""CUDA graphs are traced as a whole.

Symptom: GPU work is in CUPTI_ACTIVITY_KIND_GRAPH_TRACE; the KERNEL table is missing or has few rows.
Cause: by default nsys traces a CUDA graph as one operation (`--cuda-graph-trace=graph`).
Remedy: capture again with `--cuda-graph-trace=node` to see the kernels, copies and gaps inside the graphs.

If graphs are at least half of the compute, the finding is a premise: no other figure includes the gaps, kernels and
communication inside them. Claims nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.intervals import Times
from traceview.model.analysis import Place
from traceview.model.trace import SOURCES
from traceview.pricing.base import CaptureFacts, DeviceFacts, FindingDraft
from traceview.pricing.figures import duration, quantity, share

MIN_PREMISE_SHARE = 0.5
MAX_PLACES = 3
GRAPH = SOURCES.index("graph")
CODE = "nsys profile --cuda-graph-trace=node -t cuda,nvtx -o report python train.py"


def whole_graphs(facts: CaptureFacts) -> Iterator[FindingDraft]:
    """Yield one finding for each device with graphs traced as a whole."""
    for device in facts.devices:
        members = np.flatnonzero(device.column(facts.analysis.trace, "source") == GRAPH)
        if len(members):
            yield _draft(facts, device, members)


def _draft(facts: CaptureFacts, device: DeviceFacts, members: Times) -> FindingDraft:
    work, use = device.activity, device.use
    start, end = work.start[members], work.end[members]
    inside = intervals.length(intervals.union(start, end, ordered=True))
    premise = inside >= MIN_PREMISE_SHARE * use.compute_ns
    kernels = (
        "the kernel table is missing"
        if use.kernel_count == 0
        else quantity(use.kernel_count, "kernel") + " outside graphs"
    )
    longest = np.argsort(start - end, kind="stable")[:MAX_PLACES]
    streams = facts.analysis.trace.operations["stream"].to_numpy()[work.rows[members]]
    return FindingDraft(
        id="whole_graphs",
        device=device,
        title=f"{share(inside, use.compute_ns)} of the compute is inside "
        f"{quantity(len(members), 'CUDA graph launch', 'CUDA graph launches')} traced as a whole; {kernels}",
        advice=f"Each graph launch is one busy block ({duration(inside)} in total). Kernels, copies, communication "
        "and idle gaps inside it are not measured, so the true idle time is at least, and the true overlap at most, "
        "the figure shown. To see inside, capture a few steps with `--cuda-graph-trace=node`. This slows each "
        "launch, so take run times from this capture.",
        code=CODE,
        severity="high" if premise else "info",
        premise=premise,
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
