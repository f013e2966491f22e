"""The `compare` command: what changed between captures, for a person, a pull request and CI."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceview.cli.options import CAPTURE, FILE, reading_options
from traceview.cli.outputs import complain, draws, print_out, progress
from traceview.errors import RequestError
from traceview.files import STDOUT, check_outputs, is_stdout, write_text

if TYPE_CHECKING:
    from traceview.model.comparison import Comparison

CHECK_FAILED = 1
EXPLAINED = """\b
EXPR is a QUANTITY, one of > >= < <= == !=, and a number with % ns us ms or s.
It speaks of the change, after less before, in an iteration; below zero is
less: 'wall > 3%', 'exposed_h2d > 1ms', 'sync.count > 0', 'wall > -10%'.
Medians, % of the base's wall:
  wall  compute  exposed_h2d  exposed_d2h  exposed_communication  other  twice
  no_gpu  idle  idle.CAUSE
Means, % of the base's wall, or of the base's count:
  sync.count .blocked .starved .refill .cost   implicit_sync.count ...
  launches  kernels  copies
CAUSE: profiler queued launch sync blocking_copy memory api host unknown

\b
Exit codes: 0 done; 1 a --fail-if holds, or slower with --fail-on-regression;
2 nothing can be said, and why; 130 interrupted.
"""


@click.command(epilog=EXPLAINED, short_help="Say what changed between captures, and whether it is noise.")
@click.argument("before", type=CAPTURE)
@click.argument("after", type=CAPTURE)
@click.argument("more", type=CAPTURE, nargs=-1)
@click.option("--json", "json_path", type=FILE, help="Write every figure as JSON; - is standard output, alone.")
@click.option("--html", type=FILE, help="Write one page with the timelines one above the other, locked together.")
@click.option("--markdown", type=FILE, help="Write a summary for a pull request; - is standard output, alone.")
@click.option("--iteration", metavar="REGEX", help="NVTX ranges whose name matches are the iterations.")
@click.option("--skip", type=click.IntRange(min=0), metavar="N", help="Set the first N iterations aside as warm-up.")
@click.option("--device", metavar="GPU", help="Only this device: its id ('GPU 0') or its ordinal.")
@click.option(
    "--cut",
    type=click.Choice(("auto", "range", "gpu")),
    default="auto",
    show_default=True,
    help="Where an iteration ends: with its range, or when the GPU has finished it.",
)
@click.option(
    "--least",
    type=click.FloatRange(0, 100, max_open=True),
    default=1.0,
    show_default=True,
    metavar="PERCENT",
    help="A smaller change of the wall is noise, however sure.",
)
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="How many kernels are listed."
)
@click.option(
    "--fail-if", "conditions", multiple=True, metavar="EXPR", help="Exit with 1 when this holds: 'wall > 3%'."
)
@click.option("--fail-on-regression", is_flag=True, help="Exit with 1 when a capture is slower beyond the noise.")
@reading_options
@click.option("--quiet", "-q", is_flag=True, help="Print no summary and no progress.")
def compare(
    before: Path,
    after: Path,
    more: tuple[Path, ...],
    json_path: Path | None,
    html: Path | None,
    markdown: Path | None,
    iteration: str | None,
    skip: int | None,
    device: str | None,
    cut: str,
    least: float,
    top: int,
    conditions: tuple[str, ...],
    fail_on_regression: bool,
    quiet: bool,
) -> None:
    """Compare captures by their steady iterations: each AFTER with BEFORE, a column each.

    All are exports of nsys (.sqlite and others), .nsys-rep files, or Chrome traces of torch.profiler.
    """
    from traceview.cli.conditions.comparison import failures, parse
    from traceview.comparison import compare as run

    checks = tuple(parse(condition) for condition in conditions)
    reports = (before, after, *more)
    if is_stdout(html):
        raise RequestError("--html names the file for the page; it does not go with -")
    _check_places(reports, json_path, markdown, html)
    with progress(quiet) as step:
        comparison = run(
            *reports, iteration=iteration, skip=skip, device=device, cut=cut, least=least / 100, progress=step
        )
        failed = [f"--fail-if {line}" for line in failures(checks, comparison)]
    if fail_on_regression:
        failed += _regressions(comparison)
    if html is not None:
        _write_page(comparison, html)
    _write(comparison, json_path, markdown, top, quiet)
    for line in failed:
        complain(f"traceview: {line}")
    if failed:
        sys.exit(CHECK_FAILED)


def _regressions(comparison: Comparison) -> list[str]:
    from traceview.report.comparison.phrases import headline

    return [
        f"--fail-on-regression: {one.capture.file} is {headline(one, comparison.cut)}"
        for one in comparison.against
        if one.verdict == "slower"
    ]


def _check_places(reports: tuple[Path, ...], *outputs: Path | None) -> None:
    """Refuse outputs that would overwrite a report or each other, or that cannot be written."""
    from traceview.read.formats import check_capture

    for report in reports:
        check_capture(report)
    if [str(path) for path in outputs].count(STDOUT) > 1:
        raise RequestError("--json - and --markdown - cannot both be standard output")
    check_outputs(reports, outputs)


def _write_page(comparison: Comparison, html: Path) -> None:
    from traceview.report.comparison import render

    write_text(html, render(comparison))


def _write(comparison: Comparison, json_path: Path | None, markdown: Path | None, top: int, quiet: bool) -> None:
    """Write what was asked for; the summary is printed unless something else goes to standard output."""
    from traceview.report.comparison.document import to_json
    from traceview.report.comparison.markdown import to_markdown
    from traceview.report.comparison.terminal import render

    documents = [
        (path, text)
        for path, text in (
            (json_path, "" if json_path is None else to_json(comparison)),
            (markdown, "" if markdown is None else to_markdown(comparison, top=top)),
        )
        if path is not None
    ]
    for path, text in documents:
        if is_stdout(path):
            print_out(text)
            quiet = True
        else:
            write_text(path, text)
    if not quiet:
        print_out(render(comparison, top=top, unicode=draws("→…µ")))
