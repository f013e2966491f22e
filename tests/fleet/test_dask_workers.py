"""A cluster that loses workers or its scheduler; test_command starts real clusters."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from traceview.errors import RequestError
from traceview.fleet import dask_workers, local_workers
from traceview.fleet.dask_workers import DaskWorkers
from traceview.fleet.local_workers import LocalWorkers
from traceview.fleet.partials import ranks_of
from traceview.fleet.worker import Job, work, work_on_cluster

ADDRESS = "tcp://127.0.0.1:8786"


@dataclass
class Client:
    """Stands in for the client of distributed, to lose workers and scheduler at a chosen time."""

    workers: list[dict[str, int]]

    def nthreads(self) -> dict[str, int]:
        if not self.workers:
            raise OSError("the scheduler is gone")
        return self.workers.pop(0)


@dataclass
class Future:
    status: str
    outcome: str = ""
    error: type[Exception] = Exception

    def result(self, timeout: float) -> str:
        if not self.outcome:
            raise TimeoutError(timeout)
        return self.outcome

    def exception(self, timeout: float) -> Exception:
        return self.error(timeout)


class KilledWorker(Exception):  # noqa: N818 - the name in distributed
    pass


@pytest.fixture(autouse=True)
def _short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask_workers, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(dask_workers, "MAX_SECONDS_WITHOUT_WORKERS", 0.02)


def test_short_time_without_workers() -> None:
    ended: SimpleQueue[str] = SimpleQueue()

    class Restarting(Client):
        def nthreads(self) -> dict[str, int]:
            threads = super().nthreads()
            if not self.workers:
                ended.put("report")
            return threads

    # Without workers twice, each time briefly.
    client = Restarting([{}, {"a": 1}, {}, {"b": 1}])
    assert dask_workers._wait_for_next(ended, client, ADDRESS) == "report"


def test_lost_workers_or_scheduler_are_errors() -> None:
    with pytest.raises(RequestError, match=r"8786: no workers for 0\.02 s") as raised:
        dask_workers._wait_for_next(SimpleQueue(), Client([{}] * 100), ADDRESS)
    assert "\n" not in str(raised.value)
    with pytest.raises(RequestError, match="8786: the scheduler ended or was restarted"):
        dask_workers._wait_for_next(SimpleQueue(), Client([]), ADDRESS)
    with pytest.raises(RequestError, match="the scheduler ended or was restarted"):
        dask_workers._header(Future("cancelled"), ADDRESS)


def test_worker_that_fails_while_merging_gives_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise BrokenProcessPool

    monkeypatch.setattr(local_workers, "MAX_MEASURED_HERE", 0)
    monkeypatch.setattr(local_workers, "_process_pool", lambda _: nullcontext(SimpleNamespace(submit=fail)))
    with LocalWorkers(2) as local, pytest.raises(RequestError, match=r"merges results died, .* use fewer --workers"):
        local.run(ranks_of, [(0, local.kept(0))])  # type: ignore[type-var]

    class Failed(Future):
        key = "leaf"

        def add_done_callback(self, call: Callable[[Future], None]) -> None:
            call(self)

    cluster = DaskWorkers(ADDRESS)
    futures = SimpleNamespace(nthreads=lambda: {"a": 1}, who_has=lambda _: {}, submit=lambda *_, **__: Failed("error"))
    monkeypatch.setattr(cluster, "_client", futures, raising=False)
    with pytest.raises(RequestError, match=r"8786: the workers could not merge the results \(TimeoutError\)"):
        cluster.run(ranks_of, [(0, Failed("finished"))])  # type: ignore[type-var]


def test_worker_without_access_to_the_report(tmp_path: Path) -> None:
    path = str(tmp_path / "rank0.sqlite")
    assert str(work_on_cluster(path, Job(), exists_here=True)).startswith("the worker does not see it; ")
    # A missing file gives the same error as on one machine.
    nowhere = work_on_cluster(path, Job(), exists_here=False)
    assert nowhere == work(path, Job()) and str(nowhere).startswith("no such file; ")


def test_header_of_a_report() -> None:
    assert dask_workers._header(Future("finished", "why"), ADDRESS) == "why"
    assert dask_workers._header(Future("finished"), ADDRESS) == dask_workers.WORKERS_LOST
    assert dask_workers._header(Future("error", error=KilledWorker), ADDRESS) == dask_workers.WORKERS_LOST
    late = str(dask_workers._header(Future("error", error=ModuleNotFoundError), ADDRESS))
    assert late.startswith("a worker could not run traceview ") and late.endswith("(ModuleNotFoundError)")
