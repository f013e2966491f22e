"""A cluster that loses workers or its scheduler; test_command starts real clusters."""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import CancelledError, Executor, Future
from types import SimpleNamespace
from typing import Any

import pytest

from tests.ranks.reports import ranks_of
from traceview import __version__
from traceview.errors import RequestError
from traceview.ranks import cluster
from traceview.ranks.analyze_reports import analyze_reports
from traceview.ranks.cluster import WORKERS_LOST, on_cluster

ADDRESS = "tcp://127.0.0.1:8786"
Outcome = Callable[..., Any]


class KilledWorker(Exception):  # noqa: N818 - the name in distributed
    pass


class Calls(Executor):
    """Stands in for the executor of distributed: runs each call here, or ends it as `outcome` does."""

    def __init__(self, outcome: Outcome | None) -> None:
        self.outcome = outcome

    def submit(self, _unwatched: object, /, function: Any, *values: Any, **_options: Any) -> Future[Any]:  # type: ignore[override]
        future: Future[Any] = Future()
        if self.outcome is None:
            return future  # never ends
        try:
            future.set_result(self.outcome(function, *values))
        except CancelledError:
            future.cancel()
            future.set_running_or_notify_cancel()
        except Exception as error:
            future.set_exception(error)
        return future


class Client:
    """Stands in for the client of distributed, to lose workers and scheduler at a chosen time."""

    status = "running"
    ends = False

    def __init__(self, outcome: Outcome | None, threads: list[dict[str, int]]) -> None:
        self.outcome, self.threads, self.versions = outcome, threads, {"a": __version__}
        self.submitted: list[object] = []

    def get_executor(self, **_options: object) -> Executor:
        return Calls(self.outcome)

    def submit(self, function: object, *values: object, **_options: object) -> object:
        self.submitted.append(function)
        return values[-1] if values else None

    def nthreads(self) -> dict[str, int]:
        """Return the next of `threads`, whose last remains, or is the last before the scheduler `ends`."""
        if self.ends and len(self.threads) == 1:
            raise OSError("the scheduler is gone")
        return self.threads.pop(0) if len(self.threads) > 1 else self.threads[0]

    def run(self, _function: object, *_values: object, **_options: object) -> dict[str, object]:
        return dict(self.versions)

    def close(self) -> None:
        self.status = "closed"


def called(function: Any, *values: Any) -> Any:
    return function(*values)


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Client]:
    """Return a function that makes the client of the next cluster, which calls functions as `outcome` does."""

    def connect(outcome: Outcome | None = None, *threads: dict[str, int]) -> Client:
        client = Client(outcome, list(threads or ({"a": 1},)))
        monkeypatch.setitem(
            sys.modules,
            "distributed",
            SimpleNamespace(
                Client=lambda *_, **__: client,
                security=SimpleNamespace(Security=lambda **_: SimpleNamespace(get_connection_args=lambda _: {})),
            ),
        )
        return client

    monkeypatch.setattr(cluster, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(cluster, "MAX_SECONDS_WITHOUT_WORKERS", 0.02)
    return connect


def read(*jobs: int) -> list[tuple[int, object]]:
    return list(on_cluster(str, jobs, ADDRESS))


def test_cluster_without_workers(connect: Callable[..., Client]) -> None:
    """A short time without workers is none; a long one is one line."""
    connect(None, {"a": 1}, {"a": 1}, {}, {"a": 1}, {}, {"a": 1}, {}, {})
    with pytest.raises(RequestError, match=r"8786: no workers for 0\.02 s") as raised:
        read(1)
    assert "\n" not in str(raised.value)
    connect(None, {})
    with pytest.raises(RequestError, match="8786: the cluster has no workers; start it with"):
        read(1)


def test_call_starts_the_workers_of_an_adaptive_cluster(connect: Callable[..., Client]) -> None:
    client = connect(called, {}, {"a": 1})
    assert dict(read(1, 2)) == {0: "1", 1: "2"}
    assert client.submitted == [cluster._installed_version] and client.status == "closed"


def test_workers_with_another_version(connect: Callable[..., Client]) -> None:
    client = connect()
    client.versions = {"a": __version__, "b": "0.0.1"}
    with pytest.raises(RequestError, match="a worker has another version of traceview; install"):
        read(1)
    client.versions = {"a": __version__, "b": ImportError()}  # type: ignore[dict-item]
    with pytest.raises(RequestError, match="a worker cannot import traceview"):
        read(1)
    assert client.status == "closed"


def cancelled(*_: object) -> None:
    raise CancelledError


def test_lost_scheduler_is_one_line(connect: Callable[..., Client]) -> None:
    client = connect(None, {"a": 1}, {"a": 1}, {"a": 1})
    with pytest.raises(RequestError, match=r"8786: the scheduler ended or was restarted .*\(OSError\)"):
        client.ends = True
        read(1)
    connect(cancelled)
    with pytest.raises(RequestError, match="8786: the scheduler ended or was restarted"):
        analyze_reports(ranks_of("slowhost"), scheduler=ADDRESS)


def test_result_of_a_lost_worker(connect: Callable[..., Client]) -> None:
    """It costs its report; the others are read."""
    for error, words in (
        (KilledWorker(), WORKERS_LOST),
        (ModuleNotFoundError(), f"a worker could not run traceview {__version__} (ModuleNotFoundError)"),
    ):

        def outcome(function: Any, job: int, error: Exception = error) -> Any:
            if job == 2:
                raise error
            return function(job)

        connect(outcome)
        assert dict(read(1, 2, 3)) == {0: "1", 1: words, 2: "3"}
