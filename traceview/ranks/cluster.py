"""The workers of a Dask cluster, which see the same files under the same paths.

Dask sends pickled code and unpickles the answers: whoever controls the scheduler's address can run code here and on
the workers. TLS proves that the configured certificate authority signed the scheduler's certificate.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import Any, TypeVar

from traceview.errors import RequestError

Job = TypeVar("Job")
Result = TypeVar("Result")
VERSION: str = sys.modules["traceview"].__version__  # Python imports the package before its modules
CONNECT_TIMEOUT = "10s"
POLL_SECONDS = 5
MAX_SECONDS_WITHOUT_WORKERS = 60
RETRIES = 2
WORKERS_LOST = "the workers that read it were lost, probably out of memory; give them more memory or fewer threads"
TLS_REMEDY = "name those of the cluster in Dask's configuration, distributed.comm.tls"
REMEDY = "start it with: dask scheduler, then dask worker ADDRESS --nthreads 1, with traceview installed there"


def on_cluster(
    function: Callable[[Job], Result], jobs: Sequence[Job], address: str
) -> Generator[tuple[int, Result | str], None, None]:
    """Yield (index, function(job)) as the calls end on the cluster of the scheduler at `address`.

    A job whose workers are lost has one line as its result. Raises RequestError if distributed is not installed, if the
    scheduler is not reached or lost, and if there are no workers, or some with another version of traceview.
    """
    name = f"--scheduler {address[:200]}"
    client = _connected_client(address, name)
    try:
        _check_workers(client, name)
        executor: Any = client.get_executor(pure=False, retries=RETRIES)
        running: dict[Future[Result], int] = {
            executor.submit(_unwatched, function, job): index for index, job in enumerate(jobs)
        }
        seen = monotonic()
        while running:
            done = wait(running, POLL_SECONDS, FIRST_COMPLETED).done
            for future in done:
                yield running.pop(future), _result(future)
            if done or client.nthreads():
                seen = monotonic()
            elif monotonic() - seen > MAX_SECONDS_WITHOUT_WORKERS:
                raise RequestError(
                    f"{name}: no workers for {MAX_SECONDS_WITHOUT_WORKERS} s; read their logs, and "
                    "give them more memory if they ran out of it"
                )
    except RequestError:
        raise
    except Exception as error:  # the type depends on the version of distributed
        reason = f"the scheduler ended or was restarted during the analysis ({type(error).__name__}); run it again"
        raise RequestError(f"{name}: {reason}") from None
    finally:
        client.close()  # the cluster forgets the calls of this client


def _result(future: Future[Any]) -> Any:
    """Return the result of a call, or why it has none."""
    try:
        return future.result()
    except CancelledError:
        raise
    except Exception as error:  # the type depends on the version of distributed
        name = type(error).__name__
    return WORKERS_LOST if name == "KilledWorker" else f"a worker could not run traceview {VERSION} ({name})"


async def _unwatched(function: Callable[..., Result], *values: Any) -> Result:
    """Call a function on a Dask worker, in a thread that Dask's profiler does not sample.

    The profiler samples the threads that Dask creates and keeps 1,000 s of their stacks, 0.4 MB per second here. A
    task that waits for another thread still occupies its slot.
    """
    import asyncio

    return await asyncio.to_thread(function, *values)


def _check_workers(client: Any, name: str) -> None:
    """Raise RequestError if the cluster is empty or one of its workers lacks this version of traceview."""
    if not client.nthreads():
        with suppress(Exception):  # a call makes an adaptive cluster start workers
            client.submit(_installed_version, pure=False).result(timeout=MAX_SECONDS_WITHOUT_WORKERS)
    if not client.nthreads():
        raise RequestError(f"{name}: the cluster has no workers; {REMEDY}")
    versions = client.run(_installed_version, on_error="return").values()
    others = {version if isinstance(version, str) else None for version in versions} - {VERSION}
    if others:
        problem = "cannot import traceview" if None in others else "has another version of traceview"
        raise RequestError(f"{name}: a worker {problem}; install {VERSION} there")


def _installed_version() -> str:
    """Return the version of traceview that a worker has."""
    return VERSION


def _connected_client(address: str, name: str) -> Any:
    """Connect to a scheduler. Raises RequestError."""
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise RequestError("--scheduler needs the package distributed: pip install 'traceview[dask]'") from None
    # The result reports lost workers; log lines would interrupt the progress display.
    for logger in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        security = _tls_settings(distributed, address, name)
        return distributed.Client(address, timeout=CONNECT_TIMEOUT, set_as_default=False, security=security)
    except (OSError, ValueError) as error:
        raise RequestError(f"{name}: cannot connect to a scheduler ({type(error).__name__}); {REMEDY}") from None


def _tls_settings(distributed: Any, address: str, name: str) -> Any:
    """Return the TLS settings of Dask's own configuration. Raises RequestError if `address` needs what it lacks."""
    security = distributed.security.Security()
    try:
        has_certificate = security.get_connection_args("client").get("ssl_context") is not None
    except OSError as error:
        reason = f"the PEM files of Dask's configuration cannot be used together ({type(error).__name__})"
        raise RequestError(f"{name}: {reason}; {TLS_REMEDY}") from None
    if address.startswith("tls://") and not has_certificate:
        raise RequestError(f"{name}: TLS needs certificates; {TLS_REMEDY}")
    return security
