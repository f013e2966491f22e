"""Metrics for Weights & Biases, online or, with WANDB_MODE=offline, in a folder for `wandb sync`."""

from __future__ import annotations

from typing import Any

from instrument.config.schema import Config, to_dict
from instrument.errors import ConfigError
from instrument.monitor.metrics import Figures
from instrument.monitor.sink import import_optional

KEY = "monitor.wandb"


def open_sink(config: Config, _resumed_at: int | None, _total: int = 0) -> WeightsAndBiases | None:
    """Open a run in the project of `monitor.wandb`; return None if it is not set."""
    if config.monitor.wandb is None:
        return None
    return WeightsAndBiases(config.monitor.wandb, config)


class WeightsAndBiases:
    """A run in Weights & Biases, with its environment variables: WANDB_RUN_ID and WANDB_RESUME continue a run.

    Args:
        project: name of the project.
        config: the configuration to log.

    Raises:
        ConfigError: the library is missing, or cannot start a run.
    """

    def __init__(self, project: str, config: Config) -> None:
        library = import_optional("wandb", KEY, "wandb")
        try:
            self._run: Any = library.init(project=project, config=to_dict(config))
        except library.errors.Error as failure:
            reason = " ".join(str(failure).split())
            raise ConfigError(f"{KEY}: {reason}; WANDB_MODE=offline logs to this machine instead") from None

    def write(self, step: int, figures: Figures) -> None:
        """Log one record without the values that were not measured."""
        self._run.log({name: value for name, value in figures.items() if value is not None}, step=step)

    def close(self) -> None:
        """Finish the run and wait until all records are stored."""
        self._run.finish()
