"""Ranges and figures for a loop written with Hugging Face accelerate, which has no callbacks.

model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
with AccelerateRanges(accelerator, model, optimizer) as ranges:
    for batch in loader:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        accelerator.log(ranges.figures())
"""

from __future__ import annotations

from typing import Any

from torch import nn

from instrument.modules import ModuleAnnotation
from instrument.ranges import BACKWARD, FORWARD, OPTIMIZER, phase
from instrument.step_ranges import StepRanges


class AccelerateRanges:
    """Names the iterations, forward, backward, gradient clipping and optimizer steps of a loop, while it is entered.

    The range `iteration N` lasts from the end of one optimizer step to the end of the next, so it contains the
    loader's wait, and with gradient accumulation all micro-batches.

    Args:
        accelerator: the Accelerator.
        model: the prepared model.
        optimizer: the prepared optimizer.
        first: number of the first step, for example after a resume.
    """

    def __init__(self, accelerator: Any, model: nn.Module, optimizer: Any, *, first: int = 0) -> None:
        self._accelerator, self._model = accelerator, model
        self._optimizer = getattr(optimizer, "optimizer", optimizer)  # torch's, inside that of accelerate
        self._step, self._steps = first, StepRanges()
        self._annotation = ModuleAnnotation()
        self._handles: list[Any] = []

    def figures(self) -> dict[str, float]:
        """Return `perf/step_ms`, the median host time of the steps since the last call; empty if none has ended."""
        return self._steps.figures()

    def __enter__(self) -> AccelerateRanges:
        self._annotation.add(self._model, FORWARD, backward=False)
        self._handles = [
            self._optimizer.register_step_pre_hook(lambda *_: self._steps.enter(OPTIMIZER)),
            self._optimizer.register_step_post_hook(lambda *_: self._end_step()),
        ]
        for name, method in ((BACKWARD, "backward"), (OPTIMIZER, "clip_grad_norm_")):
            setattr(self._accelerator, method, phase(name)(getattr(self._accelerator, method)))
        self._steps.begin(self._step)
        return self

    def __exit__(self, *_raised: object) -> None:
        for method in ("backward", "clip_grad_norm_"):
            delattr(self._accelerator, method)  # the attribute hid the method of the class
        self._annotation.remove()
        for handle in self._handles:
            handle.remove()
        self._steps.close()

    def _end_step(self) -> None:
        self._step += 1
        self._steps.begin(self._step)
