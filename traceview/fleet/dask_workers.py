"""Reads and measures reports on the workers of a Dask cluster, which see the same files under the same paths.

Dask sends pickled code and unpickles the answers: whoever controls the scheduler's address can run code here and on
the workers. TLS proves that the configured certificate authority signed the scheduler's certificate.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, cast

from traceview import __version__
from traceview.errors import RequestError
from traceview.fleet.partials import P, Work
from traceview.fleet.worker import (
    Job,
    header_of,
    installed_version,
    measure_results,
    unwatched,
    work_on_cluster,
)
from traceview.frozen import frozen
from traceview.model.fleet import ReportResult

CONNECT_TIMEOUT = "10s"
POLL_SECONDS = 5
MAX_SECONDS_WITHOUT_WORKERS = 60
REPORTS_PER_LEAF = 32
LEAVES_PER_THREAD = 2
REPORTS_PER_THREAD = 4  # submitted at once, for each thread of the cluster
RETRIES = 2
WORKERS_LOST = "the workers that read it were lost, probably out of memory; give them more memory or fewer threads"
REMEDY = "start it with: dask scheduler, then dask worker ADDRESS --nthreads 1, with traceview installed there"


@frozen
class Tls:
    """PEM files: the cluster's certificate authority, this client's certificate and key (None: in `cert`)."""

    ca_file: Path
    cert: Path
    key: Path | None = None


class DaskWorkers:
    """The workers of a cluster. They keep the results in files: Dask reads a report again if its worker is lost."""

    def __init__(self, address: str, tls: Tls | None = None) -> None:
        """`address` is that of the scheduler."""
        self._address, self._tls = address, tls
        self._kept: dict[int, Any] = {}
        self._open = ExitStack()

    def __enter__(self) -> DaskWorkers:
        """Connect. Raises RequestError if distributed is not installed, or as _connected_client() does."""
        self._client = self._open.enter_context(_connected_client(self._address, self._tls))
        return self

    def __exit__(self, *error: Any) -> None:
        self._kept.clear()
        self._open.__exit__(*error)

    def kept(self, index: int) -> Any:
        """Return the future of a report's result."""
        return self._kept[index]

    def read(self, paths: Sequence[Path], job: Job) -> Generator[tuple[int, ReportResult | str], None, None]:
        """Yield (index in `paths`, header or the reason why there is none) as reports complete.

        Another worker takes over from a lost one.

        Raises RequestError if the scheduler is lost, or if no worker is left.
        """
        client = self._client
        waiting = deque(range(len(paths)))
        max_running = REPORTS_PER_THREAD * self._threads()
        running: dict[str, tuple[int, Any]] = {}
        ended: SimpleQueue[str] = SimpleQueue()
        while waiting or running:
            while waiting and len(running) < max_running:
                index = waiting.popleft()
                path = paths[index].absolute()
                result = self._submit(work_on_cluster, str(path), job, path.exists())
                future = self._submit(header_of, result)
                self._kept[index] = result
                running[future.key] = index, future
                future.add_done_callback(lambda done: ended.put(done.key))
            index, future = running.pop(_wait_for_next(ended, client, self._address))
            yield index, _header(future, self._address)
            future.release()

    def run(self, work: Work[P], kept: Sequence[tuple[int, Any]]) -> P:
        """Measure kept results on the workers that have them, and merge the partial measures as they come.

        Raises RequestError if workers or the scheduler are lost for good.
        """
        shared = self._submit(_identity, work)  # once for all tasks
        leaves = self._leaves(kept)
        running: dict[str, Any] = {}
        ended: SimpleQueue[str] = SimpleQueue()
        total: P | None = None
        while leaves or running:
            while leaves and len(running) < LEAVES_PER_THREAD * self._threads():
                first, results = zip(*leaves.popleft(), strict=True)
                future = self._submit(measure_results, shared, first, results)
                running[future.key] = future
                future.add_done_callback(lambda done: ended.put(done.key))
            future = running.pop(_wait_for_next(ended, self._client, self._address))
            try:
                part = cast("P", future.result(timeout=MAX_SECONDS_WITHOUT_WORKERS))
            except Exception as error:  # the type depends on the version of distributed
                raise RequestError(
                    f"--scheduler {self._address[:200]}: the workers could not merge the results "
                    f"({type(error).__name__}); give them more memory"
                ) from None
            total = part if total is None else total.merged(part)
            future.release()
        assert total is not None
        return total

    def _leaves(self, kept: Sequence[tuple[int, Any]]) -> deque[list[tuple[int, Any]]]:
        """Return the results in groups of REPORTS_PER_LEAF at most that one worker has."""
        try:
            holders = self._client.who_has([result for _, result in kept])
        except Exception as error:  # the type depends on the version of distributed
            raise _scheduler_lost(self._address) from error
        by_worker: dict[tuple[str, ...], list[tuple[int, Any]]] = {}
        for first, result in kept:
            by_worker.setdefault(tuple(holders.get(result.key, ())), []).append((first, result))
        return deque(
            some[start : start + REPORTS_PER_LEAF]
            for some in by_worker.values()
            for start in range(0, len(some), REPORTS_PER_LEAF)
        )

    def _threads(self) -> int:
        threads: int = sum(self._client.nthreads().values())
        return max(threads, 1)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Any:
        return self._client.submit(unwatched, function, *arguments, pure=False, retries=RETRIES)


