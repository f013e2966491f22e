"""Analysis of many reports: read them in workers and merge the results into one Fleet."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

from traceview.errors import ReportError
from traceview.fleet.dask_workers import Tls, read_on_cluster
from traceview.fleet.local_workers import read_locally
from traceview.fleet.merge import DEFAULT_MARGIN, merge
from traceview.fleet.serialization import deserialize
from traceview.fleet.sources import report_names
from traceview.fleet.worker import Job
from traceview.model.fleet import Fleet, ReportResult, Skipped

Progress = Callable[[str, float], None]


def analyze_reports(
    reports: Sequence[Path],
    job: Job | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    tls: Tls | None = None,
    margin: float = DEFAULT_MARGIN,
    progress: Progress | None = None,
) -> Fleet:
    """Read reports and merge their results. The result does not depend on where the reports are read.

    `workers` is the number of processes on this machine (default: one per CPU). `scheduler` is the address of a Dask
    scheduler to use instead; its answers are unpickled, so only use a trusted one. `tls` names the files for
    `tls://` addresses. A rank is a straggler if its own time exceeds the others' by `margin`, a fraction.

    The result names unreadable reports as skipped. Raises ReportError if no report can be read, and RequestError if
    the cluster fails.
    """
    step = progress or (lambda _step, _done: None)
    files = report_names(reports)
    results, skipped = _collect(reports, files, _start_reading(reports, job or Job(), workers, scheduler, tls), step)
    if not results:
        first = skipped[min(skipped)]
        count = len(skipped) - 1
        more = f" ({count} more report{'s' * (count != 1)} cannot be read either)" if count else ""
        raise ReportError(f"{first.file}: {first.reason}{more}")
    step("merge", 0.9)
    order = sorted(results)
    return merge(
        [files[index] for index in order],
        [results[index] for index in order],
        [skipped[index] for index in sorted(skipped)],
        margin=margin,
    )


def _collect(
    reports: Sequence[Path], files: Sequence[str], packed: Generator[tuple[int, bytes], None, None], step: Progress
) -> tuple[dict[int, ReportResult], dict[int, Skipped]]:
    """Return the results and the skipped reports, by index in `reports`."""
    results: dict[int, ReportResult] = {}
    skipped: dict[int, Skipped] = {}
    step(f"read 0 of {len(reports)}", 0.0)
    # Closing the generator ends the workers at once when an interrupt arrives here.
    with closing(packed):
        for index, data in packed:
            result = deserialize(data)
            if isinstance(result, str):
                skipped[index] = Skipped(files[index], result)
            else:
                results[index] = result
            done = len(results) + len(skipped)
            step(
                f"read {done:,} of {len(reports):,}" + (f", {len(skipped):,} skipped" if skipped else ""),
                0.9 * done / len(reports),
            )
    return results, skipped


def _start_reading(
    reports: Sequence[Path], job: Job, workers: int | None, scheduler: str | None, tls: Tls | None
) -> Generator[tuple[int, bytes], None, None]:
    if scheduler is not None:
        return read_on_cluster(reports, job, scheduler, tls)
    return read_locally(reports, job, workers or available_cpus())


def available_cpus() -> int:
    """Return how many CPUs this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not available on every system
        return os.cpu_count() or 1
