"""Reports read by the workers of a Dask cluster, which see the same files under the same paths."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from traceview.errors import RequestError
from traceview.fleet.form import packed
from traceview.fleet.job import Job
from traceview.fleet.worker import version, work_unwatched
from traceview.version import __version__

REACHED_IN = "10s"
HEARD_IN = 5  # seconds
PATIENCE = 60  # seconds that a cluster may be without workers
IN_FLIGHT = 4  # reports handed out for each thread of the cluster
RETRIES = 2
LOST = "the workers that read it were lost, most likely for want of memory; give them more, or fewer threads"
REMEDY = "start one with: dask scheduler, then dask worker ADDRESS --nthreads 1, with traceview installed there"


def read_on_cluster(paths: Sequence[Path], job: Job, address: str) -> Generator[tuple[int, bytes], None, None]:
    """Yield (place in `paths`, packed result) as they come. A lost worker's reports are read by another.

    Raises RequestError where distributed is missing, the scheduler cannot be reached or is lost, no worker is left,
    or one has not this version of traceview.
    """
    with _client(address) as client:
        waiting = deque(range(len(paths)))
        at_once = IN_FLIGHT * max(sum(client.nthreads().values()), 1)
        running: dict[str, tuple[int, Any]] = {}
        ended: SimpleQueue[str] = SimpleQueue()
        while waiting or running:
            while waiting and len(running) < at_once:
                place = waiting.popleft()
                path = paths[place].absolute()
                told = (str(path), job, path.exists())
                future = client.submit(work_unwatched, *told, pure=False, retries=RETRIES)
                running[future.key] = place, future
                future.add_done_callback(lambda done: ended.put(done.key))
            place, future = running.pop(_next(ended, client, address))
            yield place, _result(future, address)
            future.release()


def _next(ended: SimpleQueue[str], client: Any, address: str) -> str:
    """Wait for the next report, as long as there are workers."""
    alone_since: float | None = None
    while True:
        try:
            return ended.get(timeout=HEARD_IN)
        except Empty:
            pass
        try:
            alone = not client.nthreads()
        except Exception as error:  # of whichever kind: the version of distributed decides
            raise _gone(address) from error
        alone_since = (alone_since or monotonic()) if alone else None
        if alone_since is not None and monotonic() - alone_since > PATIENCE:
            raise RequestError(
                f"--scheduler {address[:200]}: no worker has been left for {PATIENCE} s; see their logs, and give them "
                "more memory if that is what they died of"
            )


def _result(future: Any, address: str) -> bytes:
    """Return what a report became; why there is nothing, where its workers were lost or cannot do it."""
    if future.status == "finished":
        try:
            return bytes(future.result(timeout=PATIENCE))
        except Exception:  # the worker that held it is gone, and no other takes its place
            return packed(LOST)
    if future.status != "error":
        raise _gone(address)
    name = type(future.exception(timeout=PATIENCE)).__name__
    return packed(LOST if name == "KilledWorker" else f"a worker could not run traceview {__version__} ({name})")


def _gone(address: str) -> RequestError:
    return RequestError(
        f"--scheduler {address[:200]}: the scheduler ended or was restarted while reports were read; run it again"
    )


@contextmanager
def _client(address: str) -> Iterator[Any]:
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
        yield client
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
