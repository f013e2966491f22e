"""The `whatif` command: what changes would give, before they are made."""

from __future__ import annotations

from pathlib import Path

import click

from traceview.cli.options import CAPTURE, FILE, reading_options, size
from traceview.cli.outputs import draws, print_out, progress
from traceview.errors import RequestError
from traceview.files import check_outputs, is_stdout, write_text


@click.command(short_help="Predict what changes would give, from the capture alone.")
@click.argument("report", type=CAPTURE)
@click.option("--json", "json_path", type=FILE, help="Write every figure as JSON; - is standard output, alone.")
@click.option("--html", "html_path", type=FILE, help="Write the page of the capture with its critical path on top.")
@click.option("--iteration", metavar="REGEX", help="NVTX ranges whose name matches are the iterations.")
@click.option("--skip", type=click.IntRange(min=0), metavar="N", help="Set the first N iterations aside as warm-up.")
@click.option(
    "--faster", multiple=True, metavar="KERNEL=TIMES", help="A kernel so many times as fast; may be given again."
)
@click.option("--ranks", type=click.IntRange(min=2), metavar="N", help="The same on N GPUs of one host, a batch each.")
@click.option("--gradients", callback=size, metavar="SIZE", help="What --ranks averages a step: 4 bytes a parameter.")
@reading_options
@click.option("--quiet", "-q", is_flag=True, help="Print no table and no progress.")
def whatif(
    report: Path,
    json_path: Path | None,
    html_path: Path | None,
    iteration: str | None,
    skip: int | None,
    faster: tuple[str, ...],
    ranks: int | None,
    gradients: int | None,
    quiet: bool,
) -> None:
    """Predict what an iteration of REPORT would take with each change made, and what would bound it then.

    REPORT is a capture as for `analyze`, with a range for each iteration.
    """
    kernels = dict(_kernel(given) for given in faster)
    if gradients == 0:
        raise RequestError("--gradients 0: what is averaged has some size: 4 bytes a parameter, as a rule")
    if (ranks is None) != (gradients is None):
        raise RequestError(
            "--ranks and --gradients belong together, as in --ranks 2 --gradients 253MB: a capture of one "
            "GPU does not say how large the gradients are"
        )
    from traceview.read.formats import check_capture

    check_capture(report)
    check_outputs((report,), (html_path, json_path))
    from traceview.model.analysis import NotMeasured
    from traceview.pipeline import analyze
    from traceview.report.analysis import render as page
    from traceview.report.whatif.document import to_json
    from traceview.report.whatif.terminal import render
    from traceview.whatif import data_parallel
    from traceview.whatif import whatif as run

    with progress(quiet) as step:
        analysis = analyze(report, iteration=iteration, skip=skip, progress=step)
        step("predict", 0.95)
        more = (data_parallel(ranks, gradients),) if ranks and gradients else ()
        found = run(analysis, faster_kernels=kernels or None, more=more)
    if isinstance(found, NotMeasured):
        raise RequestError(f"{report.name}: nothing can be predicted: {found.reason}")
    if html_path is not None:
        write_text(html_path, page(analysis, path=found.spans))
    if is_stdout(json_path):
        print_out(to_json(found))
        return
    if json_path is not None:
        write_text(json_path, to_json(found))
    if not quiet:
        print_out(render(found, unicode=draws("·→µ")))


def _kernel(given: str) -> tuple[str, float]:
    name, _, times = given.rpartition("=")
    try:
        return (name or _refuse(given)), float(times)
    except ValueError:
        return _refuse(given), 0.0


def _refuse(given: str) -> str:
    raise RequestError(f"--faster {given}: give a kernel's name and how many times as fast, as in gemm=1.5")
