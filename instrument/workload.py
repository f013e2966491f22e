"""What a run trains: the package's model on its data, or a model, data and a loss of the user's own."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from instrument.checkpoint.states import random_state_kept
from instrument.config.schema import Config
from instrument.config.training import Precision, Training
from instrument.data.datasets import Loader, Synthetic, build_loader
from instrument.data.order import Position
from instrument.models import build
from instrument.own.streams import StreamLoader
from instrument.trainer.hooks import Hooks
from instrument.trainer.learner import ComputeLoss, CountTerms, Learner, call_model
from instrument.trainer.optimizer import MakeOptimizer
from instrument.trees import map_tensors


class Workload:
    """The package's model on its data.

    Args:
        config: the configuration of the run.

    Attributes:
        config: the configuration; `data` has the batch size and workers of the loader in use.
        compute_loss: returns the scalar loss of a model and a batch on the same device.
        count: returns the number of terms in the mean of a batch's loss; None if these are its samples.
        make_optimizer: see `instrument.trainer.optimizer.build_optimizer`; None for AdamW.
        hooks: what the run calls.
    """

    def __init__(self, config: Config) -> None:
        self.config = replace(config, data=config.data.with_workers())
        self.compute_loss: ComputeLoss = call_model
        self.count: CountTerms | None = None
        self.make_optimizer: MakeOptimizer | None = None
        self.hooks = Hooks()

    def build_model(self, device: torch.device, precision: Precision) -> nn.Module:
        """Return a new model on `device`, with weights from torch's global generator.

        Raises:
            ConfigError: the model cannot be built, or the device does not support it.
        """
        return build(self.config.model, self.config.data, device, precision=precision)

    def with_config(self, config: Config) -> Workload:
        """Return the same workload with another configuration."""
        made = copy.copy(self)
        made.config = config
        return made

    def validation(self, config: Config) -> Workload:
        """Return the workload that a run with this workload validates on; `config` has the data for it."""
        return self.with_config(config)

    def learner(self, model: nn.Module, training: Training, steps: int, device: torch.device) -> Learner:
        """Return the model of a run with its loss and its optimizer."""
        return Learner(model, training, steps, device, self.compute_loss, self.count, self.make_optimizer)

    def build_loader(
        self,
        config: Config | None = None,
        *,
        rank: int = 0,
        world: int = 1,
        start: Position | None = None,
        endless: bool | None = None,
        pinned: bool = False,
    ) -> Loader | StreamLoader:
        """Return a loader of host batches; see `instrument.data.datasets.build_loader`.

        Args:
            config: the configuration of the run, or one with other settings of `data`.
            rank: this process, from 0.
            world: the number of processes.
            start: the first batch.
            endless: whether an iteration continues with the next epoch; None to do so if the run is limited by steps.
            pinned: whether batches are in pinned memory.
        """
        config = config or self.config
        endless = config.training.epochs is None if endless is None else endless
        pinned = pinned and torch.cuda.is_available()
        return self._loader(config, rank=rank, world=world, start=start, endless=endless, pinned=pinned)

    def _loader(
        self, config: Config, *, rank: int, world: int, start: Position | None, endless: bool, pinned: bool
    ) -> Loader | StreamLoader:
        return build_loader(config, rank=rank, world=world, start=start, endless=endless, pinned=pinned)

    def flops(self) -> tuple[int | None, str]:
        """Return the floating-point operations of one step, or None and the reason why they are not counted.

        The count is that of the model itself: it excludes the second forward pass of checkpointing and counts
        attention by its formula. The state of the random number generators does not change.
        """
        config, batch = self.config, self.config.data.batch
        model = replace(config.model, checkpointing=None, compile=None, float8=False, attention="auto")
        sample = Synthetic(model, config.data, 0)[0]
        single = {name: tensor[None] for name, tensor in sample.items()}
        each = count_flops(lambda: build(model, config.data, "meta"), single, self.compute_loss)
        return each * batch * config.training.accumulation, ""


def count_flops(make: Callable[[], nn.Module], batch: Any, compute_loss: ComputeLoss) -> int:
    """Count the floating-point operations of forward and backward of a batch, on the "meta" device.

    Args:
        make: returns the model. It is called with the device "meta", so that no time is lost on initial weights.
        batch: a nested batch of host tensors.
        compute_loss: as in `Workload`.
    """
    on_meta = map_tensors(batch, lambda tensor: torch.empty_like(tensor, device="meta"))
    with random_state_kept():
        with torch.device("meta"):
            model = make().to("meta")
        with FlopCounterMode(display=False) as counter:
            compute_loss(model, on_meta).backward()  # type: ignore[no-untyped-call]
    return int(counter.get_total_flops())
