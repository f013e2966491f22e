"""The `export` command: a capture in the format of another tool, or many in one Perfetto trace."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from traceview.cli import command, options
from traceview.cli.fleet import EXIT_SKIPPED, common_folder, report_skipped
from traceview.cli.outputs import check_outputs, print_bytes, print_out, progress, write_document
from traceview.errors import OutputError, RequestError
from traceview.report.files import is_stdout, refuse_link

ALL_RANKS = "all-ranks.pftrace"
FORMATS = ("perfetto", "parquet")  # as in traceview.captures.export, which this command imports later


@command(
    "traceview export report.sqlite",
    "traceview export report.sqlite --format parquet -o tables",
    "traceview export 'rank*.sqlite' --format perfetto -o all-ranks.pftrace",
)
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True)
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
    reports: tuple[str, ...],
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

    perfetto writes a file for ui.perfetto.dev, with the findings and predictions of `analyze` and `whatif` as tracks;
    parquet writes a folder of tables, for polars, pandas and DuckDB.

    Several reports, a folder or a quoted pattern become one Perfetto trace on one clock, with arrows between the ranks
    of a collective.
    """
    from traceview.captures.export import FORMATS as SUFFIXES
    from traceview.captures.export import Written
    from traceview.pipeline import check_window, narrowed_trace, open_trace
    from traceview.ranks.analyze_reports import find_reports

    check_window((start, end), range_name)
    paths = find_reports(reports)
    if len(paths) > 1:
        if (start, end, range_name, device) != (None, None, None, None):
            raise RequestError("--from, --to, --range and --device narrow one report, and here are several")
        _export_many(paths, form, output, json_path, quiet)
        return
    report = options.CAPTURE.convert(paths[0], None, click.get_current_context())
    assert isinstance(report, Path), "the type of CAPTURE's paths"
    target = output or report.with_name(f"{_stem(report)}{SUFFIXES[form]}")
    if output is None:
        refuse_link(target, "--output")
    _check_target((report,), form, target, json_path)
    with progress(quiet) as step:
        from traceview.captures.export import collect, pieces
        from traceview.captures.export import write as write_export

        step("read", 0.0)
        trace = open_trace(report)
        step("collect", 0.3)
        contents = collect(narrowed_trace(trace, (start, end), range_name), device)
        if form == "perfetto":
            from traceview.ranks.merged_trace import with_answers

            step("analyze", 0.4)
            contents = with_answers(contents, device)
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


def _export_many(paths: tuple[Path, ...], form: str, output: Path | None, json_path: Path | None, quiet: bool) -> None:
    """Write one Perfetto trace of several reports; exit with the code of `fleet` if some cannot be read."""
    if form != "perfetto":
        raise RequestError(f"--format {form} takes one report; --format perfetto takes several")
    target = output or common_folder(paths) / ALL_RANKS
    if output is None:
        refuse_link(target, "--output")
    _check_target(paths, form, target, json_path)
    with progress(quiet) as step:
        from traceview.captures.export import Written, write_trace
        from traceview.ranks.analyze_reports import analyze_reports
        from traceview.ranks.merged_trace import merged_trace

        fleet = analyze_reports(paths, max_shown=None, progress=lambda text, done: step(text, done / 2))
        count = len(fleet.reports)
        pieces = merged_trace(paths, fleet, lambda done: step(f"write {done:,} of {count:,}", (1 + done / count) / 2))
        if is_stdout(target):
            print_bytes(pieces)
        else:
            write_trace(target, pieces)
    in_document = not is_stdout(target) and write_document(json_path, Written.from_output(form, target))
    if not quiet and not in_document and not is_stdout(target):
        from traceview.model.units import plain
        from traceview.report.fleet.terminal import clocks_line

        print_out(f"{plain(str(target), 4000)}\n{clocks_line(fleet)}\n")
    report_skipped(fleet)
    if fleet.skipped:
        sys.exit(EXIT_SKIPPED)


def _check_target(reports: tuple[Path, ...], form: str, target: Path, json_path: Path | None) -> None:
    from traceview.captures.export import check_output
    from traceview.read.formats import check_capture

    if len(reports) == 1:
        check_capture(reports[0])
    if is_stdout(target):
        if json_path is not None:
            raise OutputError("--json lists the written files, and -o - writes none")
        if form == "parquet":
            raise OutputError(f"--format {form} writes a folder of tables, not standard output")
        if form == "perfetto" and sys.stdout.isatty():
            raise OutputError("a Perfetto trace is binary; send it to a file or a program, not to a terminal")
        return
    check_output(form, target)
    check_outputs(reports, (json_path,), exported=target)
