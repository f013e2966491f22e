"""Rules on what the capture itself hides or adds: another program on the GPU, graphs, and the profiler."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from traceview import intervals
from traceview.intervals import Times, values_at
from traceview.measure.shared_work import launch_rows
from traceview.model.analysis import CAUSES, DeviceFigures
from traceview.model.program import capture_advice
from traceview.model.sizes import MetricMeans
from traceview.model.trace import SOURCES, Note, Trace
from traceview.model.units import duration, quantity, share
from traceview.normalise.lost_events import graphs_without_work
from traceview.pricing.base import MIN_SHARE, FindingDraft, GpuWork, MeasuredCapture
from traceview.pricing.ledger import GapClaim

MIN_ACTIVE = 0.2  # share of the SMs' cycles in idle samples
MIN_SAMPLES = 20


def shared_gpu(_capture: MeasuredCapture, device: GpuWork) -> Iterator[Note]:
    """Another program uses the GPU while the captured one leaves it idle.

    Symptom: GPU metrics show active SMs in samples that no captured work fills.
    Cause: another process computes on the GPU, or work that the profiler does not trace.
    Remedy: capture alone on the GPU; its kernels then also run as fast as they can.

    A note, because the capture does not say which of its times are longer for that.
    """
    idle = metric_means(device.use, "idle")
    if idle is not None and is_shared(device.use):
        yield Note(
            "shared_gpu",
            f"{device.id} is shared: its SMs are active {share(idle.sm_active or 0)} of the time in which the capture "
            f"has no work on it ({quantity(idle.count, 'sample')}). Another program, or work that is not traced, slows "
            "what runs at the same time.",
            affects=("compute", "idle", "iterations"),
        )


def is_shared(use: DeviceFigures) -> bool:
    """Return whether a device's SMs work while it should be idle, as far as GPU metrics show."""
    idle = metric_means(use, "idle")
    return idle is not None and (idle.sm_active or 0) >= MIN_ACTIVE


def metric_means(use: DeviceFigures, work: str) -> MetricMeans | None:
    """Return the means of the time that a kind of work fills; None if fewer than MIN_SAMPLES samples show it."""
    rows = use.tables["gpu_metrics"].rows
    return next((row for row in rows if row.part == work and row.count >= MIN_SAMPLES), None)


def metric_sentence(use: DeviceFigures) -> str:
    """Return what the GPU's counters say about its compute, as a sentence with a space before it; "" if unknown."""
    means = metric_means(use, "compute")
    if means is None:
        return ""
    memory = None if means.dram_read is None or means.dram_write is None else means.dram_read + means.dram_write
    figures = (
        ("tensor cores are active", means.tensor_active),
        ("SMs issue instructions", means.sm_issue),
        ("DRAM is read or written", memory),
    )
    known = [f"{what} {share(value)}" for what, value in figures if value is not None]
    return f" Measured by GPU metrics while it computes: {', '.join(known)} of the time." if known else ""


GRAPH = SOURCES.index("graph")


def whole_graphs(capture: MeasuredCapture, device: GpuWork) -> Iterator[Note | FindingDraft]:
    """CUDA graphs are traced as a whole, or not at all.

    Symptom: GPU work is in CUPTI_ACTIVITY_KIND_GRAPH_TRACE; the KERNEL table is missing or has few rows. Or the
    launches of graphs have no GPU work in the capture, and the GPU seems idle while they run.
    Cause: by default nsys traces a CUDA graph as one operation (`--cuda-graph-trace=graph`); some versions lose it.
    Remedy: capture again with `--cuda-graph-trace=node` to see the kernels, copies and gaps inside the graphs.

    Graphs traced as a whole are a note, because no figure includes the gaps, kernels and communication inside them.
    Lost graphs claim all causes of the gaps between two operations between whose launches a lost graph was launched.
    """
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
    launch = launch_rows(trace.operations)
    ending, earlier = device.gap_operation[gaps], values_at(launch, device.gap_before[gaps], -1)
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


def profiler_overhead(capture: MeasuredCapture, device: GpuWork) -> Iterator[Note]:
    """The overhead of the profiler.

    Symptom: idle time inside PROFILER_OVERHEAD intervals.
    Cause: nsys flushes buffers or instruments calls. This time is not lost without the profiler.
    Remedy: none needed; the share shows how far to trust the capture.

    A note, because a run without the profiler does not lose this time.
    """
    cost, whole = device.use.gaps.causes["profiler"], device.use.window.length
    if cost >= MIN_SHARE * whole:
        yield Note(
            "profiler_overhead",
            f"The profiler itself keeps {device.id} idle for {duration(cost)}, {share(cost, whole)} of the time. "
            "Without the profiler this time is not lost. If the share is large, trace less "
            f"({capture_advice(capture.trace.info.profiler)['less']}) or fewer steps.",
            affects=("idle.profiler",),
        )
