"""The whole path: reports in, one Fleet out."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path

from traceview.errors import ReportError
from traceview.fleet.form import unpacked
from traceview.fleet.job import Job, Tls
from traceview.fleet.merge import MARGIN, merge
from traceview.fleet.run_dask import read_on_cluster
from traceview.fleet.run_local import read_locally
from traceview.fleet.sources import names
from traceview.model.fleet import Fleet, ReportResult, Skipped

Progress = Callable[[str, float], None]


def fleet(
    reports: Sequence[Path],
    job: Job | None = None,
    *,
    workers: int | None = None,
    scheduler: str | None = None,
    tls: Tls | None = None,
    margin: float = MARGIN,
    progress: Progress | None = None,
) -> Fleet:
    """Read many reports and merge what they say; where they are read changes nothing of the result.

    `workers` are processes of this machine (one for each CPU by default), `scheduler` a Dask scheduler's address
    instead. Its answers are unpickled, so whoever runs that address is trusted; `tls` names the files for `tls://`.
    `margin` is how much longer than the others' a rank's own time may be. A report that cannot be read is
    skipped and named in the result. Raises ReportError when none can be read, RequestError for a cluster.
    """
    step = progress or (lambda _step, _done: None)
    files = names(reports)
    found, skipped = _collected(reports, files, _read(reports, job or Job(), workers, scheduler, tls), step)
    if not found:
        first = skipped[min(skipped)]
        more = f"; nor can {len(skipped) - 1} more" if len(skipped) > 1 else ""
        raise ReportError(f"{first.file}: {first.reason}{more}")
    step("merge", 0.9)
    order = sorted(found)
    return merge(
        [files[place] for place in order],
        [found[place] for place in order],
        [skipped[place] for place in sorted(skipped)],
        margin=margin,
    )


def _collected(
    reports: Sequence[Path], files: Sequence[str], results: Generator[tuple[int, bytes], None, None], step: Progress
) -> tuple[dict[int, ReportResult], dict[int, Skipped]]:
    """Return what was read and what was skipped, by place in `reports`."""
    found: dict[int, ReportResult] = {}
    skipped: dict[int, Skipped] = {}
    step(f"read 0 of {len(reports)}", 0.0)
    # Closed at once, so that an interrupt ends the workers wherever it finds us.
    with closing(results):
        for place, data in results:
            result = unpacked(data)
            if isinstance(result, str):
                skipped[place] = Skipped(files[place], result)
            else:
                found[place] = result
            done = len(found) + len(skipped)
            step(
                f"read {done:,} of {len(reports):,}" + (f", {len(skipped):,} skipped" if skipped else ""),
                0.9 * done / len(reports),
            )
    return found, skipped


def _read(
    reports: Sequence[Path], job: Job, workers: int | None, scheduler: str | None, tls: Tls | None
) -> Generator[tuple[int, bytes], None, None]:
    if scheduler is not None:
        return read_on_cluster(reports, job, scheduler, tls)
    return read_locally(reports, job, workers or default_workers())


def default_workers() -> int:
    """Return how many CPUs this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1
