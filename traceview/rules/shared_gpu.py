"""Another program uses the GPU while the captured one leaves it idle.

Symptom: GPU metrics show active SMs in samples that no captured work fills.
Cause: another process computes on the GPU, or work that the profiler does not trace.
Remedy: capture alone on the GPU; its kernels then also run as fast as they can.

A note, because the capture does not say which of its times are longer for that.
"""

from __future__ import annotations

from collections.abc import Iterator

from traceview.model.analysis import DeviceFigures
from traceview.model.sizes import MetricMeans
from traceview.model.trace import Note
from traceview.model.units import quantity, share
from traceview.pricing.base import GpuWork, MeasuredCapture, Rule

MIN_ACTIVE = 0.2  # share of the SMs' cycles in idle samples
MIN_SAMPLES = 20


def find(_capture: MeasuredCapture, device: GpuWork) -> Iterator[Note]:
    """Yield a note on a GPU whose SMs work while it should be idle."""
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


shared_gpu = Rule("shared_gpu", find)
