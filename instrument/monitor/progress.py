"""A live line on the terminal: steps done, loss, ms per step, samples per second; nothing where there is none."""

from __future__ import annotations

import importlib
import sys
from typing import Any, TextIO

from instrument.config.schema import Config
from instrument.monitor.metrics import LOSS
from instrument.monitor.sink import Figures, Sink

SHOWN = ((LOSS, "loss {:.4g}"), ("perf/step_ms", "{:.1f} ms/step"), ("perf/samples_per_s", "{:.0f} samples/s"))


def open_sink(config: Config, resumed_at: int | None) -> Sink | None:
    """Open the bar, or a plain line where tqdm is not installed; None where it is not wanted or cannot be seen."""
    if not config.monitor.progress or not sys.stderr.isatty():
        return None
    total = config.training.steps if config.training.epochs is None else None
    try:
        tqdm = importlib.import_module("tqdm")
    except ImportError:
        return PlainLine(total, sys.stderr)
    return Bar(tqdm.tqdm(total=total, initial=resumed_at or 0, unit="step", file=sys.stderr, dynamic_ncols=True))


class Bar:
    """A tqdm bar that follows the records.

    Args:
        bar: from tqdm, at the run's first step.
    """

    def __init__(self, bar: Any) -> None:
        self._bar = bar

    def write(self, step: int, figures: Figures) -> None:
        """Move the bar to this step; a record without the figures shown, such as an epoch's, leaves the last ones."""
        text = describe(figures)
        if text:
            self._bar.set_postfix_str(text, refresh=False)
        self._bar.update(step + 1 - self._bar.n)

    def close(self) -> None:
        """Leave the bar as it is, and go to the next line."""
        self._bar.close()


class PlainLine:
    """One line that is written over.

    Args:
        total: steps of the run, where that is known.
        stream: the terminal.
    """

    def __init__(self, total: int | None, stream: TextIO) -> None:
        self._total, self._stream, self._width = total, stream, 0

    def write(self, step: int, figures: Figures) -> None:
        """Write the line again, over the last one."""
        text = describe(figures)
        if text:
            of = "" if self._total is None else f"/{self._total}"
            line = f"step {step + 1}{of}  {text}"
            self._stream.write(f"\r{line:<{self._width}}")
            self._stream.flush()
            self._width = len(line)

    def close(self) -> None:
        """Go to the next line."""
        if self._width:
            self._stream.write("\n")
            self._stream.flush()


def describe(figures: Figures) -> str:
    """Return what a terminal shows of a record; what was not measured is left out."""
    measured = [(form, figures.get(name)) for name, form in SHOWN]
    return "  ".join(form.format(value) for form, value in measured if value is not None)
