"""Reports read by the workers of a Dask cluster, which see the same files under the same paths.

Dask sends pickled code and unpickles what comes back, so whoever runs the scheduler's address can run code here and
on its workers. TLS proves that the scheduler is one that the certificate authority signed.
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
from traceview.fleet.form import packed
from traceview.fleet.job import Job, Tls
from traceview.fleet.worker import version, work_unwatched

REACHED_IN = "10s"
HEARD_IN = 5  # seconds
PATIENCE = 60  # seconds that a cluster may be without workers
IN_FLIGHT = 4  # reports handed out for each thread of the cluster
RETRIES = 2
LOST = "the workers that read it were lost, most likely for want of memory; give them more, or fewer threads"
REMEDY = "start one with: dask scheduler, then dask worker ADDRESS --nthreads 1, with traceview installed there"


def read_on_cluster(
    paths: Sequence[Path], job: Job, address: str, tls: Tls | None = None
) -> Generator[tuple[int, bytes], None, None]:
    """Yield (place in `paths`, packed result) as they come. A lost worker's reports are read by another.

    Raises RequestError where distributed is missing, the scheduler cannot be reached or is lost, no worker is left,
    or one has not this version of traceview.
    """
    with _client(address, tls) as client:
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
def _client(address: str, tls: Tls | None) -> Iterator[Any]:
    try:
        distributed: Any = import_module("distributed")
    except ImportError:
        raise RequestError("--scheduler needs the package distributed: pip install 'traceview[dask]'") from None
    # What becomes of lost workers stands in the result; the log would break into the progress.
    for name in ("distributed", "distributed.client", "distributed.core", "distributed.comm"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        security = _security(distributed, address, tls)
        client = distributed.Client(address, timeout=REACHED_IN, set_as_default=False, security=security)
    except (OSError, ValueError) as error:
        raise RequestError(
            f"--scheduler {address[:200]}: no scheduler can be reached there ({type(error).__name__}); {REMEDY}"
        ) from None
    try:
        _check(client, address)
        yield client
    finally:
        client.close()


def _security(distributed: Any, address: str, tls: Tls | None) -> Any:
    """Return Dask's settings of TLS, which refuse plain text: from files, or without those from Dask's own settings.

    Raises RequestError where certificates are missing or do not belong together.
    """
    files = {} if tls is None else {"tls_ca_file": str(tls.ca_file), "tls_client_cert": str(tls.cert)}
    if tls is not None and tls.key is not None:
        files["tls_client_key"] = str(tls.key)
    security = distributed.security.Security(**files, **({"require_encryption": True} if files else {}))
    try:
        certified = security.get_connection_args("client").get("ssl_context") is not None
    except ssl.SSLError as error:
        raise RequestError(
            f"--tls-ca-file, --tls-cert, --tls-key: not PEM files that belong together ({error.reason}); "
            "name the files that the cluster was started with"
        ) from None
    if address.startswith("tls://") and not certified:
        raise RequestError(
            f"--scheduler {address[:200]}: TLS needs certificates; "
            "name them with --tls-ca-file, --tls-cert and --tls-key"
        )
    return security


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
