"""What learns: a model, its optimizer, its schedule and its precision, in the three parts of a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from instrument.config.schema import Training
from instrument.ranges import BACKWARD, FORWARD, OPTIMIZER, phase
from instrument.trainer.schedule import Schedule

Batch = Mapping[str, Tensor]
# Made once: an annotation that is used again costs a seventh of a new one.
_FORWARD, _BACKWARD, _OPTIMIZER = phase(FORWARD), phase(BACKWARD), phase(OPTIMIZER)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Learner:
    """Forward, backward and update, each a named phase; none of them makes the host wait.

    Args:
        model: called with a batch, returns its scalar loss; DDP or FSDP may be around it.
        training: precision, clipping, rates.
        steps: length of the run, in optimizer steps.
        device: where the model is.
    """

    def __init__(self, model: nn.Module, training: Training, steps: int, device: torch.device) -> None:
        self.model, self.training, self.device = model, training, device
        self.parameters = [one for one in model.parameters() if one.requires_grad]
        self.optimizer = _optimizer(self.parameters, training, device)
        self.schedule = Schedule(self.optimizer, training, steps)
        self.scaler: Any = torch.amp.GradScaler(device.type, enabled=training.precision == "fp16")
        # Whether an update with a loss or gradient that is not finite is left out. The scaler does it for fp16.
        self._guards = training.on_nan != "continue"
        self._norm: Tensor | None = None
        self._unit = torch.ones((), device=device)

    def forward(self, batch: Batch, model: nn.Module | None = None) -> Tensor:
        """Return the mean loss of a batch, a scalar with its graph; `model` is another module with the same weights."""
        with _FORWARD, self._autocast():
            loss: Tensor = (self.model if model is None else model)(batch)
            return loss

    def backward(self, loss: Tensor, weight: float = 1.0) -> None:
        """Add the gradients of a loss times a weight."""
        with _BACKWARD:
            scaled = self.scaled(loss, weight)
            scaled.backward(self._seed(scaled))  # type: ignore[no-untyped-call]

    def gradients(self, loss: Tensor, weight: float = 1.0, parameters: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the gradients of a loss times a weight by each parameter, the model's own unless others are given.

        They are added to nothing.
        """
        with _BACKWARD:
            scaled = self.scaled(loss, weight)
            by = self.parameters if parameters is None else parameters
            return list(torch.autograd.grad(scaled, by, self._seed(scaled), materialize_grads=True))

    def scaled(self, loss: Tensor, weight: float) -> Tensor:
        """Return a loss as backward takes it: weighted, and in fp16 scaled."""
        weighted = loss if weight == 1.0 else loss * weight
        scaled: Tensor = self.scaler.scale(weighted)
        return scaled

    def update(self, gradients: Sequence[Tensor] | None = None) -> None:
        """Take one optimizer step with the gradients that were added up, or with those given; clear them."""
        with _OPTIMIZER:
            if gradients is not None:
                for parameter, gradient in zip(self.parameters, gradients, strict=True):
                    parameter.grad = gradient
            self.descend()
            self.schedule.step()

    def descend(self) -> None:
        """Clip and step; what a CUDA graph may hold of `update`.

        Unless training.on_nan is "continue", a step whose gradients are not finite changes no weight and no state
        of the optimizer. The device decides this: the host does not wait.
        """
        if self._guards and not self.scaler.is_enabled():
            self._step_if_finite()
        else:
            if self.training.clip is not None:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.parameters, self.training.clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def judged(self, loss: Tensor) -> Tensor:
        """Return the loss of the last step, NaN where the step's gradients were not finite."""
        return loss if self._norm is None else torch.add(loss, self._norm, alpha=0)

    def clear(self) -> None:
        """Drop all gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def _seed(self, loss: Tensor) -> Tensor | None:
        """Return the gradient that backward starts with: 1, or NaN where the loss is not finite.

        So the gradients of a loss that is not finite never are, and ranks that add them up skip the same steps.
        """
        return torch.add(self._unit, loss.detach(), alpha=0).to(loss.dtype) if self._guards else None

    def _step_if_finite(self) -> None:
        norm = nn.utils.clip_grad_norm_(self.parameters, self.training.clip or math.inf)
        self._norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # sharded: of all ranks
        if self.device.type == "cuda":
            # How torch's GradScaler has a fused optimizer leave a step out: 1 means not finite.
            optimizer: Any = self.optimizer
            optimizer.found_inf = torch.ne(self._norm * 0, 0).float()
            try:
                optimizer.step()
            finally:
                del optimizer.found_inf
        elif torch.isfinite(self._norm):
            self.optimizer.step()

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = DTYPES.get(self.training.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)


def _optimizer(parameters: list[nn.Parameter], training: Training, device: torch.device) -> torch.optim.Optimizer:
    """Return AdamW; on a GPU one kernel, with its step count and rate there, so that no strategy differs."""
    on_gpu = device.type == "cuda"
    rate = torch.tensor(training.learning_rate, device=device) if on_gpu else training.learning_rate
    return torch.optim.AdamW(
        parameters,
        lr=rate,
        weight_decay=training.weight_decay,
        fused=on_gpu,
        capturable=on_gpu,
    )
