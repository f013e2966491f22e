"""What a run trains: the package's model on its data, or a model, data and a loss of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from instrument.checkpoint.states import random_state_kept
from instrument.config.schema import Config
from instrument.config.training import Precision
from instrument.data.datasets import Loader, Synthetic, build_loader
from instrument.data.order import Position
from instrument.models import build
from instrument.own.streams import StreamLoader
from instrument.trainer.learner import ComputeLoss, CountTerms, call_model
from instrument.trees import map_tensors


class Workload:
    """The package's model on its data.

    Args:
        config: the configuration of the run.

    Attributes:
        config: the configuration; `data` has the batch size and workers of the loader in use.
        compute_loss: returns the scalar loss of a model and a batch on the same device.
        count: returns the number of terms in the mean of a batch's loss; None if these are its samples.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.compute_loss: ComputeLoss = call_model
        self.count: CountTerms | None = None

    def build_model(self, device: torch.device, precision: Precision) -> nn.Module:
        """Return a new model on `device`, with weights from torch's global generator.

        Raises:
            ConfigError: the model cannot be built, or the device does not support it.
        """
        return build(self.config.model, self.config.data, device, precision=precision)

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
