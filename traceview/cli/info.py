"""The `info` command: what a capture contains and what is missing."""

from __future__ import annotations

from pathlib import Path

import click

from traceview.cli.options import REPORT, reading_options
from traceview.cli.outputs import print_out


@click.command()
@REPORT
@reading_options
def info(report: Path) -> None:
    """List what REPORT contains and what is missing. Measures nothing."""
    from traceview.info import describe, lines

    print_out("".join(f"{line}\n" for line in lines(describe(report))))
