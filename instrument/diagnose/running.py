"""What a stage is while it runs, and what all stages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from instrument.config import Config, Precision
from instrument.data import Loader, build_loader
from instrument.diagnose.costs import COPIES_AHEAD
from instrument.errors import ConfigError
from instrument.learner import Batch, Learner
from instrument.models import build
from instrument.trees import map_tensors


class Running(Protocol):
    """One stage, built and ready."""

    @property
    def launches_only(self) -> bool:
        """Whether an iteration is launches alone, so that it can be launched ahead of the GPU."""

    def iterate(self) -> None:
        """Run one iteration: what one optimizer step takes, of this stage."""

    def begin(self) -> None:
        """Forget what was measured so far: the warm-up is over."""

    def figures(self) -> Mapping[str, float | None]:
        """Return what was measured since besides the time: attributes of `Row`."""

    def close(self) -> None:
        """Let go of everything, also after an iteration that failed."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What all stages are made from.

    Attributes:
        config: the run's, with the device that was found.
        device: that device.
        resident: host batches of one step, for the stages that load none.
        steps: iterations that a stage may run, for the learning-rate schedule.
    """

    config: Config
    device: torch.device
    resident: Sequence[Batch]
    steps: int

    @classmethod
    def of(cls, config: Config, steps: int) -> Setting:
        """Find the device and load one step's batches.

        Raises:
            ConfigError: there is no such device or no such data, or the model cannot run there.
        """
        device = _device(config.training.device)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        config = replace(config, training=replace(config.training, device=str(device)))
        if device.type == "cpu" and config.training.precision == "fp16":
            raise ConfigError("precision fp16 needs a GPU: on the CPU use precision bf16 or fp32")
        plain = replace(config.data, workers=0, prefetch_factor=None, persistent_workers=False, preload=False)
        batches = iter(build_loader(replace(config, data=plain), endless=True))
        resident = [next(batches) for _ in range(config.training.accumulation)]
        return cls(config, device, resident, steps)

    def learner(self, precision: Precision) -> Learner:
        """Return a new model and its optimizer.

        Raises:
            ConfigError: the model has no kernels for this precision.
        """
        training = replace(self.config.training, precision=precision)
        torch.manual_seed(training.seed)
        model = build(self.config.model, self.config.data, self.device, precision=precision)
        return Learner(model, training, self.steps, self.device)

    def on_device(self) -> list[Batch]:
        """Return the resident batches on the device."""
        return [map_tensors(batch, lambda tensor: tensor.to(self.device)) for batch in self.resident]

    def loader(self, config: Config) -> Loader:
        """Return the loader as a run of `config` has it."""
        strategy = config.training.strategy
        kept = strategy in COPIES_AHEAD and config.data.preload
        pinned = self.device.type == "cuda" and (strategy == "pinned" or kept)
        return build_loader(config, endless=True, pinned=pinned)


def _device(setting: str) -> torch.device:
    wanted, _, number = setting.partition(":")
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not gpus):
        return torch.device("cpu")
    if not gpus:
        raise ConfigError(f"device {setting}: torch sees no GPU here: use --device cpu, or a torch built for CUDA")
    if int(number or 0) >= gpus:
        raise ConfigError(f"device {setting}: there are {gpus} GPUs here, counted from 0: use one of these")
    return torch.device("cuda", int(number or 0))
