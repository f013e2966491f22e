"""CUDA graphs are traced as a whole, or not at all.

Symptom: GPU work is in CUPTI_ACTIVITY_KIND_GRAPH_TRACE; the KERNEL table is missing or has few rows. Or the launches of
graphs have no GPU work in the capture, and the GPU seems idle while they run.
Cause: by default nsys traces a CUDA graph as one operation (`--cuda-graph-trace=graph`); some versions lose it.
Remedy: capture again with `--cuda-graph-trace=node` to see the kernels, copies and gaps inside the graphs.

Graphs traced as a whole are a note, because no figure includes the gaps, kernels and communication inside them. Lost
graphs claim all causes of the gaps between two operations between whose launches a lost graph was launched.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.intervals import Times
from traceview.model.analysis import CAUSES
from traceview.model.trace import SOURCES, Note, Trace
from traceview.model.units import duration, quantity, share
from traceview.normalise.lost_events import graphs_without_work
from traceview.pricing.base import FindingDraft, GpuWork, MeasuredCapture, Rule
from traceview.pricing.ledger import GapClaim

GRAPH = SOURCES.index("graph")


def find(capture: MeasuredCapture, device: GpuWork) -> Iterator[Note | FindingDraft]:
    """Yield a note if graphs are traced as a whole, and a finding if the capture lacks graphs."""
    work, members = device.activity, np.flatnonzero(device.column("source") == GRAPH)
    if len(members):
        inside = intervals.union(work.start[members], work.end[members], ordered=True)
        yield _note(device, len(members), intervals.length(inside))
    if any(note.id == "lost_graph_replays" for note in capture.trace.info.health):
        lost = _gaps_with_lost_graphs(capture.trace, device)
        if len(lost):
            yield FindingDraft("lost_graphs", device, (GapClaim(CAUSES, lost),))


def _gaps_with_lost_graphs(trace: Trace, device: GpuWork) -> Times:
    """Return the gaps in which a graph ran that the capture lacks.

    A graph without work was launched between the launches of the operations before and after the gap, or before the
    first operation of the capture.
    """
    lost, gaps = graphs_without_work(trace.api, trace.operations), np.flatnonzero(device.gap_operation >= 0)
    if len(lost) == 0 or len(gaps) == 0:
        return gaps[:0]
    launch = trace.operations["launch"].fill_null(-1).to_numpy()
    ending, before = device.gap_operation[gaps], device.operations_before(gaps)
    earlier = np.where(before == ending, -1, launch[before])
    first = np.searchsorted(lost, earlier, side="right")
    chosen: Times = gaps[first < np.searchsorted(lost, launch[ending])]
    return chosen


def _note(device: GpuWork, count: int, inside: int) -> Note:
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


whole_graphs = Rule("whole_graphs", find)
