"""A progress bar with the time that is left, on standard error, for commands that take more than a second."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from traceview.cli import CAPTURES

Step = Callable[[str, float], None]

FIRST_DRAWN_S, REDRAWN_S = 1.0, 0.2
BYTES_PER_S = 70e6  # a capture in SQLite on one processor core, from reading to the page
PACKED_SUFFIXES = (".gz", ".xz", ".zst")
PACKED_RATIO = 12  # a compressed capture takes 12 times as long as its size
MOST = 0.99  # done is known only at the end
BAR = 24


class Progress:
    """What is done of a command, from its steps and, within a step, from the time that it probably takes."""

    def __init__(self, expected_s: float) -> None:
        self.started = time.monotonic()
        self.name = ""
        self.done = 0.0
        self._expected_s = expected_s

    def step(self, name: str, done: float) -> None:
        """Note the step that begins, and the fraction that is done."""
        self.name = name
        elapsed = time.monotonic() - self.started
        if done > 0:
            self._expected_s = elapsed / done
        self.done = max(self.done, min(done, MOST))

    def line(self, columns: int) -> str:
        """Return the bar as text."""
        elapsed = time.monotonic() - self.started
        self._expected_s = max(self._expected_s, elapsed / MOST)
        self.done = max(self.done, min(elapsed / self._expected_s, MOST))
        left = elapsed * (1 - self.done) / self.done
        filled = int(BAR * self.done)
        bar = "#" * filled + "-" * (BAR - filled)
        return f"[{bar}] {100 * self.done:3.0f}%  {_clock(left)} left  {self.name}"[: columns - 1]


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds + 1), 60)
    return f"{minutes}:{rest:02}"


@contextmanager
def progress(quiet: bool) -> Iterator[Step]:
    """Yield a function that takes the name of a step and the fraction that is done.

    On a terminal a bar shows both after FIRST_DRAWN_S, until the context ends; elsewhere nothing is shown.
    """
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _name, _done: None
        return
    context = click.get_current_context(silent=True)
    state = Progress(_expected_seconds(context.meta.get(CAPTURES, ()) if context else ()))
    ended = threading.Event()
    drawer = threading.Thread(target=_draw, args=(state, ended), daemon=True)
    drawer.start()
    try:
        yield state.step
    finally:
        ended.set()
        drawer.join()


def _draw(state: Progress, ended: threading.Event) -> None:
    """Draw the bar until the work ends, then remove it."""
    if ended.wait(FIRST_DRAWN_S):
        return
    while True:
        line = state.line(shutil.get_terminal_size().columns)
        click.echo(f"\r\033[K{line}", err=True, nl=False)
        if ended.wait(REDRAWN_S):
            break
    click.echo("\r\033[K", err=True, nl=False)


def _expected_seconds(captures: Sequence[Path]) -> float:
    """Return the time that captures of these sizes take, a guess that steps correct."""
    sizes = (
        path.stat().st_size * (PACKED_RATIO if path.suffix in PACKED_SUFFIXES else 1)
        for path in captures
        if path.is_file()
    )
    return 0.5 + sum(sizes) / BYTES_PER_S
