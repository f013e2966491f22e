"""The stages, in their order: each adds something to those before it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from instrument.config.schema import Config
from instrument.config.settings import did_you_mean
from instrument.diagnose.compute import Inference, mixed, training
from instrument.diagnose.feeding import Load, pipeline, plain
from instrument.diagnose.running import Running, Setting
from instrument.errors import ConfigError
from instrument.strategies import strategy_class
from instrument.sync import SyncPolicy


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a run that is measured alone.

    Attributes:
        name: in `--stages`, in JSON and in the verdict.
        title: what it is under a configuration, for a reader; 28 characters at most.
        open: builds it; raises InstrumentError where it cannot be measured.
    """

    name: str
    title: Callable[[Config], str]
    open: Callable[[Setting], Running]


def _mixed(config: Config) -> str:
    return "mixed precision" if config.training.precision == "fp32" else config.training.precision


def _waits(config: Config) -> str:
    auto = strategy_class(config.training.strategy).sync_interval
    every = SyncPolicy.from_text(config.training.sync, auto).every
    return "sync event" if every is None else f"sync {every}"


STAGES: tuple[Stage, ...] = (
    Stage("inference", lambda _config: "inference, fp32", Inference),
    Stage("training", lambda _config: "training, fp32", training),
    Stage("mixed", lambda config: f"training, {_mixed(config)}", mixed),
    Stage("loader", lambda _config: "loader alone", Load),
    Stage("plain", lambda _config: "loader + copy + model", plain),
    Stage("pipeline", lambda config: f"{config.training.strategy}, {_waits(config)}", pipeline),
)


def chosen(names: str | None) -> tuple[Stage, ...]:
    """Return the stages that a list such as "training,loader" names, in the order of STAGES; all where None.

    Raises:
        ConfigError: there is no such stage.
    """
    known = tuple(stage.name for stage in STAGES)
    wanted = known if names is None else tuple(name.strip() for name in names.split(","))
    for name in wanted:
        if name not in known:
            raise ConfigError(f"--stages: {name!r} is no stage{did_you_mean(name, known)}: use {', '.join(known)}")
    return tuple(stage for stage in STAGES if stage.name in wanted)
