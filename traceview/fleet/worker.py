"""What runs in a worker, on this machine or on another: a path in, bytes out, never an exception of a report's."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from traceview.fleet.job import Job

THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def one_thread() -> None:
    """Give this process one thread of each library: the fleet's workers are its threads.

    Too late where polars was imported before; then it keeps what it has.
    """
    if "polars" not in sys.modules:
        for name in THREADS:
            os.environ[name] = "1"


def begin() -> None:
    """Prepare a new process of this machine before it imports what reads reports."""
    from traceview.fleet.lifetime import begin_worker

    begin_worker()
    one_thread()


def work_in_process(path: str, job: Job) -> bytes:
    """Read one report in a process that `begin` prepared."""
    from traceview.fleet.lifetime import ends_in_order

    with ends_in_order():
        return work(path, job)


def work(path: str, job: Job) -> bytes:
    """Read one report; what is wrong with it comes back as one line."""
    one_thread()
    from pathlib import Path

    from traceview.errors import TraceviewError, is_out_of_memory
    from traceview.fleet.form import packed
    from traceview.fleet.read_one import read_report
    from traceview.read.limits import MAX_DECODED
    from traceview.read.nsys_rep import CHOSEN
    from traceview.read.source import display_name

    nsys, limit = CHOSEN.set(job.nsys or CHOSEN.get()), MAX_DECODED.set(job.max_decoded)
    try:
        return packed(read_report(Path(path), job.iteration, job.skip))
    except TraceviewError as error:
        return packed(_reason(str(error), display_name(Path(path))))
    except (KeyboardInterrupt, SystemExit):
        raise
    except (
        BaseException
    ) as error:  # one report must not end the fleet, nor a panic inside polars, which is no Exception
        if is_out_of_memory(error):
            return packed("not enough memory to read it")
        return packed(f"internal error ({type(error).__name__})")
    finally:
        CHOSEN.reset(nsys)
        MAX_DECODED.reset(limit)


async def work_unwatched(path: str, job: Job, seen: bool) -> bytes:
    """Do the same for a Dask worker, in a thread that its profiler does not know.

    `seen`: who asks has a report of that name, so that a worker that has none is told apart from a mistyped one.
    That profiler samples the stacks of the threads that Dask gave out, and keeps the last 1,000 s: 0.4 MB of each
    second here. A task that waits for a thread of its own takes a place of the worker as any other.
    """
    import asyncio
    from pathlib import Path

    if seen and not Path(path).exists():
        from traceview.fleet.form import packed

        return packed("the worker does not see it; a cluster's workers need the reports under the same absolute paths")
    return await asyncio.to_thread(work, path, job)


def _reason(line: str, name: str) -> str:
    """Return an error's line without the file's name in front: the fleet says it by the name it gives."""
    return line.removeprefix(f"{name}: ")


def version() -> str:
    """Return the version of traceview that a worker has."""
    from traceview import __version__

    return __version__
