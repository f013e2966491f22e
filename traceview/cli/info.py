"""The `info` command: what a capture holds and what is missing."""

from __future__ import annotations

from pathlib import Path

from traceview.cli import command
from traceview.cli.options import JSON, REPORT, VERBOSE, reading_options
from traceview.cli.outputs import check_outputs, print_out, screen, write_document

MORE = "every stream, table, range and check of the capture's health"


@command("traceview info report.sqlite", "traceview info report.nsys-rep -v")
@REPORT
@JSON
@reading_options
@VERBOSE
def info(report: Path, json_path: Path | None, verbose: bool) -> None:
    """List what REPORT contains and what is missing. Measures nothing."""
    from traceview.captures.info import describe, lines

    check_outputs((report,), (json_path,))
    contents = describe(report)
    if write_document(json_path, contents):
        return
    page = screen()
    parts = [list(lines(contents, page.columns, verbose=verbose))]
    print_out(page.text(parts) if verbose else page.brief(parts, MORE))