def _identity(work: Work[P]) -> Work[P]:
    return work


def _wait_for_next(ended: SimpleQueue[str], client: Any, address: str) -> str:
    """Return the key of the next report to end. Raises RequestError if workers or scheduler are gone for good."""
    without_workers_since: float | None = None
    while True:
        try:
            return ended.get(timeout=POLL_SECONDS)
        except Empty:
            pass
        try:
            without_workers = not client.nthreads()
        except Exception as error:  # the type depends on the version of distributed
            raise _scheduler_lost(address) from error
        without_workers_since = (without_workers_since or monotonic()) if without_workers else None
        if without_workers_since is not None and monotonic() - without_workers_since > MAX_SECONDS_WITHOUT_WORKERS:
            raise RequestError(
                f"--scheduler {address[:200]}: no workers for {MAX_SECONDS_WITHOUT_WORKERS} s; read their logs, and "
                "give them more memory if they ran out of it"
            )


def _header(future: Any, address: str) -> ReportResult | str:
    """Return the header of a report, or the reason why there is none."""
    if future.status == "finished":
        try:
            return cast("ReportResult | str", future.result(timeout=MAX_SECONDS_WITHOUT_WORKERS))
        except Exception:  # the worker that held the result is gone and was not replaced
            return WORKERS_LOST
    if future.status != "error":
        raise _scheduler_lost(address)
    name = type(future.exception(timeout=MAX_SECONDS_WITHOUT_WORKERS)).__name__
    return WORKERS_LOST if name == "KilledWorker" else f"a worker could not run traceview {__version__} ({name})"


def _scheduler_lost(address: str) -> RequestError:
    return RequestError(
        f"--scheduler {address[:200]}: the scheduler ended or was restarted during the analysis; run it again"
    )


@contextmanager
def _connected_client(address: str, tls: Tls | None) -> Iterator[Any]:
    """Connect to a scheduler whose workers can run this version of traceview. Raises RequestError."""
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise RequestError("--scheduler needs the package distributed: pip install 'traceview[dask]'") from None
    # The result reports lost workers; log lines would interrupt the progress display.
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        security = _tls_settings(distributed, address, tls)
        client = distributed.Client(address, timeout=CONNECT_TIMEOUT, set_as_default=False, security=security)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"--scheduler {address[:200]}: cannot connect to a scheduler ({type(error).__name__}); {REMEDY}"
        ) from None
    try:
        _check_workers(client, address)
        yield client
    finally:
        client.close()


def _tls_settings(distributed: Any, address: str, tls: Tls | None) -> Any:
    """Return Dask's TLS settings: from files, which require encryption, or else from Dask's own configuration.

    Raises RequestError if certificates are missing or do not belong together.
    """
    files = {} if tls is None else {"tls_ca_file": str(tls.ca_file), "tls_client_cert": str(tls.cert)}
    if tls is not None and tls.key is not None:
        files["tls_client_key"] = str(tls.key)
    security = distributed.security.Security(**files, **({"require_encryption": True} if files else {}))
    try:
        has_certificate = security.get_connection_args("client").get("ssl_context") is not None
    except ssl.SSLError as error:
        raise RequestError(
            f"--tls-ca-file, --tls-cert, --tls-key: not PEM files that belong together ({error.reason}); "
            "name the files that the cluster uses"
        ) from None
    if address.startswith("tls://") and not has_certificate:
        raise RequestError(
            f"--scheduler {address[:200]}: TLS needs certificates; "
            "name them with --tls-ca-file, --tls-cert and --tls-key"
        )
    return security


def _check_workers(client: Any, address: str) -> None:
    """Raise RequestError if the cluster has no workers or one of them lacks this version of traceview."""
    if not client.nthreads():
        raise RequestError(f"--scheduler {address[:200]}: the cluster has no workers; {REMEDY}")
    versions = client.run(installed_version, on_error="return").values()
    others = {version if isinstance(version, str) else None for version in versions} - {__version__}
    if others:
        problem = "cannot import traceview" if None in others else "has another version of traceview"
        raise RequestError(f"--scheduler {address[:200]}: a worker {problem}; install {__version__} there")
