"""Metrics for Weights & Biases, online or, with WANDB_MODE=offline, in a folder for `wandb sync`."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from instrument.config.schema import Config, to_dict
from instrument.errors import ConfigError
from instrument.monitor.metrics import Figures
from instrument.monitor.sink import import_optional

KEY = "monitor.wandb"
RUN_FILE = "wandb-run"


def open_sink(config: Config, resumed_at: int | None, _total: int = 0) -> WeightsAndBiases | None:
    """Open a run in the project of `monitor.wandb`; return None if it is not set."""
    if config.monitor.wandb is None:
        return None
    return WeightsAndBiases(config.monitor.wandb, config, resumed_at=resumed_at)


class WeightsAndBiases:
    """A run in Weights & Biases. Its environment variables, such as WANDB_MODE and WANDB_DIR, apply.

    Args:
        project: name of the project.
        config: the configuration to log. The id of the run is stored in its checkpoint folder.
        resumed_at: first step of a resumed run; the run stored in the checkpoint folder is continued.

    Raises:
        ConfigError: the library is missing, or cannot start a run.
    """

    def __init__(self, project: str, config: Config, *, resumed_at: int | None = None) -> None:
        library = import_optional("wandb", KEY, "wandb")
        run_id = None if resumed_at is None else _read_run_id(config.checkpoint.folder)
        self._run = _start_run(library, project, config, run_id)
        _store_run_id(config.checkpoint.folder, str(self._run.id))

    def write(self, step: int, figures: Figures) -> None:
        """Log one record without the values that were not measured."""
        self._run.log({name: value for name, value in figures.items() if value is not None}, step=step)

    def close(self) -> None:
        """Finish the run and wait until all records are stored."""
        self._run.finish()


def _start_run(library: ModuleType, project: str, config: Config, run_id: str | None) -> Any:
    try:
        return library.init(project=project, config=to_dict(config), id=run_id, resume="allow" if run_id else None)
    except library.errors.Error as failure:
        reason = " ".join(str(failure).split())
        raise ConfigError(f"{KEY}: {reason}; WANDB_MODE=offline logs to this machine instead") from None


def _read_run_id(folder: Path | None) -> str | None:
    file = None if folder is None else folder / RUN_FILE
    return file.read_text(encoding="utf-8").strip() if file is not None and file.is_file() else None


def _store_run_id(folder: Path | None, run_id: str) -> None:
    if folder is None:
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / RUN_FILE).write_text(run_id + "\n", encoding="utf-8")
    except OSError as failure:
        raise ConfigError(f"checkpoint.folder: cannot write to {folder}: {failure.strerror}") from None
