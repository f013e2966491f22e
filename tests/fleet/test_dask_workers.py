"""A cluster that loses workers or its scheduler; test_command starts real clusters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from traceview.errors import RequestError
from traceview.fleet import dask_workers
from traceview.fleet.serialization import deserialize, serialize
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
    data: bytes = b""
    error: type[Exception] = Exception

    def result(self, timeout: float) -> bytes:
        if not self.data:
            raise TimeoutError(timeout)
        return self.data

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
        dask_workers._serialized_result(Future("cancelled"), ADDRESS)


def test_worker_without_access_to_the_report(tmp_path: Path) -> None:
    path = str(tmp_path / "rank0.sqlite")
    client_sees_it = deserialize(work_on_cluster(path, Job(), exists_here=True))
    assert str(client_sees_it).startswith("the worker does not see it; ")
    # A missing file gives the same error as on one machine.
    nowhere = work_on_cluster(path, Job(), exists_here=False)
    assert nowhere == work(path, Job()) and str(deserialize(nowhere)).startswith("no such file; ")


def test_result_of_a_report() -> None:
    assert dask_workers._serialized_result(Future("finished", serialize("why")), ADDRESS) == serialize("why")
    assert deserialize(dask_workers._serialized_result(Future("finished"), ADDRESS)) == dask_workers.WORKERS_LOST
    killed = dask_workers._serialized_result(Future("error", error=KilledWorker), ADDRESS)
    assert deserialize(killed) == dask_workers.WORKERS_LOST
    late = deserialize(dask_workers._serialized_result(Future("error", error=ModuleNotFoundError), ADDRESS))
    assert str(late).startswith("a worker could not run traceview ") and str(late).endswith("(ModuleNotFoundError)")
