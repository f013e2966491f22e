"""The `fleet` command: one result from the reports of many ranks."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from traceview.cli import command, options
from traceview.cli.outputs import check_outputs, print_error, print_out, progress, text_of, write_results
from traceview.report.files import refuse_link

if TYPE_CHECKING:
    from traceview.model.fleet import Fleet


EXIT_SKIPPED = 3
MAX_LISTED_SKIPPED = 10
PAGE = "fleet.overlap.html"


@command("traceview fleet 'runs/rank*.sqlite'", "traceview fleet runs --workers 4 --fail-if 'straggler > 5%'")
@click.argument("reports", nargs=-1, required=True, metavar="REPORT...")
@click.option("--html", type=options.PAGE_OUTPUT, help="Write the page here.  [default: beside the reports]")
@options.NO_HTML
@options.OPEN
@options.JSON
@options.MARKDOWN
@options.ITERATION
@options.SKIP
@click.option(
    "--margin",
    type=click.FloatRange(0, 1000),
    callback=lambda _context, _option, percent: percent / 100,
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="A rank is a straggler when its own time exceeds the others' median by more than PERCENT and its noise.",
)
@click.option(
    "--workers", type=click.IntRange(1, 512), metavar="N", help="Number of processes.  [default: one per CPU]"
)
@options.top_option("Maximum number of rows in each list.")
@options.fail_if_option("straggler > 5%")
@options.reading_options
@options.VERBOSE
@options.QUIET
def fleet(
    reports: tuple[str, ...],
    html: Path | None,
    no_html: bool,
    opened: bool,
    json_path: Path | None,
    markdown: Path | None,
    top: int,
    conditions: tuple[str, ...],
    junit: Path | None,
    verbose: bool,
    quiet: bool,
    **given: Any,
) -> None:
    """Compare the ranks of a run: write one offline HTML page and print a summary.

    REPORT is an .sqlite file from `nsys export --type sqlite`, a trace of torch.profiler, a folder of either, or a
    quoted pattern such as 'runs/rank*.sqlite'. A report contains one rank or several.
    """
    page = options.page_path(html, no_html, opened, Path(PAGE))
    from traceview.cli.conditions import check_results, conditions_of, exit_if_failed, with_checks
    from traceview.ranks.analyze_reports import analyze_reports, find_reports
    from traceview.report.fleet import document, render, to_json

    chosen = conditions_of("fleet", conditions)
    paths = find_reports(reports)
    if page is not None and html is None:
        refuse_link(page := common_folder(paths) / PAGE, "--html")
    check_outputs(paths, (page, json_path, markdown, junit))
    with progress(quiet) as step:
        result = analyze_reports(paths, progress=step, **given)
        checks = check_results(chosen, partial(document, result))
        step("write", 0.95)
        summary = None if quiet else partial(text_of, "fleet.terminal", result, verbose, top=top)
        documents = (
            (json_path, partial(to_json, result)),
            (markdown, partial(with_checks, result.to_markdown, checks)),
        )
        text = write_results(page, partial(render, result), documents, summary)
    print_out(text)
    if opened and page is not None:
        click.launch(page.resolve().as_uri())
    report_skipped(result)
    exit_if_failed(checks, junit)
    if result.skipped:
        sys.exit(EXIT_SKIPPED)


def common_folder(paths: tuple[Path, ...]) -> Path:
    """Return the deepest folder that contains all paths."""
    return Path(os.path.commonpath([path.absolute().parent for path in paths]))


def report_skipped(fleet: Fleet) -> None:
    """Print the skipped reports as errors."""
    for report in fleet.skipped[:MAX_LISTED_SKIPPED]:
        print_error(f"traceview: skipped {report.file}: {report.reason}")
    if len(fleet.skipped) > MAX_LISTED_SKIPPED:
        more = len(fleet.skipped) - MAX_LISTED_SKIPPED
        print_error(f"traceview: skipped {more} more; the JSON and the page list all")
