"""Where the figures of a run go. A new place is one file with an `open_sink`, and its line in SINKS.

sinks = open_sinks(config)
sinks.write(9, figures(steps))
sinks.close()
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from types import TracebackType

from instrument.config.schema import Config
from instrument.monitor import jsonl, progress, tensorboard, wandb
from instrument.monitor.sink import Figures, Sink

__all__ = ["SINKS", "Figures", "Sink", "Sinks", "open_sinks"]

Opener = Callable[[Config, int | None], Sink | None]

SINKS: tuple[Opener, ...] = (jsonl.open_sink, tensorboard.open_sink, wandb.open_sink, progress.open_sink)

_log = logging.getLogger(__name__)


class Sinks:
    """Several sinks as one. One that fails is said, once, and left out from then on: the run goes on without it."""

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = list(sinks)

    def write(self, step: int, figures: Figures) -> None:
        """Give one record to each sink."""
        for sink in tuple(self._sinks):
            try:
                sink.write(step, figures)
            except Exception as failure:  # whatever a monitor breaks of, the training is worth more
                self._sinks.remove(sink)
                _log.warning("%s: no more records after step %d: %s", _name(sink), step, _reason(failure))
                _close(sink)

    def close(self) -> None:
        """Close each sink, whether or not another fails to."""
        while self._sinks:
            _close(self._sinks.pop())

    def __enter__(self) -> Sinks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, raised: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_sinks(config: Config, *, resumed_at: int | None = None) -> Sinks:
    """Open each sink that the configuration asks for, or none of them.

    Args:
        config: the run's.
        resumed_at: the first step of a run that goes on; earlier records of that step and later ones are dropped, for
            they will be written again. None for a new run.

    Raises:
        ConfigError: one line: a library is missing, or a place cannot be written to.
    """
    sinks = Sinks([])
    try:
        for opener in SINKS:
            sink = opener(config, resumed_at)
            if sink is not None:
                sinks._sinks.append(sink)
    except BaseException:
        sinks.close()
        raise
    return sinks


def _close(sink: Sink) -> None:
    try:
        sink.close()
    except Exception as failure:  # as above: nothing here is worth losing the rest for
        _log.warning("%s: not closed well: %s", _name(sink), _reason(failure))


def _name(sink: Sink) -> str:
    return type(sink).__name__


def _reason(failure: Exception) -> str:
    return " ".join(str(failure).split()) or type(failure).__name__
