"""The stages that load: the loader alone, the naive way from there to the weights, and the run's own way."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from statistics import fmean
from typing import Any

from instrument.config.schema import Config
from instrument.diagnose.running import Running, Setting
from instrument.monitor.meter import StepMeter
from instrument.monitor.metrics import StepFigures
from instrument.strategies import strategy_class
from instrument.sync import SyncPolicy


class Load:
    """Takes the host batches of a step, and does nothing with them."""

    launches_only = False

    def __init__(self, setting: Setting) -> None:
        self._batches: Iterator[Any] = iter(setting.loader(setting.config))
        self._count = setting.config.training.accumulation

    def iterate(self) -> None:
        """Take the batches of one step."""
        for _ in range(self._count):
            next(self._batches)

    def begin(self) -> None:
        """Nothing is measured here besides the time."""

    def figures(self) -> Mapping[str, float | None]:
        """Return nothing."""
        return {}

    def close(self) -> None:
        """End the workers that load ahead."""
        self._batches = iter(())


class Fed:
    """Trains on what the loader gives, by a strategy and a sync policy, as the trainer's loop does.

    Args:
        setting: what all stages share.
        config: the run's, or one that differs in strategy and sync policy.
    """

    launches_only = False

    def __init__(self, setting: Setting, config: Config) -> None:
        self._meter = StepMeter(setting.device)
        learner = setting.learner(config.training.precision)
        self._strategy = strategy_class(config.training.strategy)(config, learner, self._meter)
        self._batches = self._strategy.batches(setting.loader(config))
        self._policy = SyncPolicy.from_text(config.training.sync, self._strategy.sync_interval)
        self._late = self._policy.losses(setting.device)
        self._count = config.training.accumulation
        self._step = self._first = 0
        self._measured: list[StepFigures] = []

    def iterate(self) -> None:
        """Run one step, and wait where the policy says so."""
        self._meter.begin(self._step)
        batches = [next(self._batches) for _ in range(self._count)]
        self._late.put(self._step, self._strategy.step(batches))
        self._policy.after(self._step, self._late)
        self._step += 1
        self._measured += self._meter.finished()

    def begin(self) -> None:
        """Measure from the next step on."""
        self._first = self._step
        self._measured.clear()

    def figures(self) -> Mapping[str, float | None]:
        """Return what loading and copying took, the mean of the steps whose work is done."""
        steps = [step for step in self._measured if step.step >= self._first]
        loaded = [step.data_load_ms for step in steps if step.data_load_ms is not None]
        copied = [step.copy_ms for step in steps if step.copy_ms is not None]
        return {
            "data_load_ms": fmean(loaded) if loaded else None,
            "copy_ms": fmean(copied) if copied else None,
        }

    def close(self) -> None:
        """End the threads and the workers."""
        self._strategy.close()
        self._batches = iter(())


def plain(setting: Setting) -> Running:
    """Return the naive way: copies from pageable memory when a batch is needed, and a wait after each step."""
    training = replace(setting.config.training, strategy="serial", sync="every")
    return Fed(setting, replace(setting.config, training=training))


def pipeline(setting: Setting) -> Running:
    """Return the run's own way."""
    return Fed(setting, setting.config)
