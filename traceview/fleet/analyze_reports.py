"""Analysis of many reports: read them in workers and merge the results into one Fleet."""

from __future__ import annotations

import multiprocessing
import multiprocessing.process
import os
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from pathlib import Path

from traceview.errors import ReportError
from traceview.fleet.dask_workers import Tls, read_on_cluster
from traceview.fleet.lifetime import signals_deferred
from traceview.fleet.merge import DEFAULT_MARGIN, merge
from traceview.fleet.serialization import deserialize, serialize
from traceview.fleet.sources import find_reports, report_names
from traceview.fleet.worker import Job, prepare_process, work_in_process
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


REPORTS_PER_WORKER = 64  # then a new process replaces the worker, because its heap only grows
POLL_SECONDS = 0.2
MAX_TERMINATE_ATTEMPTS = 10
DIED = "the process that read it died twice, probably out of memory; use fewer --workers"

IndexedResult = tuple[int, bytes]


def read_locally(paths: Sequence[Path], job: Job, workers: int) -> Generator[IndexedResult, None, None]:
    """Yield (index in `paths`, serialized result) as reports complete, read by this many processes.

    A process that dies breaks its pool. The reports that were in progress are then read again, one at a time, and a
    report whose process dies again is given up.
    """
    waiting = deque(range(len(paths)))
    while waiting:
        batch = deque(waiting.popleft() for _ in range(min(len(waiting), REPORTS_PER_WORKER * workers)))
        suspects = yield from _read_batch(paths, job, batch, min(workers, len(batch)))
        for index in suspects:
            failed = yield from _read_batch(paths, job, deque([index]), 1)
            yield from ((again, serialize(DIED)) for again in failed)
        waiting.extendleft(reversed(batch))


def _read_batch(
    paths: Sequence[Path], job: Job, indices: deque[int], workers: int
) -> Generator[IndexedResult, None, list[int]]:
    """Read from the front of `indices` until it is empty or a process dies; return what was in progress then.

    At most one report per worker is in progress, so that few reports are read again.
    """
    running: dict[Future[bytes], int] = {}
    with _process_pool(workers) as pool:
        try:
            while indices or running:
                while indices and len(running) < workers:
                    index = indices.popleft()
                    with signals_deferred():  # the first calls start the workers
                        running[pool.submit(work_in_process, str(paths[index]), job)] = index
                # A timeout lets Ctrl-C through: polars makes interrupted system calls restart.
                for future in wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    yield running.pop(future), result
        except BrokenProcessPool:
            return sorted(running.values())
    return []


@contextmanager
def _process_pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    """Open a pool of single-threaded workers; an error terminates them without waiting for their results."""
    # Spawn, not fork: fork does not copy the threads of polars.
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=prepare_process)
    try:
        yield pool
        pool.shutdown()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        _terminate(set(multiprocessing.active_children()) - before)
        raise


def _terminate(children: set[multiprocessing.process.BaseProcess]) -> None:
    """Terminate processes, which first end an nsys that they run; kill those that do not react."""
    # Repeated, because a process that is handling Ctrl-C may pass the signal to a thread that never wakes up.
    for _ in range(MAX_TERMINATE_ATTEMPTS):
        for child in children:
            if child.is_alive():
                child.terminate()
        for child in children:
            child.join(POLL_SECONDS / len(children))
    for child in children:
        if child.is_alive():
            child.kill()
