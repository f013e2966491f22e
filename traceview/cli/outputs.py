"""Output of the commands: results on standard output, errors and the step that runs on standard error."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceview.errors import OutputError, RequestError
from traceview.report import files
from traceview.report.files import is_stdout, write_text

if TYPE_CHECKING:
    from traceview.report.screen import Screen


TRACES = ("compressed", "torch.profiler trace")  # kinds of captures that `export` writes
SIDE_FILE = re.compile("-(?:wal|shm|journal)$")  # what SQLite keeps beside a database
NO_TERMINAL = 100  # columns of text that goes into a file or a pipe


def can_print(characters: str) -> bool:
    """Return whether the encoding of standard output has these characters."""
    try:
        characters.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def screen() -> Screen:
    """Return the terminal of standard output: 40 to 160 columns wide, as COLUMNS says where it is set.

    Text that goes into a file or a pipe has NO_TERMINAL columns without it, and no colours.
    """
    from traceview.report.screen import LETTERS, Screen

    columns = min(max(shutil.get_terminal_size((NO_TERMINAL, 24)).columns, 40), 160)
    if not sys.stdout.isatty():
        return Screen(columns, can_print(LETTERS))
    colours = 1 << 24 if os.environ.get("COLORTERM") in ("truecolor", "24bit") else 256
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        colours = 0
    return Screen(columns, can_print(LETTERS), colours)


def text_of(module: str, result: object, verbose: bool, **options: Any) -> str:
    """Return a result as text, all of it if `verbose`; `module` of traceview.report writes it."""
    writer = import_module(f"traceview.report.{module}")
    text: str = (writer.render if verbose else writer.render_brief)(result, screen(), **options)
    return text


def print_out(text: str) -> None:
    """Write text to standard output; characters outside ASCII become `?` where they cannot be printed."""
    print_bytes((text.encode("utf-8" if can_print("█") else "ascii", "replace"),))


def print_bytes(pieces: Iterable[bytes]) -> None:
    """Write bytes to standard output. A closed pipe (`| head`) is not an error. Raises OutputError."""
    try:
        for piece in pieces:
            sys.stdout.buffer.write(piece)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise OutputError(f"cannot write standard output ({error.strerror})") from None


def check_outputs(inputs: Iterable[Path], outputs: Iterable[Path | None], exported: Path | None = None) -> None:
    """Check the outputs of a command before it does any work.

    An output cannot replace another capture or a part of one. `exported` is the exception: it may replace an earlier
    trace, and its format checks the rest. Raises OutputError, and RequestError for two on standard output.
    """
    outputs = tuple(outputs)
    if sum(map(is_stdout, outputs)) > 1:
        raise RequestError("only one of --json, --markdown and --junit can write to standard output")
    files.check_different(inputs, (exported, *outputs))
    for path in outputs:
        if path is not None and not is_stdout(path):
            files.check_file(path)
    for path in (exported, *outputs):
        if path is None or not path.parent.exists():
            continue
        from traceview.read.formats import kind_of
        from traceview.read.source import table_files

        kind, database = kind_of(path), path.with_name(SIDE_FILE.sub("", path.name))
        is_part = table_files(path.parent) or (database != path and kind_of(database))
        if is_part or (kind and (path is not exported or kind not in TRACES)):
            raise OutputError(f"{path.name}: is a capture or a part of one, which would be lost; name another path")


def write_results(
    page: Path | None,
    to_html: Callable[[], str],
    documents: Sequence[tuple[Path | None, Callable[[], str]]],
    summary: Callable[[], str] | None,
) -> str:
    """Make the page and the documents, then write them, each if its path is given.

    Return the text for standard output: a document whose path says so, else the summary, if there is one.
    """
    from traceview.model.units import plain

    html = "" if page is None else to_html()
    texts = [(path, to_text()) for path, to_text in documents if path is not None]
    for path, text in [*([] if page is None else [(page, html)]), *texts]:
        if not is_stdout(path):
            write_text(path, text)
    for path, text in texts:
        if is_stdout(path):
            return text
    if summary is None:
        return ""
    return summary() if page is None else f"{summary()}Page: {plain(str(page), 4000)}\n"


def write_document(json_path: Path | None, result: object) -> bool:
    """Write a result as JSON if a path is given. Return whether the document went to standard output."""
    if json_path is None:
        return False
    from traceview.report.json import Document

    return write_output(json_path, partial(Document[object]().text, result))


def write_output(path: Path | None, to_text: Callable[[], str]) -> bool:
    """Write a text if a path is given, which `check_outputs` allows. Return whether it went to standard output."""
    if path is None:
        return False
    if is_stdout(path):
        print_out(to_text())
        return True
    write_text(path, to_text())
    return False


def print_error(line: str) -> None:
    """Write one line to standard error, without control characters that a name may contain."""
    from traceview.model.units import plain

    click.echo(plain(line, 2000).encode(getattr(sys.stderr, "encoding", None) or "utf-8", "replace"), err=True)


Step = Callable[[str, float], None]

ERASED = "\r\033[K"  # the line of the terminal


@contextmanager
def progress(quiet: bool) -> Iterator[Step]:
    """Yield a function that takes the name of a step and the fraction that is done.

    A terminal shows both until the context ends; elsewhere nothing is shown.
    """
    if quiet or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _name, _done: None
        return

    def show(name: str, done: float) -> None:
        line = f"{100 * done:3.0f}%  {name}"[: shutil.get_terminal_size().columns - 1]
        click.echo(f"{ERASED}{line}", err=True, nl=False)

    try:
        yield show
    finally:
        click.echo(ERASED, err=True, nl=False)
