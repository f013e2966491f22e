"""Values of a step besides its times: FLOPs, GPU memory, power. They are read without waiting for the GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from instrument.config.schema import Config
from instrument.data.datasets import Synthetic
from instrument.models import build
from instrument.monitor.metrics import StepFigures
from instrument.monitor.nvml import BackgroundMeter, device_uuid, open_meter


@dataclass(slots=True)
class StepEnricher:
    """Adds values other than times to the record of each step.

    Attributes:
        device: device of the run.
        every: steps between readings of memory; equal to the steps between records.
        power_every: steps between readings of power and utilisation; 0 for never.
        meter: reads power and utilisation on its own thread.
        flops: floating-point operations of one step.
    """

    device: torch.device
    every: int
    power_every: int
    meter: BackgroundMeter
    flops: int | None = None

    @classmethod
    def from_config(cls, config: Config, device: torch.device) -> StepEnricher:
        """Count the operations of a step and open the power meter, which measures nothing without NVML."""
        index = device.index if device.type == "cuda" else None
        flops = flops_per_sample(config) * config.data.batch * config.training.accumulation
        meter = BackgroundMeter(open_meter(device_uuid(index)))
        return cls(device, config.monitor.every, config.monitor.power_every, meter, flops)

    def __call__(self, step: StepFigures) -> StepFigures:
        """Return the record of a step with the additional values."""
        step = replace(step, flops=self.flops)
        if self.power_every and step.step % self.power_every == 0:
            reading = self.meter.latest()
            self.meter.start_reading()
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

    def __enter__(self) -> StepEnricher:
        return self

    def __exit__(self, *_error: object) -> None:
        self.meter.close()


def flops_per_sample(config: Config) -> int:
    """Count the floating-point operations of forward and backward for one sample, on the "meta" device.

    The count is that of the model itself: it excludes the second forward pass of checkpointing and counts attention by
    its formula. The state of the random number generators does not change.
    """
    model = replace(config.model, checkpointing=None, compile=None, float8=False, attention="auto")
    with torch.random.fork_rng(devices=[]), torch.device("meta"):  # on meta, weights are not initialised, which is slow
        built = build(model, config.data, "meta")
    sample = Synthetic(model, config.data, 0)[0]
    batch = {name: torch.empty((1, *value.shape), dtype=value.dtype, device="meta") for name, value in sample.items()}
    with FlopCounterMode(display=False) as counter:
        built(batch).backward()
    return int(counter.get_total_flops())
