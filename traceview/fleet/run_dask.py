"""Reports read by the workers of a Dask cluster, which see the same files under the same paths."""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from traceview.errors import RequestError
from traceview.fleet.form import packed
from traceview.fleet.job import Job
from traceview.fleet.worker import version, work
from traceview.version import __version__

REACHED_IN = "10s"
IN_FLIGHT = 4  # reports handed out for each thread of the cluster
RETRIES = 2
LOST = "the workers that read it were lost, most likely for want of memory; give them more, or fewer threads"
REMEDY = "start one with: dask scheduler, then dask worker ADDRESS --nthreads 1, with traceview installed there"


def read_on_cluster(paths: Sequence[Path], job: Job, address: str) -> Generator[tuple[int, bytes], None, None]:
    """Yield (place in `paths`, packed result) as they come. A lost worker's reports are read by another.

    Raises RequestError where distributed is missing, the scheduler cannot be reached, or a worker has not this
    version of traceview.
    """
    with _client(address) as (distributed, client):
        waiting = list(reversed(range(len(paths))))
        at_once = IN_FLIGHT * max(sum(client.nthreads().values()), 1)
        places: dict[str, int] = {}
        coming = distributed.as_completed(loop=client.loop)

        def hand_out() -> None:
            while waiting and len(places) < at_once:
                place = waiting.pop()
                path = str(paths[place].absolute())
                future = client.submit(work, path, job.iteration, job.skip, job.nsys, pure=False, retries=RETRIES)
                places[future.key] = place
                coming.add(future)

        hand_out()
        for future in coming:
            place = places.pop(future.key)
            yield place, future.result() if future.status == "finished" else packed(LOST)
            future.release()
            hand_out()


@contextmanager
def _client(address: str) -> Iterator[tuple[Any, Any]]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise RequestError("--scheduler needs the package distributed: pip install 'traceview[dask]'") from None
    # What becomes of lost workers stands in the result; the log would break into the progress.
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        client = distributed.Client(address, timeout=REACHED_IN, set_as_default=False)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"--scheduler {address[:200]}: no scheduler can be reached there ({type(error).__name__}); {REMEDY}"
        ) from None
    try:
        _check(client, address)
        yield distributed, client
    finally:
        client.close()


def _check(client: Any, address: str) -> None:
    if not client.nthreads():
        raise RequestError(f"--scheduler {address[:200]}: the cluster has no workers; {REMEDY}")
    found = client.run(version, on_error="return")
    others = {one if isinstance(one, str) else None for one in found.values()} - {__version__}
    if others:
        raise RequestError(
            f"--scheduler {address[:200]}: {'a worker has' if None not in others else 'a worker cannot import'} "
            f"{'another version of traceview' if None not in others else 'traceview'}; install {__version__} there"
        )
