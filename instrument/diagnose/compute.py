"""The stages that load nothing: the model on batches that are on the device already."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from instrument.config.schema import Precision
from instrument.diagnose.running import Running, Setting
from instrument.errors import InstrumentError


class Inference:
    """The forward passes of a step, without their graph."""

    launches_only = True

    def __init__(self, setting: Setting) -> None:
        self._learner = setting.learner("fp32")
        self._learner.model.eval()
        self._batches = setting.on_device()

    def iterate(self) -> None:
        """Run the forward passes."""
        with torch.no_grad():
            for batch in self._batches:
                self._learner.forward(batch)

    def begin(self) -> None:
        """Nothing is measured here besides the time."""

    def figures(self) -> Mapping[str, float | None]:
        """Return nothing."""
        return {}

    def close(self) -> None:
        """Nothing runs beside it."""


class Train:
    """The whole step: forward, backward and optimizer, one launched behind the other."""

    launches_only = True

    def __init__(self, setting: Setting, precision: Precision) -> None:
        self._learner = setting.learner(precision)
        self._batches = setting.on_device()

    def iterate(self) -> None:
        """Run one step."""
        for batch in self._batches:
            self._learner.backward(self._learner.forward(batch), 1 / len(self._batches))
        self._learner.update()

    def begin(self) -> None:
        """Nothing is measured here besides the time."""

    def figures(self) -> Mapping[str, float | None]:
        """Return nothing."""
        return {}

    def close(self) -> None:
        """Nothing runs beside it."""


def training(setting: Setting) -> Running:
    """Return the step in fp32."""
    return Train(setting, "fp32")


def mixed(setting: Setting) -> Running:
    """Return the step in the run's precision; raises InstrumentError where that is fp32 and mixes nothing."""
    precision = setting.config.training.precision
    if precision == "fp32":
        raise InstrumentError("precision is fp32, so nothing is mixed: --precision bf16 would show it")
    return Train(setting, precision)
