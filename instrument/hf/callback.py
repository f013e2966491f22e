"""Ranges and figures for a Trainer whose class cannot be changed."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from instrument.hf.batches import Throughput, batch_size
from instrument.modules import ModuleAnnotation
from instrument.ranges import BACKWARD, FORWARD, OPTIMIZER
from instrument.step_ranges import StepRanges


class RangeCallback(TrainerCallback):  # type: ignore[misc, unused-ignore]
    """A callback that names the phases of training and adds figures to the log.

        Trainer(model, args, train_dataset=data, callbacks=[RangeCallback()]).train()

    The range `iteration N` lasts from one optimizer step's first forward to the next one's. It contains `forward`,
    `backward` (on autograd's thread) and `optimizer`; the Trainer reports no event around its loader, so loading is
    the rest. Log entries with a loss also get `perf/step_ms`, `perf/tokens_per_s` and `perf/samples_per_s` of this
    process since the previous entry. `AsyncTrainerMixin` adds `data_load`, and copies batches ahead.
    """

    def __init__(self) -> None:
        self._steps, self._throughput = StepRanges(), Throughput()
        self._annotation = ModuleAnnotation()
        self._handles: list[Any] = []

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, model: Any = None, **_kwargs: Any) -> None:
        """Add the ranges of forward and backward to the model."""
        self._remove()
        self._steps, self._throughput, self._annotation = StepRanges(), Throughput(), ModuleAnnotation()
        if model is None:
            return
        main_input = getattr(model, "main_input_name", "input_ids")

        def count(module: Any, _args: Any, inputs: dict[str, Any]) -> None:
            if module.training:
                self._throughput.add(batch_size(inputs, main_input))

        self._handles = [model.register_forward_pre_hook(count, with_kwargs=True)]
        self._annotation.add(model, FORWARD, backward=BACKWARD)

    def on_step_begin(self, _args: Any, state: Any, _control: Any, **_kwargs: Any) -> None:
        """Start an iteration."""
        self._throughput.start()
        self._steps.begin(state.global_step)

    def on_pre_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        """Open the range of the optimizer."""
        self._steps.enter(OPTIMIZER)

    def on_optimizer_step(self, *_args: Any, **_kwargs: Any) -> None:
        """Close the range of the optimizer."""
        self._steps.leave()

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any = None, **_kwargs: Any) -> None:
        """Add the figures to an entry with a loss."""
        if logs is None or "loss" not in logs:
            return
        figures = self._steps.figures() | self._throughput.take()
        logs.update(figures)
        if state.log_history:  # the Trainer has appended the entry already
            state.log_history[-1].update(figures)

    def on_epoch_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Close the last iteration of an epoch."""
        self._steps.close()

    def on_train_end(self, *_args: Any, **_kwargs: Any) -> None:
        """Close all ranges and remove the hooks."""
        self._remove()

    def _remove(self) -> None:
        self._steps.close()
        self._throughput.stop()
        self._annotation.remove()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
