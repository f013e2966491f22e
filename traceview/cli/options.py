"""Option types, and the options that several commands share."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import click

from traceview.cli import CAPTURES
from traceview.errors import RequestError
from traceview.report.files import is_stdout, named_output

Decorated = TypeVar("Decorated", bound=Callable[..., object])

BYTES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}
FLOPS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18}
MAX_FLOPS = 1 << 62
MAX_MS = 86_400_000


def parse_size(text: str) -> int:
    """Return a number of bytes from 8MB, 1.5GB, 500kB, or a whole number. Raises click.BadParameter."""
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,6})?)\s*([a-zA-Z]*)", text.strip())
    if match is None or match[2].lower() not in BYTES:
        raise click.BadParameter(f"invalid size {text[:40]!r} (for example 15MB)")
    return int(float(match[1]) * BYTES[match[2].lower()])


def parse_milliseconds(text: str) -> int:
    """Return a positive number of milliseconds, at most a day, in ns. Raises click.BadParameter."""
    ms = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]{0,12})?|\.[0-9]{1,12}", text.strip()) else 0.0
    if not 0 < ms <= MAX_MS:
        raise click.BadParameter(f"invalid number of milliseconds {text[:40]!r} (for example 12.5)")
    return max(round(ms * 1e6), 1)


def parse_flops(text: str) -> int:
    """Return a number of operations from 1.2e15, 1.2P, 850T, or a whole number. Raises click.BadParameter."""
    match = re.fullmatch(r"(\d{1,20}(?:\.\d{1,9})?(?:[eE]\+?\d{1,2})?)\s*([kKMGTPE]?)(?:FLOPs?)?", text.strip())
    count = round(float(match[1]) * FLOPS[match[2].upper()]) if match else 0
    if not 0 < count < MAX_FLOPS:
        raise click.BadParameter(f"invalid number of operations {text[:40]!r} (for example 1.2e15 or 1.2P)")
    return count


class _Capture(click.Path):
    """The path of a capture. The context remembers it for error messages."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        path = super().convert(value, param, ctx)
        if ctx is not None:
            ctx.meta.setdefault(CAPTURES, []).append(path)
            if isinstance(path, Path) and path.is_dir():
                return _capture_in_folder(path)
        return path


def _capture_in_folder(folder: Path) -> Path:
    """Return the capture that a folder stands for, and print the note on it.

    For a folder of several captures, print them, and raise RequestError.
    """
    from traceview.cli.outputs import print_error, print_out
    from traceview.model.units import plain, size
    from traceview.read.formats import MAX_LISTED, capture_in, captures_in
    from traceview.read.source import table_files

    try:
        capture, note = capture_in(folder)
    except RequestError:
        captures = captures_in(folder)
        for path, kind in captures[:MAX_LISTED]:
            bytes_ = sum(file.stat().st_size for file in table_files(path) or [path])
            print_out(f"  {size(bytes_):>8}  {kind:<20}  {plain(path.name, 200)}\n")
        if len(captures) > MAX_LISTED:
            print_out(f"  and {len(captures) - MAX_LISTED} more\n")
        raise
    if note:
        print_error(f"traceview: {plain(note, 2000)}")
    return capture


class _Output(click.Path):
    """The path of an output that the user names; a link stands for its target."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        path = super().convert(value, param, ctx)
        return named_output(path) if isinstance(path, Path) else path


FILE = click.Path(path_type=Path)
OUTPUT = _Output(path_type=Path)


class _Page(_Output):
    """The path of a page, which is a file."""

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        path = super().convert(value, param, ctx)
        if isinstance(path, Path) and is_stdout(path):
            raise RequestError("--html needs a file name; the page cannot go to standard output")
        return path


PAGE_OUTPUT = _Page(path_type=Path)
CAPTURE = _Capture(path_type=Path)

REPORT = click.argument("report", type=CAPTURE)
JSON = click.option("--json", "json_path", type=OUTPUT, help='Write every figure as JSON; "-" prints it.')
MARKDOWN = click.option("--markdown", type=OUTPUT, help='Write Markdown for a pull request; "-" prints it.')
JUNIT = click.option("--junit", type=OUTPUT, help="Write the result of every --fail-if as JUnit's XML to this file.")
OPEN = click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
NO_HTML = click.option("--no-html", is_flag=True, help="Do not write the page.")
ITERATION = click.option("--iteration", metavar="REGEX", help="NVTX ranges whose name matches REGEX are iterations.")
SKIP = click.option(
    "--skip", type=click.IntRange(min=0), metavar="N", help="Leave out the first N iterations as warm-up."
)
DEVICE = click.option("--device", metavar="GPU", help="Use only this device: its id ('GPU 0') or ordinal (0).")
VERBOSE = click.option("--verbose", "-v", is_flag=True, help="Print more: lists and tables, their first rows.")
SILENT = click.option("--quiet", "-q", is_flag=True, help="Print nothing.")  # where there is no summary
QUIET = click.option("--quiet", "-q", is_flag=True, help="Print no summary and no progress.")


def top_option(help_text: str) -> Callable[[Decorated], Decorated]:
    """Return the option --top, which bounds lists."""
    return click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help=help_text)


def fail_if_option(example: str) -> Callable[[Decorated], Decorated]:
    """Return the options --fail-if, with an example of a condition, and --junit."""
    fail_if = click.option(
        "--fail-if",
        "conditions",
        multiple=True,
        metavar="CONDITION",
        help=f"Exit with code 1 if '{example}', for example.",
    )
    return together(fail_if, JUNIT)


def together(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Return a decorator that adds several options."""

    def add(command: Decorated) -> Decorated:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _set_for_command(module: str, variable: str, context: click.Context, _option: click.Parameter, given: Any) -> None:
    """Set a context variable of a module for this command, if the option is given."""
    if given is not None:
        chosen = getattr(import_module(module), variable)
        context.call_on_close(partial(chosen.reset, chosen.set(given)))


NSYS = click.option(
    "--nsys",
    expose_value=False,
    callback=partial(_set_for_command, "traceview.read.nsys_rep", "CHOSEN"),
    metavar="PROGRAM",
    help="The nsys program that converts .nsys-rep files.  [default: nsys on PATH]",
)
_MAX_DECODED = click.option(
    "--max-decoded",
    type=parse_size,
    expose_value=False,
    callback=partial(_set_for_command, "traceview.read.source", "MAX_DECODED"),
    metavar="SIZE",
    help="Refuse a capture that takes more bytes after unpacking.  [default: 4GB]",
)


reading_options = together(NSYS, _MAX_DECODED)  # options of every command that reads a capture
UNPROFILED = click.option(
    "--unprofiled-ms",
    "unprofiled_ns",
    type=parse_milliseconds,
    metavar="MS",
    help="The measured time of an iteration without the profiler, in place of an estimate.",
)


_FROM = click.option("--from", "start", metavar="TIME", help="Start of the window: 120ms after the first GPU work.")
_TO = click.option("--to", "end", metavar="TIME", help="End of the window.")
_RANGE = click.option(
    "--range",
    "range_name",
    metavar="NVTX",
    help="Use the window from the first start to the last end of the NVTX ranges of this name.",
)
window_options = together(_FROM, _TO, _RANGE)


def page_path(html: Path | None, no_html: bool, opened: bool, default: Path) -> Path | None:
    """Return the path of the page, or None without one. Raises TraceviewError if the options contradict each other."""
    if html is not None and no_html:
        raise RequestError("--html does not go with --no-html")
    if no_html and opened:
        raise RequestError("--open needs the page and does not go with --no-html")
    return None if no_html else html or default
