"""The learner: model, optimizer, learning-rate schedule and precision, with the three phases of a step."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from instrument.config.sections import Training
from instrument.errors import ConfigError
from instrument.ranges import BACKWARD, FORWARD, OPTIMIZER, phase
from instrument.trainer.optimizer import MakeOptimizer, build_optimizer

Batch = Any  # a nested batch of tensors; a mapping for the package's own models
ComputeLoss = Callable[[nn.Module, Batch], Tensor]
CountTerms = Callable[[Batch], float | Tensor]
Weight = float | Tensor  # the factor of a micro-batch's loss
# Created once: reusing an annotation costs a seventh of creating one.
_FORWARD, _BACKWARD, _OPTIMIZER = phase(FORWARD), phase(BACKWARD), phase(OPTIMIZER)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Learner:
    """Forward, backward and update, each in an NVTX range; none of them makes the host wait.

    Args:
        model: the model; may be wrapped in DDP or FSDP.
        training: precision, clipping and learning rate.
        steps: length of the run in optimizer steps.
        device: device of the model.
        compute_loss: returns the loss of a model and a batch; None for a model that returns its loss.
        count: returns the number of terms in the mean of a batch's loss, such as its labels; None for its samples.
        make_optimizer: see `build_optimizer`; None for AdamW.
    """

    def __init__(
        self,
        model: nn.Module,
        training: Training,
        steps: int,
        device: torch.device,
        compute_loss: ComputeLoss | None = None,
        count: CountTerms | None = None,
        make_optimizer: MakeOptimizer | None = None,
    ) -> None:
        self.model, self.training, self.device = model, training, device
        self.compute_loss, self.count = compute_loss or call_model, count
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise ConfigError("the model has no parameters to train")
        self.optimizer, self.schedule = build_optimizer(model, training, steps, device, make_optimizer)
        self.scaler: Any = torch.amp.GradScaler(device.type, enabled=training.precision == "fp16")
        # Whether updates with a non-finite loss or gradient are skipped. In fp16 the scaler skips them.
        self._skips_non_finite = training.on_nan != "continue"
        self._norm: Tensor | None = None
        self._buffers = KeptBuffers(model)
        self._unit = torch.ones((), device=device)
        if self.scaler.is_enabled():
            self.scaler.scale(self._unit)  # creates the loss scale on this stream, before other streams read it

    def forward(self, batch: Batch, model: nn.Module | None = None) -> Tensor:
        """Return the mean loss of a batch with its autograd graph; `model` is a module with the same weights."""
        if self._skips_non_finite and torch.is_grad_enabled():
            self._buffers.keep()
        with _FORWARD, self._autocast():
            return self.compute_loss(self.model if model is None else model, batch)

    def backward(self, loss: Tensor, weight: Weight = 1.0) -> None:
        """Accumulate the gradients of a weighted loss."""
        with _BACKWARD:
            scaled = self.scale_loss(loss, weight)
            scaled.backward(self._initial_gradient(scaled))  # type: ignore[no-untyped-call]

    def gradients(self, loss: Tensor, weight: Weight = 1.0, parameters: Sequence[Tensor] | None = None) -> list[Tensor]:
        """Return the gradients of a weighted loss without accumulating them.

        Args:
            loss: the result of `forward`.
            weight: factor of the loss.
            parameters: the parameters to differentiate by; None means the model's.
        """
        with _BACKWARD:
            scaled = self.scale_loss(loss, weight)
            inputs = self.parameters if parameters is None else parameters
            return list(torch.autograd.grad(scaled, inputs, self._initial_gradient(scaled), materialize_grads=True))

    def scale_loss(self, loss: Tensor, weight: Weight) -> Tensor:
        """Return the loss multiplied by its weight and, in fp16, by the gradient scale."""
        weighted = loss if isinstance(weight, float) and weight == 1.0 else loss * weight
        scaled: Tensor = self.scaler.scale(weighted)
        return scaled

    def update(self, gradients: Sequence[Tensor] | None = None) -> None:
        """Take one optimizer step with the accumulated gradients, or with `gradients`, and clear them."""
        with _OPTIMIZER:
            if gradients is not None:
                for parameter, gradient in zip(self.parameters, gradients, strict=True):
                    parameter.grad = gradient
            self.descend()
            self.schedule.step()

    def descend(self) -> None:
        """Clip the gradients and step the optimizer: the part of `update` that a CUDA graph can hold.

        Unless training.on_nan is "continue", a step with non-finite gradients changes neither the weights nor the
        buffers nor the state of the optimizer. The device decides this, so the host does not wait.
        """
        if self._skips_non_finite and not self.scaler.is_enabled():
            self._step_if_finite()
        else:
            if self.training.clip is not None:
                self.scaler.unscale_(self.optimizer)
                nn.utils.clip_grad_norm_(self.parameters, self.training.clip)
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self._buffers.end_step()
        self.optimizer.zero_grad(set_to_none=True)

    def loss_or_nan(self, loss: Tensor) -> Tensor:
        """Return the loss of the last step, or NaN if its gradients were not finite."""
        return loss if self._norm is None else torch.add(loss, self._norm, alpha=0)

    @property
    def metrics(self) -> Mapping[str, Tensor]:
        """The figures that the loss function returned besides the loss in its last call."""
        metrics: Mapping[str, Tensor] = getattr(self.compute_loss, "metrics", {})
        return metrics

    @metrics.setter
    def metrics(self, metrics: Mapping[str, Tensor]) -> None:
        if hasattr(self.compute_loss, "metrics"):
            self.compute_loss.metrics = metrics

    def clear(self) -> None:
        """Clear all gradients."""
        self.optimizer.zero_grad(set_to_none=True)

    def _initial_gradient(self, loss: Tensor) -> Tensor | None:
        """Return the gradient that backward starts with: 1, or NaN if the loss is not finite.

        A non-finite loss then always has non-finite gradients, so all ranks that reduce them skip the same step.
        """
        return torch.add(self._unit, loss.detach(), alpha=0).to(loss.dtype) if self._skips_non_finite else None

    def _step_if_finite(self) -> None:
        norm = nn.utils.clip_grad_norm_(self.parameters, self.training.clip or math.inf)
        self._norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # sharded: reduce over all ranks
        self._buffers.end_step(self._norm)
        optimizer: Any = self.optimizer
        if self.device.type == "cuda" and getattr(optimizer, "_step_supports_amp_scaling", False):
            # A fused optimizer skips the step if found_inf is 1, as with torch's GradScaler.
            optimizer.found_inf = torch.ne(self._norm * 0, 0).float()
            try:
                optimizer.step()
            finally:
                del optimizer.found_inf
        elif torch.isfinite(self._norm):  # another optimizer on a GPU: the host waits
            optimizer.step()

    def _autocast(self) -> AbstractContextManager[Any]:
        dtype = DTYPES.get(self.training.precision)
        return nullcontext() if dtype is None else torch.autocast(self.device.type, dtype=dtype)


def call_model(model: nn.Module, batch: Batch) -> Tensor:
    """Return the loss of a model that takes a batch and returns its loss, as the package's models do."""
    loss: Tensor = model(batch)
    return loss


