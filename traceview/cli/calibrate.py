"""The `calibrate` command: measure what nsys adds to CUDA calls on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from traceview.cli import examples
from traceview.cli.options import OUTPUT, QUIET, reading_options
from traceview.cli.outputs import check_outputs, print_out, progress, write_output
from traceview.model.unprofiled import CALIBRATION
from traceview.report.files import refuse_link


@click.command()
@click.option(
    "--output",
    "-o",
    "--json",
    "output",
    type=OUTPUT,
    help=f'The file to write; "-" is standard output.  [default: {CALIBRATION}]',
)
@click.option("--rounds", type=click.IntRange(1, 20), default=5, show_default=True, help="Runs with and without nsys.")
@reading_options
@QUIET
@examples(
    "traceview calibrate",
    "traceview calibrate -o runs/traceview-calibration.json --rounds 10",
)
def calibrate(output: Path | None, rounds: int, quiet: bool) -> None:
    """Time CUDA calls with and without nsys, and write what it adds to them.

    Captures in the folder of the file then get the time without the profiler from it. The GPU should do nothing else
    meanwhile.
    """
    from traceview.captures.calibrate import calibrate as run

    if output is None:
        refuse_link(output := Path(CALIBRATION), "--output")
    check_outputs((), (output,))
    with progress(quiet) as step:
        document = run(rounds, step)
    text = json.dumps(document, indent=1) + "\n"
    if not write_output(output, lambda: text) and not quiet:
        print_out(f"{output.name}: nsys costs {document['scale']} times as much here as on the reference machine\n")
