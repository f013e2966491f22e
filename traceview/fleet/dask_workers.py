"""Reads reports on the workers of a Dask cluster, which see the same files under the same paths.

Dask sends pickled code and unpickles the answers: whoever controls the scheduler's address can run code here and on
the workers. TLS proves that the configured certificate authority signed the scheduler's certificate.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from traceview import __version__
from traceview.errors import RequestError
from traceview.fleet.serialization import serialize
from traceview.fleet.worker import Job, installed_version, work_unwatched
from traceview.frozen import frozen

CONNECT_TIMEOUT = "10s"
POLL_SECONDS = 5
MAX_SECONDS_WITHOUT_WORKERS = 60
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


def read_on_cluster(
    paths: Sequence[Path], job: Job, address: str, tls: Tls | None = None
) -> Generator[tuple[int, bytes], None, None]:
    """Yield (index in `paths`, serialized result) as reports complete. Another worker takes over from a lost one.

    Raises RequestError if distributed is not installed, if the scheduler cannot be reached or is lost, if no worker
    is left, or if a worker has another version of traceview.
    """
    with _connected_client(address, tls) as client:
        waiting = deque(range(len(paths)))
        max_running = REPORTS_PER_THREAD * max(sum(client.nthreads().values()), 1)
        running: dict[str, tuple[int, Any]] = {}
        ended: SimpleQueue[str] = SimpleQueue()
        while waiting or running:
            while waiting and len(running) < max_running:
                index = waiting.popleft()
                path = paths[index].absolute()
                arguments = (str(path), job, path.exists())
                future = client.submit(work_unwatched, *arguments, pure=False, retries=RETRIES)
                running[future.key] = index, future
                future.add_done_callback(lambda done: ended.put(done.key))
            index, future = running.pop(_wait_for_next(ended, client, address))
            yield index, _serialized_result(future, address)
            future.release()


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


def _serialized_result(future: Any, address: str) -> bytes:
    """Return the serialized result of a report, or the reason why there is none."""
    if future.status == "finished":
        try:
            return bytes(future.result(timeout=MAX_SECONDS_WITHOUT_WORKERS))
        except Exception:  # the worker that held the result is gone and was not replaced
            return serialize(WORKERS_LOST)
    if future.status != "error":
        raise _scheduler_lost(address)
    name = type(future.exception(timeout=MAX_SECONDS_WITHOUT_WORKERS)).__name__
    failure = f"a worker could not run traceview {__version__} ({name})"
    return serialize(WORKERS_LOST if name == "KilledWorker" else failure)


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
