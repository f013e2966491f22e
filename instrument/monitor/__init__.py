"""Sinks for the metrics of a run. A sink is one module with an `open_sink` function and one entry in SINKS.

sinks = open_sinks(config)
sinks.write(9, figures(steps))
sinks.close()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from instrument.config.schema import Config
from instrument.monitor import jsonl, progress, services
from instrument.monitor.metrics import Figures, Sink

__all__ = ["SINKS", "Figures", "Sink", "Sinks", "open_sinks"]

Opener = Callable[[Config, int | None, int], Sink | None]

SINKS: tuple[Opener, ...] = (jsonl.open_sink, services.open_tensorboard, services.open_wandb, progress.open_sink)

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
        for opener in SINKS:
            sink = opener(config, resumed_at, config.training.steps if total is None else total)
            if sink is not None:
                sinks._sinks.append(sink)
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
