"""Runs in a worker, on this machine or another: measures a report, or returns one line that says why it cannot.

Results are kept as pickles, in files of the worker's machine: a worker holds one at a time, however many it has read.
The module imports nothing that loads polars, so that a worker can limit its threads first.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from traceview.frozen import frozen

if TYPE_CHECKING:
    from traceview.fleet.partials import P, Work
    from traceview.model.fleet import ReportResult

Result = TypeVar("Result")
NO_ROOM = "its result cannot be kept in the temporary folder, see TMPDIR ({})"
THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@frozen
class Job:
    """Options for reading each report.

    `iteration` is the pattern of iteration names, `skip` the number of warm-up iterations, `nsys` the path of nsys,
    `max_decoded` the limit of decoded bytes and `memory` the bytes that one worker may use. None selects the default.
    """

    iteration: str | None = None
    skip: int | None = None
    nsys: str | None = None
    max_decoded: int | None = None
    memory: int | None = None


def use_one_thread() -> None:
    """Limit each library to one thread, because the workers are the parallelism.

    This has no effect on polars if it is already imported.
    """
    if "polars" not in sys.modules:
        for name in THREADS:
            os.environ[name] = "1"


def prepare_process() -> None:
    """Prepare a new local process before it imports the readers."""
    from traceview.allocators import limit_memory_and_threads
    from traceview.fleet.lifetime import begin_worker

    begin_worker()
    use_one_thread()
    limit_memory_and_threads()
    # A library that runs out of memory prints a backtrace; the fleet names the report in one line.
    if not os.environ.get("TRACEVIEW_DEBUG"):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def work_in_process(path: str, job: Job, kept: Path) -> ReportResult | str:
    """Do `read_and_keep` in a process that `prepare_process` prepared."""
    from traceview.fleet.lifetime import ends_in_order

    with ends_in_order():
        return read_and_keep(path, job, kept)


def read_and_keep(path: str, job: Job, kept: Path) -> ReportResult | str:
    """Read one report and keep its result in a file; return its header, or an error as one line."""
    result = work(path, job)
    if isinstance(result, str):
        return result
    from traceview.fleet.partials import header

    try:
        kept.write_bytes(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
    except OSError as error:
        return NO_ROOM.format(error.strerror)
    return header(result)


def measure_in_process(work: Work[P], kept: Sequence[tuple[int, Path]]) -> P:
    """Measure results that are kept in files, in a process that `prepare_process` prepared."""
    from traceview.fleet.lifetime import ends_in_order

    with ends_in_order():
        return work(loaded(kept))


def loaded(kept: Iterable[tuple[int, Path | StoredResult]]) -> Iterator[tuple[int, ReportResult]]:
    """Yield kept results with the index of their first rank; holds one at a time."""
    for first, place in kept:
        yield first, pickle.loads(place.read_bytes())


def work(path: str, job: Job) -> ReportResult | str:
    """Read one report; return its result, or an error as one line."""
    use_one_thread()
    from traceview.errors import TraceviewError, is_out_of_memory
    from traceview.fleet.measure_report import measure_report
    from traceview.read.limits import MAX_DECODED
    from traceview.read.nsys_rep import CHOSEN
    from traceview.read.source import display_name

    limit = MAX_DECODED.get() if job.max_decoded is None else job.max_decoded
    nsys_token, limit_token = CHOSEN.set(job.nsys or CHOSEN.get()), MAX_DECODED.set(limit)
    try:
        return measure_report(Path(path), job.iteration, job.skip, job.memory)
    except TraceviewError as error:
        # The fleet names the file itself.
        return str(error).removeprefix(f"{display_name(Path(path))}: ")
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # PanicException of polars does not derive from Exception; the fleet must go on
        if is_out_of_memory(error):
            return "not enough memory to read it"
        return f"internal error ({type(error).__name__})"
    finally:
        CHOSEN.reset(nsys_token)
        MAX_DECODED.reset(limit_token)


async def unwatched(function: Callable[..., Result], *arguments: Any) -> Result:
    """Call a function on a Dask worker, in a thread that Dask's profiler does not sample.

    The profiler samples the threads that Dask creates and keeps 1,000 s of their stacks, 0.4 MB per second here. A
    task that waits for another thread still occupies its slot.
    """
    import asyncio

    return await asyncio.to_thread(function, *arguments)


class StoredResult:
    """The result of a report in a temporary file of a Dask worker. Sent to another process, it has a file there."""

    def __init__(self, data: bytes) -> None:
        """Write `data`, the pickled result, to a file. Raises OSError if the disk is full."""
        # Dask removes its worker's folder. Outside a task the file is in TMPDIR.
        handle, path = tempfile.mkstemp(prefix="traceview-fleet-", dir=getattr(_dask_worker(), "local_directory", None))
        self._path = Path(path)
        with os.fdopen(handle, "wb") as file:
            file.write(data)

    def read_bytes(self) -> bytes:
        """Return the pickled result."""
        return self._path.read_bytes()

    def __reduce__(self) -> tuple[type[StoredResult], tuple[bytes]]:
        return StoredResult, (self.read_bytes(),)

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self._path.unlink()


def _dask_worker() -> Any:
    """Return the Dask worker that runs this task, or None outside a task."""
    try:
        from distributed import get_worker

        return get_worker()
    except (ImportError, ValueError):
        return None


def _memory_of_thread() -> int | None:
    """Return the bytes that one thread of the Dask worker may use; None if the worker has no memory limit.

    The threads share half of the limit equally.
    """
    from traceview.slices.memory import MIN_MEMORY

    worker = _dask_worker()
    limit = worker and worker.memory_manager.memory_limit
    return max(limit // 2 // worker.state.nthreads, MIN_MEMORY) if limit else None


def work_on_cluster(path: str, job: Job, exists_here: bool) -> StoredResult | str:
    """Run `work` on a Dask worker and keep the result there.

    `exists_here` says whether the client sees the report: then a worker that does not see it reports a different error
    than a mistyped path.
    """
    if exists_here and not Path(path).exists():
        return "the worker does not see it; all workers need the reports under the same absolute paths"
    result = work(path, replace(job, memory=job.memory or _memory_of_thread()))
    if isinstance(result, str):
        return result
    try:
        return StoredResult(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
    except OSError as error:
        return NO_ROOM.format(error.strerror)


def header_of(stored: StoredResult | str) -> ReportResult | str:
    """Return the header of a result, or the reason why there is none."""
    from traceview.fleet.partials import header

    if isinstance(stored, str):
        return stored
    [(_, result)] = loaded([(0, stored)])
    return header(result)


def measure_results(work: Work[P], first: Sequence[int], kept: Sequence[StoredResult]) -> P:
    """Measure results; `first` has the index of each one's first rank."""
    return work(loaded(zip(first, kept, strict=True)))


def installed_version() -> str:
    """Return the version of traceview that a worker has."""
    from traceview import __version__

    return __version__
