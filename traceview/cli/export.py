"""The `export` command: a capture in other tools' formats."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceview.cli.options import CAPTURE, FILE, reading_options
from traceview.cli.outputs import print_bytes, print_out, progress
from traceview.errors import OutputError, RequestError
from traceview.files import check_different, is_stdout

if TYPE_CHECKING:
    from traceview.export import Format
    from traceview.model.trace import Trace, Window

NAMES = ("perfetto", "chrome", "csv", "parquet")


def _format(_context: click.Context, _option: click.Parameter, name: str) -> str:
    if name not in NAMES:
        raise click.BadParameter(f"unknown format {name[:40]!r}; choose one of {', '.join(NAMES)}")
    return name


@click.command(short_help="Write a capture as a Perfetto or Chrome trace, CSV or Parquet.")
@click.argument("report", type=CAPTURE)
@click.option(
    "--format",
    "format_name",
    required=True,
    metavar="FORMAT",
    callback=_format,
    shell_complete=lambda _context, _option, begun: [name for name in NAMES if name.startswith(begun)],
    help="perfetto, chrome, csv or parquet.",
)
@click.option(
    "--output",
    "-o",
    type=FILE,
    help="Where it goes; a name that ends with .gz packs a trace, - is standard output.  [default: beside the report]",
)
@click.option("--from", "start", metavar="TIME", help="Begin there: 120ms after the first GPU work.")
@click.option("--until", "end", metavar="TIME", help="End there, written like --from.")
@click.option(
    "--range", "range_name", metavar="NVTX", help="Narrow to the ranges of this name, first start to last end."
)
@click.option("--device", metavar="GPU", help="Only this device ('GPU 0', or its ordinal) and its processes.")
@reading_options
@click.option("--quiet", "-q", is_flag=True, help="Print nothing.")
def export(
    report: Path,
    format_name: str,
    output: Path | None,
    start: str | None,
    end: str | None,
    range_name: str | None,
    device: str | None,
    quiet: bool,
) -> None:
    """Write REPORT in another tool's format.

    perfetto and chrome are a file for ui.perfetto.dev or chrome://tracing; csv and parquet are a folder of tables.
    """
    if range_name is not None and (start, end) != (None, None):
        raise RequestError("--range and --from/--until narrow the same window; give one of them")
    from traceview.export import FORMATS, FileFormat, collect

    form = next(form for form in FORMATS if form.name == format_name)
    place = output or report.with_name(f"{_stem(report)}{form.suffix}")
    _check_places(report, form, place)
    with progress(quiet) as step:
        from traceview.pipeline import open_trace

        step("read", 0.0)
        trace = open_trace(report)
        step("collect", 0.3)
        contents = collect(_narrowed(trace, start, end, range_name), device)
        step("write", 0.5)
        if is_stdout(place):
            assert isinstance(form, FileFormat), "_check_places refused a folder"
            print_bytes(form.pieces(contents))
            return
        form.write(contents, place)
    if not quiet:
        from traceview.report.format import plain

        print_out(f"{plain(str(place), 4000)}\n")


def _stem(report: Path) -> str:
    packed = report.suffix in (".gz", ".xz", ".zst")
    return Path(report.stem).stem if packed else report.stem


def _check_places(report: Path, form: Format, place: Path) -> None:
    from traceview.export import FolderFormat
    from traceview.read.formats import check_capture

    check_capture(report)
    if is_stdout(place):
        if isinstance(form, FolderFormat):
            raise OutputError(f"--format {form.name} writes a folder of tables, not standard output")
        if form.name == "perfetto" and sys.stdout.isatty():
            raise OutputError("a Perfetto trace is no text for a terminal; send it to a file or a program")
        return
    check_different((report,), (place,))
    form.check(place)


def _narrowed(trace: Trace, start: str | None, end: str | None, range_name: str | None) -> Trace:
    from traceview.measure.window import window_of_range

    window = _window(trace, start, end) if range_name is None else window_of_range(trace, range_name)
    return trace if window is None else trace.narrowed(window)


def _window(trace: Trace, start: str | None, end: str | None) -> Window | None:
    """Return the window that --from and --until mean, as window_of_times does for --from and --to."""
    from traceview.cli.times import moment
    from traceview.model.trace import Window

    if (start is None and end is None) or trace.operations.is_empty():
        return None
    first, last = int(trace.operations["start"].to_numpy().min()), int(trace.operations["end"].to_numpy().max())
    window = Window(
        first if start is None else moment("--from", start, first),
        last if end is None else moment("--until", end, first),
    )
    if window.length <= 0:
        raise RequestError(
            f"--from and --until leave an empty window; the GPU worked for {(last - first) / 1e6:.3f} ms, "
            f"from {first} to {last} on the capture's clock"
        )
    return window
