"""The workers of a Dask cluster, which see the same files under the same paths.

Dask sends pickled code and unpickles the answers: whoever controls the scheduler's address can run code here and on
the workers. TLS proves that the configured certificate authority signed the scheduler's certificate.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import Any, TypeVar

from traceview.errors import RequestError
from traceview.workers import WorkerDiedError, Workers

Result = TypeVar("Result")
VERSION: str = sys.modules["traceview"].__version__  # Python imports the package before its modules
CONNECT_TIMEOUT = "10s"
POLL_SECONDS = 5
MAX_SECONDS_WITHOUT_WORKERS = 60
CALLS_PER_THREAD = 4  # submitted at once, for each thread of the cluster
MIN_CALLS = 256  # submitted at once: the queue by which an adaptive cluster decides how many workers it starts
RETRIES = 2
WORKERS_LOST = "the workers that read it were lost, probably out of memory; give them more memory or fewer threads"
TLS_REMEDY = "name those of the cluster in Dask's configuration, distributed.comm.tls"
REMEDY = "start it with: dask scheduler, then dask worker ADDRESS --nthreads 1, with traceview installed there"


class DaskWorkers(Workers):
    """The workers of a cluster. A worker is its address; another takes over from one that is lost."""

    poll_seconds = POLL_SECONDS

    def __init__(self, address: str) -> None:
        """Connect to the scheduler at `address`.

        Raises RequestError if distributed is not installed, if the scheduler is not reached, or if a worker has another
        version of traceview.
        """
        self._name = f"--scheduler {address[:200]}"
        self._client = _connected_client(address, self._name)
        self._executor: Executor = self._client.get_executor(pure=False, retries=RETRIES)
        self._empty_since: float | None = None
        try:
            self._check_workers()
        except BaseException:
            self.shutdown()
            raise

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Close the connection. The cluster forgets the calls of this client."""
        self._client.close()

    def submit_to(self, worker: str | None, function: Callable[..., Result], *values: object) -> Future[Result]:
        """Call a function in the worker with this address, or in another if it is lost. Raises RequestError."""
        options = {} if worker is None else {"workers": [worker], "allow_other_workers": True}
        try:
            return self._executor.submit(_unwatched, function, *values, **options)  # type: ignore[arg-type]
        except Exception as error:
            if self._client.status == "running":
                raise
            raise self._scheduler_lost() from error

    def in_each(self, function: Callable[..., object], *values: object) -> None:
        """Call a function in each worker that can be reached."""
        if self._client.status == "running":
            with suppress(Exception):  # the type depends on the version of distributed
                self._client.run(function, *values, on_error="ignore")

    def result(self, future: Future[Result]) -> Result:
        """Return the result of a call. Raises WorkerDiedError, or RequestError if the scheduler is lost."""
        try:
            return future.result()
        except RequestError:
            raise
        except CancelledError:
            raise self._scheduler_lost() from None
        except Exception as error:  # the type depends on the version of distributed
            name = type(error).__name__
        reason = f"a worker could not run traceview {VERSION} ({name})"
        raise WorkerDiedError(WORKERS_LOST if name == "KilledWorker" else reason)

    def _shared(self, value: Any) -> Any:
        return self._client.submit(_unwatched, _identity, value, pure=False, retries=RETRIES)

    def slots(self) -> list[Any]:
        """Return None for each call that is in progress at once. Raises RequestError if the scheduler is lost."""
        return [None] * max(CALLS_PER_THREAD * self._threads(), MIN_CALLS)

    def _polled(self, has_ended: bool) -> None:
        if has_ended or self._threads():
            self._empty_since = None
            return
        self._empty_since = self._empty_since or monotonic()
        if monotonic() - self._empty_since > MAX_SECONDS_WITHOUT_WORKERS:
            raise RequestError(
                f"{self._name}: no workers for {MAX_SECONDS_WITHOUT_WORKERS} s; read their logs, and "
                "give them more memory if they ran out of it"
            )

    def _threads(self) -> int:
        """Return the threads of all workers. Raises RequestError if the scheduler is lost."""
        try:
            return sum(self._client.nthreads().values())
        except Exception as error:  # the type depends on the version of distributed
            raise self._scheduler_lost() from error

    def _scheduler_lost(self) -> RequestError:
        return RequestError(f"{self._name}: the scheduler ended or was restarted during the analysis; run it again")

    def _check_workers(self) -> None:
        """Raise RequestError if the cluster is empty or one of its workers lacks this version of traceview."""
        if not self._client.nthreads():
            with suppress(Exception):  # a call makes an adaptive cluster start workers
                self._client.submit(_installed_version, pure=False).result(timeout=MAX_SECONDS_WITHOUT_WORKERS)
        if not self._client.nthreads():
            raise RequestError(f"{self._name}: the cluster has no workers; {REMEDY}")
        versions = self._client.run(_installed_version, on_error="return").values()
        others = {version if isinstance(version, str) else None for version in versions} - {VERSION}
        if others:
            problem = "cannot import traceview" if None in others else "has another version of traceview"
            raise RequestError(f"{self._name}: a worker {problem}; install {VERSION} there")


async def _unwatched(function: Callable[..., Result], *values: Any) -> Result:
    """Call a function on a Dask worker, in a thread that Dask's profiler does not sample.

    The profiler samples the threads that Dask creates and keeps 1,000 s of their stacks, 0.4 MB per second here. A
    task that waits for another thread still occupies its slot.
    """
    import asyncio

    return await asyncio.to_thread(function, *values)


def _identity(value: Any) -> Any:
    return value


def _installed_version() -> str:
    """Return the version of traceview that a worker has."""
    return VERSION


def dask_worker() -> Any:
    """Return the Dask worker that runs this call, or None outside of one."""
    if "distributed" not in sys.modules:
        return None
    try:
        return sys.modules["distributed"].get_worker()
    except ValueError:
        return None


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
