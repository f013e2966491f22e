"""What is known of a step besides its times: FLOPs, memory, power; read beside the training, never waited for."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from instrument.config.schema import Config
from instrument.monitor.metrics import StepFigures
from instrument.monitor.nvml import BackgroundMeter, device_uuid, open_meter


@dataclass(slots=True)
class Known:
    """Adds to each step's record what is not timed.

    Attributes:
        device: the run's.
        every: steps between readings of memory, as between records.
        power_every: steps between readings of power and utilisation; 0 for never.
        meter: reads power and utilisation on a thread of its own.
        flops: operations of one step.
    """

    device: torch.device
    every: int
    power_every: int
    meter: BackgroundMeter
    flops: int | None = None

    @classmethod
    def of(cls, config: Config, device: torch.device) -> Known:
        """Open what reads power; absent where NVML is."""
        index = device.index if device.type == "cuda" else None
        meter = BackgroundMeter(open_meter(device_uuid(index)))
        return cls(device, config.monitor.every, config.monitor.power_every, meter)

    def __call__(self, step: StepFigures) -> StepFigures:
        """Return a step's record with what is known of it."""
        step = replace(step, flops=self.flops)
        if self.power_every and step.step % self.power_every == 0:
            reading = self.meter.latest()
            self.meter.ask()
            missing = {**step.not_measured, **reading.not_measured}
            step = replace(
                step,
                power_w=reading.power_w,
                utilisation_percent=reading.utilisation_percent,
                not_measured=missing,
            )
        if self.device.type == "cuda" and (step.step + 1) % self.every == 0:
            step = replace(
                step,
                memory_allocated_bytes=torch.cuda.memory_allocated(self.device),
                memory_peak_bytes=torch.cuda.max_memory_allocated(self.device),
            )
        return step

    def __enter__(self) -> Known:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.meter.close()
