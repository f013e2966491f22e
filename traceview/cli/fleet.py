"""The `fleet` command: many reports in one result."""

from __future__ import annotations

import os
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from traceview.cli.options import FILE, reading_options
from traceview.cli.outputs import complain, draws, print_out, progress, write_results
from traceview.errors import RequestError
from traceview.files import check_outputs, is_stdout

if TYPE_CHECKING:
    from traceview.fleet.job import Tls
    from traceview.model.fleet import Fleet

PEM = click.Path(exists=True, dir_okay=False, path_type=Path)
CHECK_FAILED, SOME_SKIPPED = 1, 3
PAGE = "fleet.overlap.html"
EXPLAINED = """\b
EXPR is a QUANTITY, one of > >= < <= == !=, and a number with % ns us ms or s.
Of each rank, an iteration; it holds when it holds on any:
  straggler  own     % of a typical iteration's own time
  wait  caused  wall  compute  exposed_communication  idle     % of its wall
Of the fleet, the largest:
  skew.median  skew.p95  clock.uncertainty
Counts, without a unit:
  stragglers  ranks  reports  skipped  unmatched
straggler: own time less the others' median; own: wall less exposed
communication; wait: waiting in collectives with nothing else to do, at the
least; caused: what the others waited so for this rank.

\b
Exit codes: 0 done; 1 a --fail-if holds; 2 nothing can be said, and why;
3 done, but reports were skipped; 130 interrupted.
"""


@click.command(epilog=EXPLAINED, short_help="Compare the ranks of many reports: stragglers, who waited for whom.")
@click.argument("reports", nargs=-1, required=True, metavar="REPORT...")
@click.option("--html", type=FILE, help=f"Where the page goes.  [default: {PAGE} beside the reports]")
@click.option("--no-html", is_flag=True, help="Write no page.")
@click.option("--open", "opened", is_flag=True, help="Open the page in a browser.")
@click.option("--json", "json_path", type=FILE, help="Write every figure as JSON; - is standard output, alone.")
@click.option("--iteration", metavar="REGEX", help="NVTX ranges whose name matches are the iterations.")
@click.option("--skip", type=click.IntRange(min=0), metavar="N", help="Set the first N iterations aside as warm-up.")
@click.option(
    "--margin",
    type=click.FloatRange(0, 1000),
    default=5.0,
    show_default=True,
    metavar="PERCENT",
    help="A rank is a straggler when its own time is longer than the others' by more than this and its scatter.",
)
@click.option("--workers", type=click.IntRange(1, 512), metavar="N", help="Processes here.  [default: one a CPU]")
@click.option(
    "--scheduler",
    metavar="ADDRESS",
    help="Read on a Dask cluster instead: tcp://host:8786. Whoever runs that address can run code here; "
    "use tls:// where others could.",
)
@click.option("--tls-ca-file", type=PEM, help="Certificate authority of a tls:// cluster, as PEM.")
@click.option("--tls-cert", type=PEM, help="Certificate of this client, as PEM.")
@click.option("--tls-key", type=PEM, help="Its private key, as PEM.  [default: in --tls-cert]")
@click.option(
    "--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="How long the lists are."
)
@click.option(
    "--fail-if", "conditions", multiple=True, metavar="EXPR", help="Exit with 1 when this holds: 'straggler > 5%'."
)
@reading_options
@click.option("--quiet", "-q", is_flag=True, help="Print no summary and no progress.")
def fleet(
    reports: tuple[str, ...],
    html: Path | None,
    no_html: bool,
    opened: bool,
    json_path: Path | None,
    iteration: str | None,
    skip: int | None,
    margin: float,
    workers: int | None,
    scheduler: str | None,
    tls_ca_file: Path | None,
    tls_cert: Path | None,
    tls_key: Path | None,
    top: int,
    conditions: tuple[str, ...],
    quiet: bool,
) -> None:
    """Compare the ranks of a run: one REPORT a rank, or reports with several processes.

    REPORT is an .sqlite file from `nsys export --type sqlite`, a folder of them, or a quoted pattern:
    'runs/rank*.sqlite'. Writes one offline HTML page and prints a summary.
    """
    if workers is not None and scheduler is not None:
        raise RequestError("--workers is about this machine, --scheduler about a cluster; give one of them")
    tls = _tls(scheduler, tls_ca_file, tls_cert, tls_key)
    if html is not None and (no_html or is_stdout(html)):
        raise RequestError("--html names the file for the page; it goes neither with --no-html nor with -")
    if opened and no_html:
        raise RequestError("--open is about the page; it does not go with --no-html")
    from traceview.cli.conditions.fleet import failures, parse
    from traceview.fleet.job import Job
    from traceview.fleet.run import fleet as run
    from traceview.fleet.sources import sources
    from traceview.read.limits import MAX_DECODED
    from traceview.read.nsys_rep import CHOSEN
    from traceview.report.fleet import render
    from traceview.report.fleet.document import to_json

    checks = tuple(parse(condition) for condition in conditions)
    paths = sources(reports)
    page = None if no_html else html or _beside(paths)
    check_outputs(paths, (page, json_path))
    job = Job(iteration, skip, CHOSEN.get(), MAX_DECODED.get())
    with progress(quiet) as step:
        found = run(paths, job, workers=workers, scheduler=scheduler, tls=tls, margin=margin / 100, progress=step)
        failed = tuple(failures(checks, found))
        step("write", 0.95)
        summary = None if quiet else partial(_summary, found, top)
        text = write_results(page, partial(render, found), json_path, partial(to_json, found), summary)
    print_out(text)
    if opened and page is not None:
        click.launch(page.resolve().as_uri())
    _end(found, failed)


def _tls(scheduler: str | None, ca_file: Path | None, cert: Path | None, key: Path | None) -> Tls | None:
    """Return the TLS files of a cluster; None where none are named. Raises RequestError."""
    if ca_file is None and cert is None and key is None:
        return None
    if scheduler is None or not scheduler.startswith("tls://"):
        raise RequestError("--tls-ca-file, --tls-cert and --tls-key need an encrypted --scheduler tls://HOST:PORT")
    if ca_file is None or cert is None:
        raise RequestError("--tls-ca-file and --tls-cert belong together; --tls-key may be in the latter's file")
    from traceview.fleet.job import Tls

    return Tls(ca_file, cert, key)


def _beside(paths: tuple[Path, ...]) -> Path:
    return Path(os.path.commonpath([path.absolute().parent for path in paths])) / PAGE


def _summary(fleet: Fleet, top: int) -> str:
    from traceview.report.fleet.terminal import render

    return render(fleet, top=top, unicode=draws("·…µ±"))


def _end(found: Fleet, failed: tuple[str, ...]) -> None:
    for one in found.skipped[:10]:
        complain(f"traceview: skipped {one.file}: {one.reason}")
    if len(found.skipped) > 10:
        complain(f"traceview: skipped {len(found.skipped) - 10} more; the JSON and the page name them all")
    for line in failed:
        complain(f"traceview: --fail-if {line}")
    if failed:
        sys.exit(CHECK_FAILED)
    if found.skipped:
        sys.exit(SOME_SKIPPED)
