"""Metrics for other programs: TensorBoard event files, and Weights & Biases, online or offline for `wandb sync`."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

from instrument.config.schema import Config, to_dict
from instrument.errors import ConfigError
from instrument.monitor.metrics import Figures

TENSORBOARD, WANDB = "monitor.tensorboard", "monitor.wandb"
FLUSH_INTERVAL_S = 10


class TensorBoard:
    """An event file, written by a background thread at least every ten seconds.

    Args:
        folder: the folder of the run. Events of an earlier run stay on disk, but TensorBoard hides them.
        resumed_at: first step of a resumed run; TensorBoard still shows the events before it.

    Raises:
        ConfigError: the library is missing, or the folder cannot be written to.
    """

    def __init__(self, folder: Path, *, resumed_at: int | None = None) -> None:
        import_optional("tensorboard", TENSORBOARD, "tensorboard")
        library = import_optional("torch.utils.tensorboard", TENSORBOARD, "tensorboard")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = library.SummaryWriter(str(folder), purge_step=resumed_at or 0, flush_secs=FLUSH_INTERVAL_S)
        except OSError as failure:
            raise ConfigError(f"{TENSORBOARD}: cannot write to {folder}: {failure.strerror}") from None

    def write(self, step: int, figures: Figures) -> None:
        """Add one event for each measured value."""
        for name, value in figures.items():
            if value is not None:
                self._writer.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        """Write buffered events."""
        self._writer.close()


class WeightsAndBiases:
    """A run in Weights & Biases, with its environment variables: WANDB_RUN_ID and WANDB_RESUME continue a run.

    Args:
        project: name of the project.
        config: the configuration to log.

    Raises:
        ConfigError: the library is missing, or cannot start a run.
    """

    def __init__(self, project: str, config: Config) -> None:
        library = import_optional("wandb", WANDB, "wandb")
        try:
            self._run: Any = library.init(project=project, config=to_dict(config))
        except library.errors.Error as failure:
            reason = " ".join(str(failure).split())
            raise ConfigError(f"{WANDB}: {reason}; WANDB_MODE=offline logs to this machine instead") from None

    def write(self, step: int, figures: Figures) -> None:
        """Log one record without the values that were not measured."""
        self._run.log({name: value for name, value in figures.items() if value is not None}, step=step)

    def close(self) -> None:
        """Finish the run and wait until all records are stored."""
        self._run.finish()


def import_optional(module: str, key: str, package: str) -> ModuleType:
    """Import a library that only one sink needs.

    Args:
        module: name of the module.
        key: the setting that needs it, such as "monitor.tensorboard".
        package: the package to install.

    Raises:
        ConfigError: it cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as failure:
        raise ConfigError(f"{key} needs the package {package} ({failure}); run: pip install {package}") from None
