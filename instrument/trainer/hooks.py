"""Methods of the user's own that a run calls."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Hooks:
    """What a run calls on every rank. Override the methods that you need; none of these does anything.

        class Average(Hooks):
            def start(self, model, optimizer):
                self.average = torch.optim.swa_utils.AveragedModel(model)
                self.model = model

            def after_step(self, step, loss):
                self.average.update_parameters(self.model)

    Use them as `--hooks my.py:Average`, or `train(config, hooks=Average())`.
    """

    def start(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Get the model, in its DDP or FSDP2 wrapper, and the optimizer, after a resume and before the first step."""

    def before_step(self, step: int) -> None:
        """Run before the batches of a step are read."""

    def after_step(self, step: int, loss: Tensor) -> None:
        """Run after the optimizer. `loss` is on the device, so the host waits for the GPU if you read it."""

    def after_validation(self, step: int, figures: Mapping[str, float | None]) -> None:
        """Run after a validation with its figures, such as "validation/loss"; `step` is the number of steps done."""

    def end(self, done: int) -> None:
        """Run after `done` steps, also if the run was stopped or failed."""
