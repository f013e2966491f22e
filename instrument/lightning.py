"""Ranges and figures for Lightning: `Trainer(callbacks=[RangeCallback()])`."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch.callbacks import Callback
except ModuleNotFoundError as missing:
    if str(missing.name).partition(".")[0] != "lightning":
        raise
    needed = "instrument.lightning needs lightning: pip install lightning"
    raise ModuleNotFoundError(needed, name="lightning") from missing

from instrument.ranges import BACKWARD, DATA_LOAD, FORWARD, OPTIMIZER, VALIDATE
from instrument.step_ranges import StepRanges


class RangeCallback(Callback):  # type: ignore[misc, unused-ignore]
    """A callback that names the phases of training and logs `perf/step_ms`.

    The range `iteration N` lasts from the first batch of an optimizer step to the first batch of the next one. It
    contains `forward`, `backward`, `optimizer` and `data_load`, and at times `validate`. Needs automatic optimization,
    which is Lightning's default.

    Args:
        log_every: steps between entries of `perf/step_ms`, the median host time of a step since the last entry.
    """

    def __init__(self, log_every: int = 50) -> None:
        self._steps, self._log_every = StepRanges(), log_every

    def on_train_batch_start(self, trainer: Any, _module: Any, _batch: Any, _index: int) -> None:
        """Start an iteration at the first batch of an optimizer step, and the forward."""
        self._steps.begin(trainer.global_step)
        self._steps.enter(FORWARD)

    def on_before_backward(self, *_args: Any) -> None:
        """End the forward and open the backward."""
        self._steps.enter(BACKWARD)

    def on_after_backward(self, *_args: Any) -> None:
        """Close the backward."""
        self._steps.leave()

    def on_before_optimizer_step(self, *_args: Any) -> None:
        """Open the optimizer."""
        self._steps.enter(OPTIMIZER)

    def on_train_batch_end(self, trainer: Any, module: Any, *_args: Any) -> None:
        """Log the figures, and open the wait for the next batch."""
        self._steps.leave()
        if trainer.global_step % self._log_every == 0:
            for name, value in self._steps.figures().items():
                module.log(name, value)
        self._steps.enter(DATA_LOAD)

    def on_validation_start(self, *_args: Any) -> None:
        """Open the validation."""
        self._steps.enter(VALIDATE)

    def on_validation_end(self, *_args: Any) -> None:
        """Close the validation."""
        self._steps.leave()

    def on_train_end(self, *_args: Any) -> None:
        """Close all ranges."""
        self._steps.close()

    on_exception = on_train_end
