"""Runs in a worker, on this machine or another: measures a report, or returns one line that says why it cannot.

Results are kept as pickles, in files of the worker's machine: a worker holds one at a time, however many it has read.
The module imports nothing that loads polars, so that a worker of a cluster can limit its threads first.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import TYPE_CHECKING

from traceview.errors import RequestError
from traceview.workers.cluster import dask_worker

if TYPE_CHECKING:
    from traceview.model.fleet import ReportResult
    from traceview.ranks.partials import P, Work

NO_ROOM = "its result cannot be kept in the temporary folder, see TMPDIR ({})"
NOT_SEEN = "the worker does not see it; all workers need the reports under the same absolute paths"
THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Job:
    """Options for reading each report.

    `iteration` is the pattern of iteration names, `skip` the number of warm-up iterations, `nsys` the path of nsys
    and `max_decoded` the limit of decoded bytes. None selects the default.
    """

    iteration: str | None = None
    skip: int | None = None
    nsys: str | None = None
    max_decoded: int | None = None


def use_one_thread() -> None:
    """Limit each library to one thread, because the workers are the parallelism.

    Polars reads its limit at import, so nothing changes if it is already imported. The workers on this machine have
    their limit before that.
    """
    if "polars" not in sys.modules:
        for name in THREADS:
            os.environ[name] = "1"


@dataclass(frozen=True, slots=True)
class Report:
    """A report of a fleet, whose result is kept in a file.

    Attributes:
        path: an absolute path, or a URL.
        job: how to read it.
        index: its number in the fleet.
        folder: a folder of this machine for the results; None on a cluster.
        run: names the folder for the results in each worker of a cluster.
        exists: whether the first process sees the report. If it does, a worker of a cluster that does not reports a
            different error than for a mistyped path.
        worker: the worker of a cluster that keeps the result.
    """

    path: str
    job: Job
    index: int
    folder: Path | None = None
    run: str = ""
    exists: bool = False
    worker: str | None = None

    def read(self) -> ReportResult | str:
        """Read the report and keep its result; return the result, or an error as one line."""
        file = self.file()
        if self.folder is None and self.exists and not Path(self.path).exists():
            return NOT_SEEN
        result = work(self.path, self.job)
        if not isinstance(result, str):
            try:
                file.write_bytes(pickle.dumps(result, pickle.HIGHEST_PROTOCOL))
            except OSError as error:
                return NO_ROOM.format(error.strerror)
        return result

    def result(self) -> ReportResult:
        """Return the result that this worker keeps; another worker reads the report again.

        Raises RequestError if it cannot be read again.
        """
        if (file := self.file()).exists():
            kept: ReportResult = pickle.loads(file.read_bytes())
            return kept
        again = self.read()
        if isinstance(again, str):
            raise RequestError(f"{Path(self.path).name}: {again}")
        return again

    def file(self) -> Path:
        """Return the file for the result, on this machine."""
        return (self.folder or _folder_of_run(self.run)) / str(self.index)


_folders: dict[str, TemporaryDirectory[str]] = {}  # what this worker of a cluster keeps, by run
_folders_change = Lock()


def _folder_of_run(run: str) -> Path:
    """Return this worker's folder for the results of a run. No other user can write there; it ends with the worker."""
    with _folders_change:
        if run not in _folders:
            own = getattr(dask_worker(), "local_directory", None)  # Dask removes it
            _folders[run] = TemporaryDirectory(prefix="traceview-fleet-", dir=own)
        return Path(_folders[run].name)


def forget_run(run: str) -> None:
    """Remove this worker's results of a run."""
    with _folders_change:
        if run in _folders:
            _folders.pop(run).cleanup()


def read_and_keep(report: Report) -> tuple[ReportResult | str, str | None]:
    """Read a report and keep its result; return its header, or an error as one line, and the worker's address."""
    result = report.read()
    if isinstance(result, str):
        return result, None
    from traceview.ranks.partials import header

    return header(result), getattr(dask_worker(), "address", None)


def measure_kept(work: Work[P], kept: Sequence[tuple[int, Report]]) -> P:
    """Measure results that are kept, each with the index of its first rank."""
    return work(loaded(kept))


def loaded(kept: Sequence[tuple[int, Report]]) -> Iterator[tuple[int, ReportResult]]:
    """Yield kept results with the index of their first rank; holds one at a time."""
    for first, report in kept:
        yield first, report.result()


def work(path: str, job: Job) -> ReportResult | str:
    """Read one report; return its result, or an error as one line."""
    use_one_thread()
    from traceview.errors import TraceviewError, is_out_of_memory
    from traceview.ranks.measure_report import measure_report
    from traceview.read.nsys_rep import CHOSEN
    from traceview.read.remote import local_copy
    from traceview.read.source import MAX_DECODED, display_name

    limit = MAX_DECODED.get() if job.max_decoded is None else job.max_decoded
    nsys_token, limit_token = CHOSEN.set(job.nsys or CHOSEN.get()), MAX_DECODED.set(limit)
    try:
        with local_copy(path) as file:
            return measure_report(file, job.iteration, job.skip)
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
