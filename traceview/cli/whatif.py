"""The `whatif` command: the predicted effect of changes."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from traceview.cli import command, options
from traceview.cli.outputs import check_outputs, print_out, progress, screen, text_of, write_output
from traceview.errors import RequestError
from traceview.report.files import write_text


@command(
    "traceview whatif report.sqlite",
    "traceview whatif report.sqlite --faster gemm=1.5",
    "traceview whatif report.sqlite --ranks 2 --gradients 253MB --html out.html",
    "traceview whatif 'runs/rank*.sqlite'",
)
@click.argument("reports", metavar="REPORT...", nargs=-1, required=True)
@options.JSON
@click.option("--html", "html_path", type=options.PAGE_OUTPUT, help="Write the page, with the critical path as a row.")
@options.ITERATION
@options.SKIP
@click.option("--faster", multiple=True, metavar="KERNEL=TIMES", help="Assume KERNEL runs TIMES x faster. Repeatable.")
@click.option("--ranks", type=click.IntRange(min=2), metavar="N", help="Assume N GPUs of a host, each with a batch.")
@click.option(
    "--gradients", type=options.parse_size, metavar="SIZE", help="Bytes that --ranks averages: often 4 a parameter."
)
@click.option("--all-ranks", is_flag=True, help="Replay all GPUs of REPORT together, as its ranks.")
@options.UNPROFILED
@options.reading_options
@options.VERBOSE
@options.QUIET
def whatif(
    reports: tuple[str, ...],
    json_path: Path | None,
    html_path: Path | None,
    iteration: str | None,
    skip: int | None,
    faster: tuple[str, ...],
    ranks: int | None,
    gradients: int | None,
    all_ranks: bool,
    unprofiled_ns: int | None,
    verbose: bool,
    quiet: bool,
) -> None:
    """Predict the duration of an iteration of REPORT after each change, and what limits it then.

    REPORT is a capture as for `analyze`. Without NVTX ranges, iterations are the repeating unit of the launches.

    Several reports, a folder or a quoted pattern are the ranks of a run: they are replayed together, each collective
    waits for the last rank, and changes are made on the rank that the others wait for, and on all.
    """
    faster_kernels = dict(_kernel_and_factor(text) for text in faster)
    _check_options(ranks, gradients)
    from traceview.ranks.analyze_reports import find_reports
    from traceview.read.formats import check_capture

    paths = find_reports(reports)
    if len(paths) > 1 or all_ranks:
        if (html_path, ranks, unprofiled_ns) != (None,) * 3 or faster:
            raise RequestError("--html, --faster, --ranks and --unprofiled-ms are for a report alone")
        _across_ranks(paths, json_path, iteration, skip, verbose, quiet)
        return
    named = Path(reports[0])  # a folder of one report may have other captures
    report = options.CAPTURE.convert(named if named.exists() else paths[0], None, click.get_current_context())
    assert isinstance(report, Path), "the type of CAPTURE's paths"
    check_capture(report)
    check_outputs((report,), (html_path, json_path))
    from traceview.model.analysis import AnalysisOptions, NotMeasured
    from traceview.pipeline import analyze_capture
    from traceview.replay.changes import ranks as data_parallel
    from traceview.replay.prediction import whatif as run
    from traceview.report.whatif import render_bounds, to_json

    with progress(quiet) as step:
        how = AnalysisOptions(iteration=iteration, skip=skip, unprofiled_ns=unprofiled_ns)
        capture = analyze_capture(report, how, progress=step)
        analysis = capture.analysis
        step("predict", 0.95)
        more = (data_parallel(ranks, gradients),) if ranks and gradients else ()
        result = run(analysis, faster_kernels=faster_kernels or None, more=more)
    if isinstance(result, NotMeasured):
        if html_path is not None or json_path is not None or faster or more:
            raise RequestError(f"{report.name}: nothing can be predicted: {result.reason}")
        if not quiet:
            print_out(render_bounds(analysis, result, screen()))
        return
    if html_path is not None:
        from traceview.pipeline.page import page_inputs
        from traceview.report.analysis.page import render as render_page

        write_text(html_path, render_page(page_inputs(capture), whatif=result))
    if not write_output(json_path, partial(to_json, result)) and not quiet:
        print_out(text_of("whatif", result, verbose))


def _check_options(ranks: int | None, gradients: int | None) -> None:
    """Raise RequestError for options that make no sense."""
    if gradients == 0:
        raise RequestError("--gradients 0: give the size of the gradients, usually 4 bytes per parameter")
    if (ranks is None) != (gradients is None):
        raise RequestError("--ranks and --gradients belong together, for example --ranks 2 --gradients 253MB")


def _across_ranks(
    paths: tuple[Path, ...], json_path: Path | None, iteration: str | None, skip: int | None, verbose: bool, quiet: bool
) -> None:
    """Predict the iteration of several ranks, and print or write it."""
    check_outputs(paths, (json_path,))
    from traceview.ranks.whatif import whatif_ranks
    from traceview.report.whatif import to_json

    with progress(quiet) as step:
        result = whatif_ranks(paths, iteration=iteration, skip=skip, progress=step)
    if not write_output(json_path, partial(to_json, result)) and not quiet:
        print_out(text_of("whatif", result, verbose))


def _kernel_and_factor(text: str) -> tuple[str, float]:
    """Parse KERNEL=TIMES. Raises RequestError."""
    name, _, factor = text.rpartition("=")
    try:
        if name:
            return name, float(factor)
    except ValueError:
        pass
    raise RequestError(f"--faster {text}: write KERNEL=TIMES, for example gemm=1.5")
