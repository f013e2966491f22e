"""The `info` command: what a capture contains and what is missing."""

from __future__ import annotations

from pathlib import Path

import click

from traceview.cli import examples
from traceview.cli.options import REPORT, VERBOSE, reading_options
from traceview.cli.outputs import print_out, screen

MORE = "every stream, table, range and check of the capture's health"


@click.command()
@REPORT
@reading_options
@VERBOSE
@examples(
    "traceview info report.sqlite",
    "traceview info report.nsys-rep -v",
)
def info(report: Path, verbose: bool) -> None:
    """List what REPORT contains and what is missing. Measures nothing."""
    from traceview.info import brief_lines, describe, lines

    contents = describe(report)
    parts = [list((lines if verbose else brief_lines)(contents))]
    print_out(screen().text(parts) if verbose else screen().brief(parts, MORE))
