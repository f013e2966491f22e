"""The `compare` command: what changed between captures, for a terminal, a pull request or CI."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceview.cli import command, options
from traceview.cli.outputs import check_outputs, print_out, progress, text_of, write_results
from traceview.errors import RequestError

if TYPE_CHECKING:
    from traceview.cli.conditions import CheckResult
    from traceview.model.comparison import Comparison


@command(
    "traceview compare before.sqlite after.sqlite",
    "traceview compare before.sqlite after.sqlite --markdown - >> summary.md",
    "traceview compare before.sqlite after.sqlite --change pin,sync",
    "traceview compare main.json after.sqlite --fail-on-regression",
)
@click.argument("captures", type=options.CAPTURE, nargs=-1, metavar="BEFORE AFTER...")
@options.JSON
@options.MARKDOWN
@options.ITERATION
@options.SKIP
@options.DEVICE
@click.option(
    "--min-change",
    type=click.FloatRange(0, 100, max_open=True),
    callback=lambda _context, _option, percent: percent / 100,
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="Ignore changes of the mean time below PERCENT.",
)
@options.top_option("Maximum number of kernels in the list.")
@click.option(
    "--unprofiled-ms",
    "unprofiled_ns",
    multiple=True,
    type=options.parse_milliseconds,
    metavar="MS",
    help="The measured time of an iteration without the profiler; once for each capture, in their order.",
)
@click.option(
    "--change",
    "changes",
    callback=lambda _context, _option, ids: tuple(ids.replace("+", ",").split(",")) if ids is not None else (),
    metavar="ID[,ID]",
    help="Show what whatif predicts from BEFORE for these changes.",
)
@options.fail_if_option("iteration > 3%")
@click.option("--fail-on-regression", is_flag=True, help="Exit with code 1 if a capture is slower beyond noise.")
@options.reading_options
@options.VERBOSE
@options.QUIET
def compare(
    captures: tuple[Path, ...],
    json_path: Path | None,
    markdown: Path | None,
    top: int,
    conditions: tuple[str, ...],
    junit: Path | None,
    fail_on_regression: bool,
    verbose: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Compare the steady iterations of BEFORE with those of each AFTER.

    Each is an nsys export (.sqlite, parquetdir or arrowdir), an .nsys-rep file, a Chrome trace of torch.profiler, or
    the document that `traceview analyze --json` wrote of one.
    """
    if len(captures) < 2:
        raise RequestError("compare takes BEFORE and AFTER, two captures or more")
    from traceview.cli.conditions import check_results, conditions_of, exit_if_failed, with_checks
    from traceview.comparison import compare as run
    from traceview.report.comparison import document, to_json
    from traceview.report.comparison.terminal import to_markdown

    chosen = conditions_of("compare", conditions)
    _check_paths(captures, json_path, markdown, junit)
    with progress(quiet) as step:
        comparison = run(*captures, progress=step, **given)
        checks = check_results(chosen, partial(document, comparison))
    if fail_on_regression:
        checks = (*checks, _regression(comparison))
    documents = (
        (json_path, partial(to_json, comparison)),
        (markdown, partial(with_checks, partial(to_markdown, comparison, top=top), checks)),
    )
    summary = None if quiet else partial(text_of, "comparison.terminal", comparison, verbose, top=top)
    print_out(write_results(None, str, documents, summary))
    exit_if_failed(checks, junit)


def _regression(comparison: Comparison) -> CheckResult:
    """Return the check that no capture is slower than the base; its reason names those that are."""
    from traceview.cli.conditions import CheckResult
    from traceview.report.comparison.tables import headline

    slower = [against for against in comparison.against if against.verdict == "slower"]
    reasons = [f"{against.capture.file} is {headline(against)}" for against in slower]
    verdicts = ", ".join(against.verdict for against in comparison.against)
    return CheckResult("--fail-on-regression", verdicts, not slower, "; ".join(reasons) or f"the verdict is {verdicts}")


def _check_paths(reports: tuple[Path, ...], *outputs: Path | None) -> None:
    """Check the captures, the documents and the outputs. Raises TraceviewError."""
    from traceview.read.formats import check_capture, is_document

    for report in reports:
        if not is_document(report):
            check_capture(report)
    check_outputs(reports, outputs)
