"""What the command line writes: results to standard output, progress and complaints to standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from traceview.errors import OutputError

STDOUT = "-"


def draws(characters: str) -> bool:
    """Can standard output show these characters?"""
    try:
        characters.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def print_out(text: str) -> None:
    """Write to standard output; a reader that has gone away (`| head`) is no error."""
    try:
        click.echo(text.encode("utf-8" if draws("█") else "ascii", "replace"), nl=False)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"standard output cannot be written ({error.strerror})") from None


def check_outputs(reports: Iterable[Path], outputs: Iterable[Path | None]) -> None:
    """Refuse an output that would overwrite a report or another output, or that cannot be written.

    `-` is standard output. Raises OutputError.
    """
    from traceview.report.write import check_place

    taken = {report.resolve() for report in reports}
    for path in outputs:
        if path is None or str(path) == STDOUT:
            continue
        if path.resolve() in taken:
            raise OutputError(f"{path.name}: the reports and the outputs must be different files")
        taken.add(path.resolve())
        check_place(path)


@contextmanager
def progress(quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Show the step under way on one line of a terminal; elsewhere nothing."""
    shown = sys.stderr.isatty() and not quiet and os.environ.get("TERM") != "dumb"

    def step(name: str, done: float) -> None:
        if shown:
            click.echo(f"\r\033[K{100 * done:3.0f}% {name}", err=True, nl=False)

    try:
        yield step
    finally:
        if shown:
            click.echo("\r\033[K", err=True, nl=False)


def complain(line: str) -> None:
    """Write one line to standard error, without what a name could do to a terminal."""
    from traceview.report.words import plain

    click.echo(plain(line, 2000).encode(getattr(sys.stderr, "encoding", None) or "utf-8", "replace"), err=True)
