"""Metrics as TensorBoard event files."""

from __future__ import annotations

from pathlib import Path

from instrument.config.schema import Config
from instrument.errors import ConfigError
from instrument.monitor.metrics import Figures
from instrument.monitor.sink import import_optional

KEY = "monitor.tensorboard"
FLUSH_INTERVAL_S = 10


def open_sink(config: Config, resumed_at: int | None, _total: int = 0) -> TensorBoard | None:
    """Open an event file in the folder of `monitor.tensorboard`; return None if it is not set."""
    folder = config.monitor.tensorboard
    return None if folder is None else TensorBoard(folder, resumed_at=resumed_at)


class TensorBoard:
    """An event file, written by a background thread at least every ten seconds.

    Args:
        folder: the folder of the run. Events of an earlier run stay on disk, but TensorBoard hides them.
        resumed_at: first step of a resumed run; TensorBoard still shows the events before it.

    Raises:
        ConfigError: the library is missing, or the folder cannot be written to.
    """

    def __init__(self, folder: Path, *, resumed_at: int | None = None) -> None:
        import_optional("tensorboard", KEY, "tensorboard")
        library = import_optional("torch.utils.tensorboard", KEY, "tensorboard")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = library.SummaryWriter(str(folder), purge_step=resumed_at or 0, flush_secs=FLUSH_INTERVAL_S)
        except OSError as failure:
            raise ConfigError(f"{KEY}: cannot write to {folder}: {failure.strerror}") from None

    def write(self, step: int, figures: Figures) -> None:
        """Add one event for each measured value."""
        for name, value in figures.items():
            if value is not None:
                self._writer.add_scalar(name, value, global_step=step)

    def close(self) -> None:
        """Write buffered events."""
        self._writer.close()