class KeptBuffers:
    """Copies of the buffers that training changes, from before a step. Nothing waits for the GPU.

        kept.keep()
        loss = model(batch)  # changes running_mean
        kept.end_step(norm_of_gradients)

    Only buffers of the model's state are copied, and after the first step only those that have changed. A buffer that
    changes for the first time later is kept from the step after.

    Args:
        model: the model; its buffers may be replaced by others, but not added.
    """

    def __init__(self, model: nn.Module) -> None:
        self._places = [
            (module._buffers, name)
            for module in model.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None and name not in module._non_persistent_buffers_set
        ]
        self._first: list[tuple[Tensor, int]] | None = None
        self._before: list[tuple[list[Tensor], Tensor]] = []

    def keep(self) -> None:
        """Copy the buffers, unless it is done for this step."""
        if self._before or not self._places:
            return
        now = [buffers[name] for buffers, name in self._places]
        if self._first is None:
            self._first = [(buffer, buffer._version) for buffer in now if buffer is not None]
        else:
            pairs = zip(now, self._first, strict=True)
            now = [buffer for buffer, (first, version) in pairs if buffer is not first or buffer._version != version]
        groups: dict[torch.dtype, list[Tensor]] = defaultdict(list)
        for buffer in now:
            if buffer is not None:
                groups[buffer.dtype].append(buffer)
        self._before = [(group, _flat(group)) for group in groups.values()]

    def end_step(self, norm: Tensor | None = None) -> None:
        """Put the buffers back if `norm` is not finite, or if a number in them was finite and is not any more."""
        if not self._before:
            return
        flat = [(group, before, _flat(group)) for group, before in self._before]
        bad = [(torch.isfinite(before) & ~torch.isfinite(now)).any() for _group, before, now in flat]
        bad += [] if norm is None else [~torch.isfinite(norm)]
        any_bad = torch.stack(bad).any()
        with torch.no_grad():
            for group, before, now in flat:
                right = torch.split(torch.where(any_bad, before, now), [buffer.numel() for buffer in group])
                torch._foreach_copy_(group, [part.view_as(buffer) for part, buffer in zip(right, group, strict=True)])
        self._before = []


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
