"""The learning rate of each step, set without the host waiting for the GPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch

from instrument.config.schema import Training


class Schedule:
    """Sets the learning rate of every group before each step, after a linear warm-up.

    A rate that is a tensor, as a captured CUDA graph needs, is filled in place: a kernel, and no copy.

    Args:
        optimizer: all of its groups get a share of `training.learning_rate`.
        training: warm-up and shape.
        steps: length of the run, in optimizer steps.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, training: Training, steps: int) -> None:
        self._optimizer, self._training, self._steps = optimizer, training, steps
        self.base_lrs = [float(training.learning_rate) for _ in optimizer.param_groups]
        self.step_count = 0
        self._set()

    def step(self) -> None:
        """Go on to the next step's rate."""
        self.step_count += 1
        self._set()

    def go_back(self, steps: int) -> None:
        """Return to the rate of so many steps before, after steps that changed nothing."""
        self.step_count -= steps
        self._set()

    def share(self, step: int) -> float:
        """Return the share of the full rate at a step, counted from 0."""
        warmup, shape = self._training.warmup, self._training.schedule
        if step < warmup:
            return (step + 1) / warmup
        if shape == "constant":
            return 1.0
        done = min((step - warmup) / max(self._steps - warmup, 1), 1.0)
        return 1.0 - done if shape == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))

    def state_dict(self) -> Mapping[str, Any]:
        """Return what a checkpoint keeps."""
        return {"step_count": self.step_count, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state_dict: Any, /) -> None:
        """Go on where a checkpoint was."""
        self.step_count = int(state_dict["step_count"])
        self.base_lrs = [float(rate) for rate in state_dict["base_lrs"]]
        self._set()

    def _set(self) -> None:
        share = self.share(self.step_count)
        for group, base in zip(self._optimizer.param_groups, self.base_lrs, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(base * share)
            else:
                group["lr"] = base * share
