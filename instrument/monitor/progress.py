"""A progress line on the terminal: steps done, loss, ms per step, samples per second."""

from __future__ import annotations

import importlib
import sys
from typing import Any, TextIO

from instrument.config.schema import Config
from instrument.monitor.metrics import LOSS, Figures
from instrument.monitor.sink import Sink

SHOWN_FIGURES = ((LOSS, "loss {:.4g}"), ("perf/step_ms", "{:.1f} ms/step"), ("perf/samples_per_s", "{:.0f} samples/s"))


def open_sink(config: Config, resumed_at: int | None) -> Sink | None:
    """Return a progress bar, or a plain line without tqdm; None if it is off or standard error is not a terminal."""
    if not config.monitor.progress or not sys.stderr.isatty():
        return None
    total = config.training.steps if config.training.epochs is None else None
    try:
        tqdm = importlib.import_module("tqdm")
    except ImportError:
        return PlainLine(total, sys.stderr)
    return Bar(tqdm.tqdm(total=total, initial=resumed_at or 0, unit="step", file=sys.stderr, dynamic_ncols=True))


class Bar:
    """A tqdm progress bar that shows the latest record.

    Args:
        bar: a tqdm bar at the first step of the run.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def write(self, step: int, figures: Figures) -> None:
        """Move the bar to this step. A record without the shown values, such as an epoch's, keeps the last ones."""
        text = figures_text(figures)
        if text:
            self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(step + 1 - self._bar.n)

    def close(self) -> None:
        """Keep the bar on the screen and move to the next line."""
        self._bar.close()


class PlainLine:
    """One line that is overwritten by each record.

    Args:
        total: number of steps of the run, if known.
        stream: the terminal.
    """

    def __init__(self, total: int | None, stream: TextIO) -> None:
        self._total, self._stream, self._width = total, stream, 0

    def write(self, step: int, figures: Figures) -> None:
        """Overwrite the line."""
        text = figures_text(figures)
        if text:
            total = "" if self._total is None else f"/{self._total}"
            line = f"step {step + 1}{total}  {text}"
            self._stream.write(f"\r{line:<{self._width}}")
            self._stream.flush()
            self._width = len(line)

    def close(self) -> None:
        """Move to the next line."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()


def figures_text(figures: Figures) -> str:
    """Return the text of a record for the terminal, without values that were not measured."""
    measured = [(form, figures.get(name)) for name, form in SHOWN_FIGURES]
    return "  ".join(form.format(value) for form, value in measured if value is not None)
