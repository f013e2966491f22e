"""Figures for Weights & Biases, online or, with WANDB_MODE=offline, in a folder that `wandb sync` uploads later."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from instrument.config.schema import Config, to_dict
from instrument.errors import ConfigError
from instrument.monitor.sink import Figures, optional

KEY = "monitor.wandb"
RUN_FILE = "wandb-run"


def open_sink(config: Config, resumed_at: int | None) -> WeightsAndBiases | None:
    """Open a run in the project that `monitor.wandb` names, if it does."""
    if config.monitor.wandb is None:
        return None
    return WeightsAndBiases(config.monitor.wandb, config, resumed_at=resumed_at)


class WeightsAndBiases:
    """A run at Weights & Biases; WANDB_MODE, WANDB_DIR and its other variables count as ever.

    Args:
        project: its name.
        config: what the run is; its checkpoint folder remembers the run's id.
        resumed_at: the first step of a run that goes on: the run of the checkpoint folder is continued.

    Raises:
        ConfigError: the library is missing, or refuses to begin.
    """

    def __init__(self, project: str, config: Config, *, resumed_at: int | None = None) -> None:
        library = optional("wandb", KEY, "wandb")
        known = None if resumed_at is None else _known(config.checkpoint.folder)
        self._run = _begin(library, project, config, known)
        _remember(config.checkpoint.folder, str(self._run.id))

    def write(self, step: int, figures: Figures) -> None:
        """Log one record; figures that were not measured are left out."""
        self._run.log({name: value for name, value in figures.items() if value is not None}, step=step)

    def close(self) -> None:
        """Finish the run, and wait until what was logged is stored."""
        self._run.finish()


def _begin(library: ModuleType, project: str, config: Config, known: str | None) -> Any:
    try:
        return library.init(project=project, config=to_dict(config), id=known, resume="allow" if known else None)
    except library.errors.Error as failure:
        reason = " ".join(str(failure).split())
        raise ConfigError(f"{KEY}: {reason}; WANDB_MODE=offline keeps the run on this machine") from None


def _known(folder: Path | None) -> str | None:
    file = None if folder is None else folder / RUN_FILE
    return file.read_text(encoding="utf-8").strip() if file is not None and file.is_file() else None


def _remember(folder: Path | None, run: str) -> None:
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN_FILE).write_text(run + "\n", encoding="utf-8")
    except OSError as failure:
        raise ConfigError(f"checkpoint.folder: {folder} cannot be written to: {failure.strerror}") from None
