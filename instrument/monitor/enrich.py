"""Values of a step besides its times: FLOPs and memory. They are read without waiting for the GPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from instrument.memory import resident_bytes
from instrument.monitor.metrics import StepFigures
from instrument.workload import Workload


class StepEnricher:
    """Adds FLOPs to the record of each step, and memory to that of each step at which a record is written.

    Args:
        workload: what the run trains; its configuration says how often records are written.
        device: device of the run.

    Attributes:
        flops: floating-point operations of one step; None if they are not known.
    """

    def __init__(self, workload: Workload, device: torch.device) -> None:
        self._device, self._every = device, workload.config.monitor.every
        self.flops = workload.flops()

    def __call__(self, step: StepFigures) -> StepFigures:
        """Return the record of a step with the additional values."""
        memory = memory_figures(self._device) if (step.step + 1) % self._every == 0 else {}
        return replace(step, flops=self.flops, **memory)


def memory_figures(device: torch.device) -> dict[str, Any]:
    """Return the memory in use on the host and, for a GPU, there and in torch's pool of pinned memory.

    The keys are attributes of `StepFigures`.
    """
    values = {"host_rss_bytes": resident_bytes()}
    if device.type != "cuda":
        return values
    values |= {
        "memory_allocated_bytes": torch.cuda.memory_allocated(device),
        "memory_peak_bytes": torch.cuda.max_memory_allocated(device),
        "memory_reserved_bytes": torch.cuda.memory_reserved(device),
    }
    if hasattr(torch.cuda, "host_memory_stats"):  # since torch 2.8
        values["pinned_bytes"] = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    return values
