"""The `export` command: a capture in the format of another tool."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import click

from traceview.cli import command, options
from traceview.cli.outputs import check_outputs, print_bytes, print_out, progress, write_document
from traceview.errors import OutputError
from traceview.report.files import is_stdout, refuse_link

FORMATS = ("perfetto", "parquet")  # as in traceview.captures.export, which this command imports later


@command(
    "traceview export report.sqlite",
    "traceview export report.sqlite --format parquet -o tables",
)
@options.REPORT
@click.option(
    "--format",
    "form",
    type=click.Choice(FORMATS),
    default="perfetto",
    show_default=True,
    metavar="FORMAT",
    help="perfetto or parquet.",
)
@click.option("--output", "-o", type=options.OUTPUT, help='The file or folder; ".gz" compresses, "-" prints it.')
@options.window_options
@click.option("--device", metavar="GPU", help="Export only this device ('GPU 0' or 0) and its processes.")
@options.JSON
@options.reading_options
@options.SILENT
def export(
    report: Path,
    form: str,
    output: Path | None,
    start: str | None,
    end: str | None,
    range_name: str | None,
    device: str | None,
    json_path: Path | None,
    quiet: bool,
) -> None:
    """Convert REPORT to the format of another tool.

    perfetto writes a file for ui.perfetto.dev, with the findings of `analyze` as tracks; parquet writes a folder of
    tables, for polars, pandas and DuckDB.
    """
    from traceview.captures.export import FORMATS as SUFFIXES
    from traceview.captures.export import Written
    from traceview.model.analysis import AnalysisOptions
    from traceview.pipeline import analyze_trace, check_window, narrowed_trace, open_trace

    check_window((start, end), range_name)
    target = output or report.with_name(f"{_stem(report)}{SUFFIXES[form]}")
    if output is None:
        refuse_link(target, "--output")
    _check_target(report, form, target, json_path)
    with progress(quiet) as step:
        from traceview.captures.export import collect, pieces
        from traceview.captures.export import write as write_export

        step("read", 0.0)
        trace = open_trace(report)
        step("collect", 0.3)
        contents = collect(narrowed_trace(trace, (start, end), range_name), device)
        if form == "perfetto":
            step("analyze", 0.4)
            analysis = analyze_trace(contents.trace, AnalysisOptions(device=device)).analysis
            contents = replace(contents, analysis=analysis)
        step("write", 0.5)
        if is_stdout(target):
            print_bytes(pieces(contents))
            return
        write_export(contents, form, target)
    if not write_document(json_path, Written.from_output(form, target)) and not quiet:
        from traceview.model.units import plain

        print_out(f"{plain(str(target), 4000)}\n")


def _stem(report: Path) -> str:
    packed = report.suffix in (".gz", ".xz", ".zst")
    return Path(report.stem).stem if packed else report.stem


def _check_target(report: Path, form: str, target: Path, json_path: Path | None) -> None:
    from traceview.captures.export import check_output
    from traceview.read.formats import check_capture

    check_capture(report)
    if is_stdout(target):
        if json_path is not None:
            raise OutputError("--json lists the written files, and -o - writes none")
        if form == "parquet":
            raise OutputError(f"--format {form} writes a folder of tables, not standard output")
        if form == "perfetto" and sys.stdout.isatty():
            raise OutputError("a Perfetto trace is binary; send it to a file or a program, not to a terminal")
        return
    check_output(form, target)
    check_outputs((report,), (json_path,), exported=target)
