"""The `analyze` command: measure a capture, write the page and the JSON, print the summary."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from traceview.cli import command, options
from traceview.cli.outputs import check_outputs, print_error, print_out, progress, text_of, write_results
from traceview.errors import RequestError
from traceview.report.files import refuse_link

if TYPE_CHECKING:
    from traceview.pipeline.model import AnalyzedCapture


@command(
    "traceview analyze report.sqlite",
    "traceview analyze report.nsys-rep -v --open",
    "traceview analyze report.sqlite --json out.json --no-html --quiet",
    "traceview analyze report.sqlite --from 120ms --to 1.5s",
    "traceview analyze report.sqlite --fail-if 'exposed_h2d > 5%'",
)
@options.REPORT
@click.option("--html", type=options.PAGE_OUTPUT, help="Write the page here.  [default: REPORT.overlap.html]")
@options.NO_HTML
@click.option(
    "--detail",
    type=options.parse_size,
    metavar="SIZE",
    help="Maximum size of the page. A larger page shows more events one by one.  [default: 15MB]",
)
@options.OPEN
@options.JSON
@options.MARKDOWN
@click.option(
    "--with",
    "others",
    type=options.FILE,
    multiple=True,
    metavar="FILE",
    help="A table of Nsight Compute of the same program (`ncu --csv --page raw`): what limits its kernels. Repeatable.",
)
@options.window_options
@options.DEVICE
@options.ITERATION
@options.SKIP
@click.option(
    "--whole", is_flag=True, help="Use the whole window, not only the iterations, for findings, shares and bars."
)
@click.option(
    "--flops-per-iteration",
    metavar="FLOPS",
    type=options.parse_flops,
    help="Floating-point operations of an iteration on one GPU, for example 1.2e15 or 1.2P, to compute its MFU.",
)
@options.top_option("Maximum number of rows in each list. Totals do not change.")
@options.UNPROFILED
@options.reading_options
@options.fail_if_option("exposed_h2d > 5%")
@options.VERBOSE
@options.QUIET
def analyze(
    report: Path,
    html: Path | None,
    no_html: bool,
    detail: int | None,
    opened: bool,
    json_path: Path | None,
    markdown: Path | None,
    others: tuple[Path, ...],
    conditions: tuple[str, ...],
    junit: Path | None,
    verbose: bool,
    quiet: bool,
    start: str | None,
    end: str | None,
    range_name: str | None,
    **given: Any,
) -> None:
    """Analyze REPORT: write one offline HTML page and print a summary.

    REPORT is an nsys export (.sqlite, parquetdir or arrowdir), an .nsys-rep file, or a Chrome trace of
    torch.profiler.
    """
    page = options.page_path(html, no_html, opened, report.with_name(f"{report.stem}.overlap.html"))
    if page is None and detail is not None:
        raise RequestError("--detail needs the page and does not go with --no-html")
    if page is not None:
        from traceview.report.assets import library

        # plotly.js is packed on another core, without the interpreter lock, which imports and reading hold.
        ThreadPoolExecutor(1).submit(library)
    from traceview.read.formats import check_capture

    check_capture(report)
    if page is not None and html is None:
        refuse_link(page, "--html")
    check_outputs((report, *others), (page, json_path, markdown, junit))
    from traceview.cli.conditions import check_results, conditions_of, exit_if_failed, with_checks
    from traceview.report.analysis import document, to_json

    chosen = conditions_of("analyze", conditions)
    with progress(quiet) as step:
        from traceview.model.analysis import AnalysisOptions
        from traceview.pipeline import analyze_capture

        capture = analyze_capture(
            report, AnalysisOptions(**given), window=(start, end), range_name=range_name, others=others, progress=step
        )
        analysis = capture.analysis
        checks = check_results(chosen, partial(document, analysis))
        step("write", 0.95)
        summary = (
            None if quiet else partial(text_of, "analysis.terminal", analysis, verbose, top=_chosen_top(given["top"]))
        )
        documents = (
            (json_path, partial(to_json, analysis)),
            (markdown, partial(with_checks, analysis.to_markdown, checks)),
        )
        text = write_results(page, partial(_to_html, capture, detail), documents, summary)
    print_out(text)
    if opened and page is not None:
        click.launch(page.resolve().as_uri())
    exit_if_failed(checks, junit)


def _to_html(capture: AnalyzedCapture, detail: int | None) -> str:
    """Return the page; print a warning where it exceeds --detail."""
    from traceview.model.units import size
    from traceview.pipeline.page import page_inputs
    from traceview.report.analysis.page import DETAIL, render

    html = render(page_inputs(capture), DETAIL if detail is None else detail)
    if detail is not None and len(html) > detail:
        print_error(f"traceview: --detail {size(detail)} is too small: the page needs {size(len(html))}")
    return html


def _chosen_top(top: int) -> int | None:
    """Return --top if the user gives it, else None: then each table has its own length."""
    source = click.get_current_context().get_parameter_source("top")
    return None if source is ParameterSource.DEFAULT else top
