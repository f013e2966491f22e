"""Values of a step besides its times: FLOPs, GPU memory, power. They are read without waiting for the GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from instrument.memory import resident_bytes
from instrument.monitor.metrics import NO_GPU, StepFigures
from instrument.monitor.nvml import NAMES as POWER
from instrument.monitor.nvml import Meter, device_uuid
from instrument.workload import Workload

GPU_MEMORY = ("memory_allocated_bytes", "memory_peak_bytes", "memory_reserved_bytes", "pinned_bytes")


class StepEnricher:
    """Adds values other than times to the record of each step, read without waiting.

    Args:
        workload: what the run trains; its configuration says how often memory and power are read.
        device: device of the run.

    Attributes:
        flops: floating-point operations of one step; None if they are not known.
    """

    def __init__(self, workload: Workload, device: torch.device) -> None:
        monitor = workload.config.monitor
        self._device, self._every, self._power_every = device, monitor.every, monitor.power_every
        self.flops, reason = workload.flops()
        power = f"read every {monitor.power_every} steps" if monitor.power_every else "power_every is 0"
        memory = f"read every {monitor.every} steps"
        self._missing = dict.fromkeys((*GPU_MEMORY, "host_rss_bytes"), memory) | dict.fromkeys(POWER, power)
        if device.type != "cuda":
            self._missing |= dict.fromkeys((*GPU_MEMORY, *POWER), NO_GPU)
        if self.flops is None:
            self._missing["flops"] = reason
        self._meter = Meter(device_uuid(device.index if device.type == "cuda" else None))

    def __call__(self, step: StepFigures) -> StepFigures:
        """Return the record of a step with the additional values."""
        values: dict[str, Any] = {"flops": self.flops}
        if self._power_every and step.step % self._power_every == 0:
            reading = self._meter.latest()
            self._meter.start_reading()
            values |= {"power_w": reading.power_w, "utilisation_percent": reading.utilisation_percent}
            self._missing |= reading.not_measured
        if (step.step + 1) % self._every == 0:
            memory, missing = memory_figures(self._device)
            values |= memory
            self._missing |= missing
        return replace(step, **values, not_measured={**self._missing, **step.not_measured})

    def __enter__(self) -> StepEnricher:
        return self

    def __exit__(self, *_error: object) -> None:
        self._meter.close()


def memory_figures(device: torch.device) -> tuple[dict[str, int], dict[str, str]]:
    """Return the memory in use on the host and, for a GPU, there and in torch's pool of pinned memory.

    Returns:
        Values by attribute of `StepFigures`, and the reasons for those that are not measured.
    """
    values, missing = {}, {}
    resident = resident_bytes()
    if resident is None:
        missing["host_rss_bytes"] = "the system has no /proc/self/statm"
    else:
        values["host_rss_bytes"] = resident
    if device.type != "cuda":
        return values, missing | dict.fromkeys(GPU_MEMORY, NO_GPU)
    values |= {
        "memory_allocated_bytes": torch.cuda.memory_allocated(device),
        "memory_peak_bytes": torch.cuda.max_memory_allocated(device),
        "memory_reserved_bytes": torch.cuda.memory_reserved(device),
    }
    if hasattr(torch.cuda, "host_memory_stats"):
        values["pinned_bytes"] = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    else:
        missing["pinned_bytes"] = "this version of torch does not report its pinned memory"
    return values, missing
