"""The progress of a run: a bar on a terminal, or lines elsewhere, with loss, ms per step, and the time left."""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, TextIO

from instrument.config.schema import Config
from instrument.monitor.metrics import LOSS, Figures, Sink

SHOWN_FIGURES = ((LOSS, "loss {:.4g}"), ("perf/step_ms", "{:.1f} ms/step"), ("perf/samples_per_s", "{:.0f} samples/s"))


def open_progress(_on: bool, config: Config, resumed_at: int | None, total: int) -> Sink | None:
    """Return a bar, or lines without a terminal or without tqdm; None if there are to be none."""
    first, every = resumed_at or 0, config.monitor.log_every
    if sys.stderr.isatty():
        with suppress(ImportError):
            bar = importlib.import_module("tqdm").tqdm
            return Bar(bar(total=total, initial=first, unit="step", file=sys.stderr, dynamic_ncols=True))
    return LogLines(total, sys.stderr, every, first=first) if every else None


class Bar:
    """A tqdm progress bar that shows the latest record.

    Args:
        bar: a tqdm bar at the first step of the run.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def write(self, step: int, figures: Figures) -> None:
        """Move the bar to this step. A record without the shown values, such as a validation's, keeps the last ones."""
        text = figures_text(figures)
        if text:
            self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(step + 1 - self._bar.n)

    def close(self) -> None:
        """Keep the bar on the screen and move to the next line."""
        self._bar.close()


class LogLines:
    """One line every few steps, for log files.

    Args:
        total: number of steps of the run.
        stream: where the lines go.
        every: steps between two lines.
        first: the first step of the run.
        clock: seconds, for the time left.
    """

    def __init__(
        self, total: int, stream: TextIO, every: int, *, first: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._stream, self._every, self._clock = total, stream, every, clock
        self._shown = first
        self._timed: tuple[int, float] | None = None

    def write(self, step: int, figures: Figures) -> None:
        """Write a line if `every` steps have passed since the last one."""
        text, done = figures_text(figures), step + 1
        self._timed = self._timed or (done, self._clock())  # without the first steps, which are slow
        if not text or done // self._every == self._shown // self._every:
            return
        self._shown = done
        self._stream.write(f"instrument: step {done}/{self._total}  {text}{self._time_left(done)}\n")
        self._stream.flush()

    def close(self) -> None:
        """Do nothing."""

    def _time_left(self, done: int) -> str:
        assert self._timed is not None
        first, start = self._timed
        if done == first or done >= self._total:
            return ""
        seconds = round((self._clock() - start) / (done - first) * (self._total - done))
        return f"  {timedelta(seconds=seconds)} left"


def figures_text(figures: Figures) -> str:
    """Return the text of a record for the terminal, without values that were not measured."""
    own = [(f"{name} {{:.4g}}", value) for name, value in figures.items() if "/" not in name and name != LOSS]
    (first, *rest) = [(form, figures.get(name)) for name, form in SHOWN_FIGURES]
    measured = [first, *own, *rest]
    return "  ".join(form.format(value) for form, value in measured if value is not None)
