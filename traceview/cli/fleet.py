"""The `fleet` command: one result from the reports of many ranks; and the quantities of its `--fail-if`.

A condition on a quantity of ranks holds when it holds for any rank. `%` refers to the rank's wall time, for straggler
and own to the own time of a typical iteration.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceview.cli import command
from traceview.cli.conditions import Condition, ConditionValue, parse_condition
from traceview.cli.options import (
    ITERATION,
    JSON,
    MARKDOWN,
    NO_HTML,
    OPEN,
    OUTPUT,
    QUIET,
    SKIP,
    VERBOSE,
    fail_if_option,
    page_path,
    parse_size,
    reading_options,
    top_option,
)
from traceview.cli.outputs import (
    check_outputs,
    exit_if_any,
    print_error,
    print_out,
    progress,
    text_of,
    write_output,
    write_results,
)
from traceview.engine.memory import check_memory
from traceview.errors import RequestError
from traceview.report.files import refuse_link

if TYPE_CHECKING:
    from traceview.model.fleet import Fleet, Rank


EXIT_SKIPPED = 3
MAX_LISTED_SKIPPED = 10
PAGE = "fleet.overlap.html"


@command(
    "traceview fleet 'runs/rank*.sqlite'",
    "traceview fleet runs --workers 4 --fail-if 'straggler > 5%'",
)
@click.argument("reports", nargs=-1, required=True, metavar="REPORT...")
@click.option("--html", type=OUTPUT, help=f"Write the page to this file.  [default: {PAGE} beside the reports]")
@NO_HTML
@OPEN
@JSON
@MARKDOWN
@ITERATION
@SKIP
@click.option(
    "--margin",
    type=click.FloatRange(0, 1000),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="A rank is a straggler when its own time exceeds the others' median by more than PERCENT and its noise.",
)
@click.option(
    "--workers", type=click.IntRange(1, 512), metavar="N", help="Number of local processes.  [default: one per CPU]"
)
@click.option(
    "--memory",
    type=parse_size,
    metavar="SIZE",
    help="Memory of each worker, about. A larger SQLite export is measured in parts.  "
    "[default: half of what is free, divided by the workers]",
)
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Read and merge on a Dask cluster, for example tcp://host:8786. The scheduler can run code on this machine: "
    "use tls:// on a network that you do not control.",
)
@top_option("Maximum number of rows in each list.")
@fail_if_option("straggler > 5%")
@reading_options
@VERBOSE
@QUIET
def fleet(
    reports: tuple[str, ...],
    html: Path | None,
    no_html: bool,
    opened: bool,
    json_path: Path | None,
    markdown: Path | None,
    iteration: str | None,
    skip: int | None,
    margin: float,
    workers: int | None,
    memory: int | None,
    scheduler: str | None,
    top: int,
    conditions: tuple[str, ...],
    junit: Path | None,
    verbose: bool,
    quiet: bool,
) -> None:
    """Compare the ranks of a run: write one offline HTML page and print a summary.

    REPORT is an .sqlite file from `nsys export --type sqlite`, a trace of torch.profiler, a folder of either, or a
    quoted pattern such as 'runs/rank*.sqlite'. A report contains one rank or several.
    """
    if workers is not None and scheduler is not None:
        raise RequestError("--workers is for this machine and --scheduler for a cluster; use one of them")
    check_memory(memory)
    page = page_path(html, no_html, opened, Path(PAGE))
    from traceview.ranks.analyze_reports import analyze_reports, find_fleet
    from traceview.ranks.worker import Job
    from traceview.report.fleet import render, to_json

    checks = tuple(parse(condition) for condition in conditions)
    paths = find_fleet(reports)
    local = tuple(path for path in paths if isinstance(path, Path))
    if page is not None and html is None:
        refuse_link(page := common_folder(local) / PAGE, "--html")
    check_outputs(local, (page, json_path, markdown, junit))
    job = Job(iteration, skip, memory=memory)
    with progress(quiet) as step:
        result = analyze_reports(paths, job, workers=workers, scheduler=scheduler, margin=margin / 100, progress=step)
        failed = tuple(failures(checks, result))
        step("write", 0.95)
        summary = None if quiet else partial(text_of, "fleet.terminal", result, verbose, top=top)
        text = write_results(page, partial(render, result), json_path, partial(to_json, result), summary)
    print_out("" if write_output(markdown, result.to_markdown) else text)
    if opened and page is not None:
        click.launch(page.resolve().as_uri())
    report_skipped(result)
    exit_if_any((f"--fail-if {line}" for line in failed), junit, (f"--fail-if {check.text}" for check in checks))
    if result.skipped:
        sys.exit(EXIT_SKIPPED)


def common_folder(paths: tuple[Path, ...]) -> Path:
    """Return the deepest folder that contains all paths; the working folder without any."""
    return Path() if not paths else Path(os.path.commonpath([path.absolute().parent for path in paths]))


def report_skipped(fleet: Fleet) -> None:
    """Print the skipped reports as errors."""
    for report in fleet.skipped[:MAX_LISTED_SKIPPED]:
        print_error(f"traceview: skipped {report.file}: {report.reason}")
    if len(fleet.skipped) > MAX_LISTED_SKIPPED:
        more = len(fleet.skipped) - MAX_LISTED_SKIPPED
        print_error(f"traceview: skipped {more} more; the JSON and the page list all")


def _uncertainty(of_clocks: Sequence[int | None]) -> int | None:
    """Return the largest uncertainty of clocks; None if fewer than two are known: a single clock is the reference."""
    known = [ns for ns in of_clocks if ns is not None]
    return max(known) if len(known) > 1 else None


RANK_TIMES: Mapping[str, Callable[[Rank], int | None]] = {
    "straggler": lambda rank: rank.lag,
    "own": lambda rank: rank.own,
    "wait": lambda rank: rank.bare_wait if rank.matched else None,
    "caused": lambda rank: rank.bare_caused if rank.matched else None,
    "wall": lambda rank: rank.wall,
    "compute": lambda rank: rank.compute,
    "exposed_communication": lambda rank: rank.exposed_communication,
    "idle": lambda rank: rank.idle,
}
SHARES_OF_TYPICAL = ("straggler", "own")
# None: not measured.
FLEET_TIMES: Mapping[str, Callable[[Fleet], int | None]] = {
    "skew.median": lambda fleet: max((group.skew_median for group in fleet.groups), default=None),
    "skew.p95": lambda fleet: max((group.skew_p95 for group in fleet.groups), default=None),
    "clock.uncertainty": lambda fleet: _uncertainty([clock.uncertainty for clock in fleet.clocks]),
}
COUNTS: Mapping[str, Callable[[Fleet], int | None]] = {
    "stragglers": lambda fleet: len(fleet.stragglers) if any(rank.lag is not None for rank in fleet.ranks) else None,
    "ranks": lambda fleet: len(fleet.ranks),
    "reports": lambda fleet: len(fleet.reports),
    "skipped": lambda fleet: len(fleet.skipped),
    "unmatched": lambda fleet: fleet.unmatched if fleet.unmatched or fleet.groups else None,
}
TWO_RANKS = "it needs two ranks with three iterations each"
COLLECTIVES = "it needs collectives that two ranks take part in"
NEEDS = {
    **dict.fromkeys((*RANK_TIMES, "stragglers"), TWO_RANKS),
    **dict.fromkeys(("wait", "caused", *FLEET_TIMES, "unmatched"), COLLECTIVES),
}
QUANTITIES = (*RANK_TIMES, *FLEET_TIMES, *COUNTS)


def parse(text: str) -> Condition:
    """Parse one condition. Raises RequestError."""
    condition = parse_condition(text, QUANTITIES, example="straggler > 5%")
    condition.check_unit("count" if condition.quantity in COUNTS else "time")
    if condition.quantity in FLEET_TIMES and condition.unit == "%":
        condition.refuse(f"{condition.quantity} is a time; compare it with ns, us, ms or s")
    return condition


def failures(conditions: Iterable[Condition], fleet: Fleet) -> Iterator[str]:
    """Yield one line for each condition that holds; for a quantity of ranks, the line names the rank with the most.

    Raises RequestError where a quantity was not measured.
    """
    for condition in conditions:
        quantity = condition.quantity
        values = condition.known(_values(quantity, fleet))
        if not values:
            raise RequestError(f"--fail-if {condition.text}: {quantity} was not measured; {NEEDS[quantity]}")
        failing = [value for value in values if condition.holds(condition.in_unit(value))]
        if failing:
            more = f" and on {len(failing) - 1} more" if len(failing) > 1 else ""
            most = max(failing, key=lambda value: value.figure)
            yield condition.line(most, "count" if quantity in COUNTS else "time", more)


def _values(quantity: str, fleet: Fleet) -> Iterator[ConditionValue]:
    """Yield a value for each rank, with the time of the rank that is 100%, or one for the fleet."""
    if quantity in RANK_TIMES:
        for rank in fleet.ranks:
            figure, total = RANK_TIMES[quantity](rank), rank.typical if quantity in SHARES_OF_TYPICAL else rank.wall
            if figure is not None:
                yield ConditionValue(figure, total or 0, rank.label)
    elif (figure := {**FLEET_TIMES, **COUNTS}[quantity](fleet)) is not None:
        yield ConditionValue(figure)
