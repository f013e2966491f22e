"""The `record` and `doctor` commands: record a program with nsys, and check whether that is possible here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from traceview.cli.options import FILE, NO_HTML, OPEN, QUIET, reading_options
from traceview.cli.outputs import print_error, print_out
from traceview.errors import RequestError

SECONDS = click.FloatRange(min=0, min_open=True)


@click.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--output", "-o", type=FILE, default=Path("report"), show_default=True, help="The report, without .nsys-rep."
)
@click.option("--force", is_flag=True, help="Replace a report of this name.")
@click.option("--python", is_flag=True, help="Sample Python stacks, which name the lines that make the GPU wait.")
@click.option("--trace", "traced", metavar="APIS", help="What nsys traces.  [default: cuda,nvtx]")
@click.option("--delay", type=SECONDS, metavar="SECONDS", help="Start to record after this time.")
@click.option("--seconds", type=SECONDS, metavar="SECONDS", help="Record for this time, and end the program then.")
@OPEN
@NO_HTML
@QUIET
@reading_options
@click.pass_context
def record(context: click.Context, /, opened: bool, no_html: bool, quiet: bool, **given: Any) -> None:
    """Run COMMAND under nsys with the options that traceview needs, and analyze the report.

    Write -- before COMMAND: traceview record -- python train.py
    """
    from traceview.cli.analyze import analyze
    from traceview.record import TRACED, Recording
    from traceview.record import record as run

    if no_html and opened:
        raise RequestError("--open needs the page and does not go with --no-html")
    recording = Recording(
        command=given["command"],
        output=given["output"],
        traced=given["traced"] or TRACED,
        python=given["python"],
        delay=given["delay"],
        seconds=given["seconds"],
        replaces=given["force"],
    )
    code = run(recording)
    if code:
        print_error(f"traceview: the program ended with exit code {code}; the report is analyzed nevertheless")
    context.invoke(analyze, report=recording.report, opened=opened, no_html=no_html, quiet=quiet)


@click.command()
@reading_options
def doctor() -> None:
    """Check whether this machine can record: nsys, the driver, permissions, the nvtx package.

    Exit code 1 if a check failed.
    """
    from traceview.record.doctor import FAILED, checks

    failed = False
    for check in checks():
        failed |= check.status == FAILED
        remedy = f"\n{'':10}{'':16}{check.remedy}" if check.remedy else ""
        print_out(f"{check.status:<10}{check.name:<16}{check.text}{remedy}\n")
    if failed:
        sys.exit(1)
