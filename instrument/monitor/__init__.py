"""Sinks for the metrics of a run. A sink is a class with `write` and `close`, and an entry in SINKS.

sinks = open_sinks(config)
sinks.write(9, figures(steps))
sinks.close()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from instrument.config.schema import Config
from instrument.monitor.jsonl import JsonLines
from instrument.monitor.metrics import Figures, Sink
from instrument.monitor.progress import open_progress
from instrument.monitor.services import TensorBoard, WeightsAndBiases

__all__ = ["SINKS", "Figures", "Sink", "Sinks", "open_sinks"]

# The setting of `monitor` that turns a sink on, and what opens it. It gets the setting's value, the configuration, the
# first step of a resumed run, and the steps of the run.
Opener = Callable[[Any, Config, "int | None", int], "Sink | None"]
SINKS: Mapping[str, Opener] = {
    "jsonl": lambda path, _config, resumed_at, _total: JsonLines(path, resumed_at=resumed_at),
    "tensorboard": lambda folder, _config, resumed_at, _total: TensorBoard(folder, resumed_at=resumed_at),
    "wandb": lambda project, config, _resumed_at, _total: WeightsAndBiases(project, config),
    "progress": open_progress,
}

_log = logging.getLogger(__name__)


class Sinks:
    """Writes to several sinks. A sink that fails is logged once and closed; the run continues without it."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def write(self, step: int, figures: Figures) -> None:
        """Write one record to each sink."""
        for sink in tuple(self._sinks):
            try:
                sink.write(step, figures)
            except Exception as failure:  # an error in monitoring must not stop the training
                self._sinks.remove(sink)
                _log.warning("%s failed at step %d and is closed: %s", type(sink).__name__, step, _error_line(failure))
                _close(sink)

    def close(self) -> None:
        """Close every sink, even if one fails."""
        while self._sinks:
            _close(self._sinks.pop())

    def __enter__(self) -> Sinks:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()


def open_sinks(config: Config, *, resumed_at: int | None = None, total: int | None = None) -> Sinks:
    """Open the configured sinks. If one fails, close those already open.

    Args:
        config: the configuration of the run.
        resumed_at: first step of a resumed run; existing records from that step on are removed, because they are
            written again. None for a new run.
        total: number of steps at the end of the run; None for `training.steps`.

    Raises:
        ConfigError: a library is missing, or a destination cannot be written to.
    """
    sinks = Sinks([])
    try:
        for name, opener in SINKS.items():
            wanted = getattr(config.monitor, name)
            sink = opener(wanted, config, resumed_at, total or config.training.steps) if wanted else None
            sinks._sinks += [] if sink is None else [sink]
    except BaseException:
        sinks.close()
        raise
    return sinks


def _close(sink: Sink) -> None:
    try:
        sink.close()
    except Exception as failure:  # the other sinks must still be closed
        _log.warning("%s: error on close: %s", type(sink).__name__, _error_line(failure))


def _error_line(failure: Exception) -> str:
    return " ".join(str(failure).split()) or type(failure).__name__
