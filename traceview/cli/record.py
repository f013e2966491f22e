"""The `record` and `doctor` commands: programs under nsys on this machine."""

from __future__ import annotations

import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceview.cli import command, options
from traceview.cli.outputs import check_outputs, print_error, print_out, screen, write_document
from traceview.errors import RequestError, TraceviewError
from traceview.model.units import plain
from traceview.report.files import is_stdout

if TYPE_CHECKING:
    from traceview.captures.record import SteadyIterations


_POSITIVE = click.FloatRange(min=0, min_open=True)


@command(
    "traceview record -- python train.py",
    "traceview record --python --iterations 20 -o first -- python train.py",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option(
    "--output",
    "-o",
    type=options.FILE,
    default=Path("report"),
    show_default=True,
    help="The report, without .nsys-rep.",
)
@click.option("--force", "replaces", is_flag=True, help="Replace a report of this name.")
@click.option("--python", is_flag=True, help="Sample Python stacks: lines that make the GPU wait.")
@click.option("--gpu-metrics", is_flag=True, help="Sample counters of the GPU, if its driver allows it.")
@click.option("--trace", "traced", metavar="APIS", help="What nsys traces.  [default: cuda,nvtx]")
@click.option("--delay", type=_POSITIVE, metavar="SECONDS", help="Start to record after this time.")
@click.option("--seconds", type=_POSITIVE, metavar="SECONDS", help="Record for this time, and end the program then.")
@click.option(
    "--iterations", type=click.IntRange(min=1), metavar="N", help="End the program after a warm-up and N iterations."
)
@options.JSON
@options.OPEN
@options.NO_HTML
@options.QUIET
@options.reading_options
@click.pass_context
def record(
    context: click.Context, /, json_path: Path | None, opened: bool, no_html: bool, quiet: bool, **given: Any
) -> None:
    """Run COMMAND under nsys with the options that traceview needs, and analyze the report.

    Write -- before COMMAND. Started on each rank by torchrun, srun or mpirun, it adds the rank to the report's name,
    and leaves the analysis to `traceview fleet`.
    """
    from traceview.captures.record import TRACED, Recording, rank_of_process
    from traceview.captures.record import record as run
    from traceview.cli.analyze import analyze

    if given["iterations"] and given["seconds"]:
        raise RequestError("--iterations and --seconds both end the recording; use one of them")
    if no_html and opened:
        raise RequestError("--open needs the page and does not go with --no-html")
    output, rank = given["output"], rank_of_process()
    if rank is not None:
        if json_path is not None or opened:
            raise RequestError("--json and --open are for one process; run traceview fleet on the ranks' reports")
        output = output.with_name(f"{output.name}_rank{rank}")
    recording = Recording(**given | {"output": output, "traced": given["traced"] or TRACED})
    check_outputs((recording.report, recording.report.with_suffix(".qdstrm")), (json_path,))
    if code := run(recording, partial(_steady_iterations, quiet=quiet)):
        print_error(f"traceview: the program ended with exit code {code}; the report is kept")
    if rank is not None:
        if not quiet:
            print_out(f"{plain(str(recording.report), 4000)}\n")
        return
    context.invoke(analyze, report=recording.report, json_path=json_path, opened=opened, no_html=no_html, quiet=quiet)


def _steady_iterations(report: Path, quiet: bool) -> SteadyIterations:
    """Return the iterations of a report after the warm-up, and print their number."""
    from traceview.captures.record import SteadyIterations
    from traceview.model.analysis import Iterations
    from traceview.model.units import quantity
    from traceview.pipeline import analyze

    steady = SteadyIterations(0, None)
    with suppress(TraceviewError):
        iterations = analyze(report).iterations
        steady = SteadyIterations(0, 0)
        if isinstance(iterations, Iterations):
            steady = SteadyIterations(iterations.count - iterations.skipped, iterations.time_ns)
    if not quiet:
        text = (
            "no GPU work yet"
            if steady.time_ns is None
            else f"{quantity(steady.iterations, 'iteration')} after the warm-up"
        )
        print_error(f"traceview: {text}")
    return steady


@command("traceview doctor", "traceview doctor --nsys /opt/nvidia/nsight-systems/bin/nsys")
@options.JSON
@options.NSYS
@options.QUIET
def doctor(json_path: Path | None, quiet: bool) -> None:
    """Check whether this machine can record: nsys, the driver, permissions, the nvtx package.

    Exit code 1 if a check failed.
    """
    from traceview.captures.record import FAILED, Checks, checks
    from traceview.report.screen import wrap

    check_outputs((), (json_path,))
    done, columns = [], screen().columns
    for check in checks():
        done.append(check)
        text = wrap(plain(check.text, 2000), f"{check.status:<10}{check.name:<16}", " " * 26, columns)
        remedy = wrap(check.remedy, " " * 26, " " * 26, columns) if check.remedy else []
        if not quiet and not is_stdout(json_path):
            print_out("\n".join([*text, *remedy, ""]))
    can_record = all(check.status != FAILED for check in done)
    write_document(json_path, Checks(can_record, tuple(done)))
    if not can_record:
        sys.exit(1)
