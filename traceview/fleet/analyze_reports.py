"""Analysis of many reports: read them in workers and merge the results into one Fleet."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Protocol

from traceview.errors import ReportError
from traceview.fleet.dask_workers import DaskWorkers, Tls
from traceview.fleet.local_workers import LocalWorkers
from traceview.fleet.merge import DEFAULT_MARGIN, MAX_SHOWN, merge_reports
from traceview.fleet.partials import FleetReports, SharedColumns, Work
from traceview.fleet.sources import find_reports, report_names
from traceview.fleet.worker import Job
from traceview.model.fleet import Fleet, ReportResult, Skipped

Progress = Callable[[str, float], None]


def analyze_fleet(
    *reports: str | Path,
    iteration: str | None = None,
    skip: int | None = None,
    workers: int | None = None,
    margin: float = DEFAULT_MARGIN,
) -> Fleet:
    """Combine the reports of many ranks: files, folders and patterns such as "runs/rank*.sqlite".

    `iteration` and `skip` are those of analyze(); `workers` and `margin` are those of analyze_reports().

    Raises TraceviewError if no report is found or can be read; the result names the skipped reports.
    """
    paths = find_reports([str(report) for report in reports])
    return analyze_reports(paths, Job(iteration, skip), workers=workers, margin=margin)


def analyze_reports(
    reports: Sequence[Path],
    job: Job | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    tls: Tls | None = None,
    margin: float = DEFAULT_MARGIN,
    max_shown: int | None = MAX_SHOWN,
    progress: Progress | None = None,
) -> Fleet:
    """Read reports and merge their results. The result does not depend on where the reports are read.

    `workers` is the number of processes on this machine (default: one per CPU). `scheduler` is the address of a Dask
    scheduler to use instead; its answers are unpickled, so only use a trusted one. `tls` names the files for
    `tls://` addresses. A rank is a straggler if its own time exceeds the others' by `margin`, a fraction. `max_shown`
    limits the arrivals at collectives in the result's timeline.

    The result names unreadable reports as skipped. Raises ReportError if no report can be read, and RequestError if
    the cluster fails.
    """
    step = progress or (lambda _step, _done: None)
    files = report_names(reports)
    with _open_workers(workers, scheduler, tls) as opened:
        headers, skipped = _collect(files, opened.read(reports, job or Job()), step)
        if not headers:
            first = skipped[min(skipped)]
            count = len(skipped) - 1
            more = f" ({count} more report{'s' * (count != 1)} cannot be read either)" if count else ""
            raise ReportError(f"{first.file}: {first.reason}{more}")
        step("merge", 0.9)
        order = sorted(headers)
        return merge_reports(
            [files[index] for index in order],
            FleetReports([headers[index] for index in order], [opened.kept(index) for index in order], opened.run),
            [skipped[index] for index in sorted(skipped)],
            margin=margin,
            max_shown=max_shown,
        )


def _collect(
    files: Sequence[str], outcomes: Generator[tuple[int, ReportResult | str], None, None], step: Progress
) -> tuple[dict[int, ReportResult], dict[int, Skipped]]:
    """Return the headers of the results and the skipped reports, by index in `files`."""
    headers: dict[int, ReportResult] = {}
    skipped: dict[int, Skipped] = {}
    shared = SharedColumns()
    step(f"read 0 of {len(files)}", 0.0)
    # Closing the generator ends the workers at once when an interrupt arrives here.
    with closing(outcomes):
        for index, header in outcomes:
            if isinstance(header, str):
                skipped[index] = Skipped(files[index], header)
            else:
                headers[index] = shared.header(header)
            done = len(headers) + len(skipped)
            step(
                f"read {done:,} of {len(files):,}" + (f", {len(skipped):,} skipped" if skipped else ""),
                0.9 * done / len(files),
            )
    return headers, skipped


class Workers(Protocol):
    """Processes that read reports and keep the results."""

    def read(self, paths: Sequence[Path], job: Job) -> Generator[tuple[int, ReportResult | str], None, None]:
        """Yield (index in `paths`, header or the reason why there is none) as reports complete."""

    def kept(self, index: int) -> Any:
        """Return where the result of a report is kept."""

    def run(self, work: Work[Any], kept: Sequence[tuple[int, Any]]) -> Any:
        """Measure kept results, each with the index of its first rank, and merge the partial measures."""


def _open_workers(workers: int | None, scheduler: str | None, tls: Tls | None) -> AbstractContextManager[Workers]:
    if scheduler is not None:
        return DaskWorkers(scheduler, tls)
    return LocalWorkers(workers or available_cpus())


def available_cpus() -> int:
    """Return how many CPUs this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return os.cpu_count() or 1
