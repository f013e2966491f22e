"""The `analyze` command: measure a capture, write the page and the JSON, print the summary."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceview.cli.options import EXPLAINED, all_options
from traceview.cli.outputs import complain, draws, print_out, progress, write_results
from traceview.errors import RequestError
from traceview.files import check_outputs, is_stdout

if TYPE_CHECKING:
    from traceview.model.analysis import Analysis

CHECK_FAILED = 1


@dataclass(frozen=True, slots=True)
class Asked:
    """Every option that changes the figures of an analysis."""

    start: str | None
    end: str | None
    range_name: str | None
    device: str | None
    iteration: str | None
    skip: int | None
    top: int


@click.command(epilog=EXPLAINED, short_help="Measure a capture, price its losses, write the page.")
@all_options
def analyze(
    report: Path,
    html: Path | None,
    no_html: bool,
    detail: int | None,
    opened: bool,
    json_path: Path | None,
    conditions: tuple[str, ...],
    quiet: bool,
    **asked: Any,
) -> None:
    """Analyze REPORT: an export of nsys (.sqlite and others), a .nsys-rep, or a Chrome trace of torch.profiler.

    Writes one offline HTML page and prints a summary.
    """
    from traceview.cli.conditions.analysis import failures, parse
    from traceview.read.formats import check_capture
    from traceview.report.analysis.document import to_json

    page = _page_path(report, html, no_html)
    if page is None and (opened or detail is not None):
        raise RequestError("--open and --detail are about the page; they do not go with --no-html")
    checks = tuple(parse(condition) for condition in conditions)
    check_capture(report)
    check_outputs((report,), (page, json_path))
    with progress(quiet) as step:
        analysis = analysis_of(report, step, Asked(**asked))
        failed = tuple(failures(checks, analysis))
        step("write", 0.95)
        summary = None if quiet else partial(_summary, analysis, asked["top"])
        text = write_results(page, partial(_page, analysis, detail), json_path, partial(to_json, analysis), summary)
    print_out(text)
    if opened and page is not None:
        click.launch(page.resolve().as_uri())
    for line in failed:
        complain(f"traceview: --fail-if {line}")
    if failed:
        sys.exit(CHECK_FAILED)


def analysis_of(report: Path, step: Callable[[str, float], None], asked: Asked) -> Analysis:
    """Read and measure a report. Raises TraceviewError."""
    if asked.range_name is not None and (asked.start, asked.end) != (None, None):
        raise RequestError("--range and --from/--to narrow the same window; give one of them")
    from traceview.cli.times import window_of_times
    from traceview.pipeline import analyze as run
    from traceview.pipeline import open_trace

    step("read", 0.0)
    trace = open_trace(report)
    return run(
        trace,
        window=window_of_times(trace, asked.start, asked.end),
        range_name=asked.range_name,
        device=asked.device,
        iteration=asked.iteration,
        skip=asked.skip,
        top=asked.top,
        progress=step,
    )


def _page_path(report: Path, html: Path | None, no_html: bool) -> Path | None:
    if html is not None and (no_html or is_stdout(html)):
        raise RequestError("--html names the file for the page; it goes neither with --no-html nor with -")
    return None if no_html else html or report.with_name(f"{report.stem}.overlap.html")


def _page(analysis: Analysis, detail: int | None) -> str:
    from traceview.report.analysis import DETAIL, render

    return render(analysis, detail or DETAIL)


def _summary(analysis: Analysis, top: int) -> str:
    from traceview.report.analysis import terminal

    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    return terminal.render(analysis, top=top, unicode=draws("█▓▒░·…µ"), colour=colour)
