"""Figures for TensorBoard: an event file in a folder."""

from __future__ import annotations

from pathlib import Path

from instrument.config.schema import Config
from instrument.errors import ConfigError
from instrument.monitor.sink import Figures, optional

KEY = "monitor.tensorboard"
FLUSH_SECONDS = 10


def open_sink(config: Config, resumed_at: int | None) -> TensorBoard | None:
    """Open an event file in the folder that `monitor.tensorboard` names, if it does."""
    folder = config.monitor.tensorboard
    return None if folder is None else TensorBoard(folder, resumed_at=resumed_at)


class TensorBoard:
    """An event file; written by a thread of its own, at the latest after ten seconds.

    Args:
        folder: the run's. An earlier run's events in it stay on disk, but TensorBoard shows them no more.
        resumed_at: the first step of a run that goes on: events before it are shown still.

    Raises:
        ConfigError: the library is missing, or the folder cannot be written to.
    """

    def __init__(self, folder: Path, *, resumed_at: int | None = None) -> None:
        optional("tensorboard", KEY, "tensorboard")
        library = optional("torch.utils.tensorboard", KEY, "tensorboard")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = library.SummaryWriter(str(folder), purge_step=resumed_at or 0, flush_secs=FLUSH_SECONDS)
        except OSError as failure:
            raise ConfigError(f"{KEY}: {folder} cannot be written to: {failure.strerror}") from None

    def write(self, step: int, figures: Figures) -> None:
        """Add one event per figure that was measured."""
        for name, value in figures.items():
            if value is not None:
                self._writer.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        """Write what is still held."""
        self._writer.close()
