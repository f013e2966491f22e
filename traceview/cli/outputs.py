"""Output of the command line: results, and progress and errors on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from traceview.errors import OutputError
from traceview.files import is_stdout, write_text


def draws(characters: str) -> bool:
    """Can standard output show these characters?"""
    try:
        characters.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def print_out(text: str) -> None:
    """Write text to standard output, as far as its encoding goes."""
    print_bytes((text.encode("utf-8" if draws("█") else "ascii", "replace"),))


def print_bytes(pieces: Iterable[bytes]) -> None:
    """Write bytes to standard output; a reader that is gone (`| head`) is no error. Raises OutputError."""
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"standard output cannot be written ({error.strerror})") from None


def write_results(
    page: Path | None,
    document: Callable[[], str],
    json_path: Path | None,
    to_json: Callable[[], str],
    summary: Callable[[], str] | None,
) -> str:
    """Write the page and the JSON once both are complete; return the text for standard output."""
    from traceview.report.format import plain

    drawn = None if page is None else document()
    text = "" if json_path is None else to_json()
    if page is not None and drawn is not None:
        write_text(page, drawn)
    if is_stdout(json_path):
        return text
    if json_path is not None:
        write_text(json_path, text)
    if summary is None:
        return ""
    return summary() if page is None else f"{summary()}\nThe page: {plain(str(page), 4000)}\n"


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
    from traceview.report.format import plain

    click.echo(plain(line, 2000).encode(getattr(sys.stderr, "encoding", None) or "utf-8", "replace"), err=True)
