"""Runs in a worker, on this machine or another: takes a path and returns bytes, also when a report is unreadable.

The module imports nothing that loads polars, so that a worker can limit its threads first.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from traceview.frozen import frozen

if TYPE_CHECKING:
    from pathlib import Path

    from traceview.fleet.partials import P, Work
    from traceview.model.fleet import ReportResult

Result = TypeVar("Result")
THREADS = ("POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@frozen
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

    This has no effect on polars if it is already imported.
    """
    if "polars" not in sys.modules:
        for name in THREADS:
            os.environ[name] = "1"


def prepare_process() -> None:
    """Prepare a new local process before it imports the readers."""
    from traceview.fleet.lifetime import begin_worker

    begin_worker()
    use_one_thread()


def work_in_process(path: str, job: Job, kept: str) -> bytes:
    """Read one report in a process that `prepare_process` prepared; keep its result in a file and return its header."""
    from pathlib import Path

    from traceview.fleet.lifetime import ends_in_order

    with ends_in_order():
        data = work(path, job)
        try:
            Path(kept).write_bytes(data)
        except OSError as error:
            from traceview.fleet.serialization import serialize

            return serialize(f"its result cannot be kept in the temporary folder, see TMPDIR ({error.strerror})")
        return header_of(data)


def header_of(data: bytes) -> bytes:
    """Return the serialized header of a serialized result, or the same error."""
    from traceview.fleet.partials import header
    from traceview.fleet.serialization import deserialize, serialize

    result = deserialize(data)
    return data if isinstance(result, str) else serialize(header(result))


def measure_in_process(work: Work[P], kept: Sequence[tuple[int, Path]]) -> P:
    """Measure results that are kept in files, in a process that `prepare_process` prepared."""
    from traceview.fleet.lifetime import ends_in_order

    with ends_in_order():
        return work(loaded(kept))


def loaded(kept: Iterable[tuple[int, Path | bytes]]) -> Iterator[tuple[int, ReportResult]]:
    """Yield results, given serialized or as a file, with the index of their first rank; holds one at a time."""
    from traceview.fleet.serialization import deserialize

    for first, data in kept:
        result = deserialize(data if isinstance(data, bytes) else data.read_bytes())
        assert not isinstance(result, str)
        yield first, result


def work(path: str, job: Job) -> bytes:
    """Read one report; return its serialized result, or an error as one serialized line."""
    use_one_thread()
    from pathlib import Path

    from traceview.errors import TraceviewError, is_out_of_memory
    from traceview.fleet.measure_report import measure_report
    from traceview.fleet.serialization import serialize
    from traceview.read.limits import MAX_DECODED
    from traceview.read.nsys_rep import CHOSEN
    from traceview.read.source import display_name

    limit = MAX_DECODED.get() if job.max_decoded is None else job.max_decoded
    nsys_token, limit_token = CHOSEN.set(job.nsys or CHOSEN.get()), MAX_DECODED.set(limit)
    try:
        return serialize(measure_report(Path(path), job.iteration, job.skip))
    except TraceviewError as error:
        # The fleet names the file itself.
        return serialize(str(error).removeprefix(f"{display_name(Path(path))}: "))
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # PanicException of polars does not derive from Exception; the fleet must go on
        if is_out_of_memory(error):
            return serialize("not enough memory to read it")
        return serialize(f"internal error ({type(error).__name__})")
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


def work_on_cluster(path: str, job: Job, exists_here: bool) -> bytes:
    """Run `work` on a Dask worker.

    `exists_here` says whether the client sees the report: then a worker that does not see it reports a different error
    than a mistyped path.
    """
    from pathlib import Path

    if exists_here and not Path(path).exists():
        from traceview.fleet.serialization import serialize

        return serialize("the worker does not see it; all workers need the reports under the same absolute paths")
    return work(path, job)


def measure_results(work: Work[P], first: Sequence[int], kept: Sequence[bytes]) -> P:
    """Measure serialized results; `first` has the index of each one's first rank."""
    return work(loaded(zip(first, kept, strict=True)))


def merge_partials(partials: Sequence[P]) -> P:
    """Merge partial measures."""
    from functools import reduce

    return reduce(lambda total, part: total.merged(part), partials)


def installed_version() -> str:
    """Return the version of traceview that a worker has."""
    from traceview import __version__

    return __version__
