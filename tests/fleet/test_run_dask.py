"""What becomes of a report on a cluster that loses workers or its scheduler; the cluster itself is in test_command."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import pytest

from traceview.errors import RequestError
from traceview.fleet import run_dask
from traceview.fleet.form import packed, unpacked
from traceview.fleet.job import Job
from traceview.fleet.worker import work, work_unwatched

ADDRESS = "tcp://127.0.0.1:8786"


@dataclass
class Client:
    """Stands in for distributed's, whose workers and scheduler cannot be lost on time in a test."""

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


class KilledWorker(Exception):  # noqa: N818 - as distributed calls it
    pass


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_dask, "HEARD_IN", 0.01)
    monkeypatch.setattr(run_dask, "PATIENCE", 0.02)


def test_a_cluster_may_be_without_workers_for_a_while() -> None:
    ended: SimpleQueue[str] = SimpleQueue()

    class Restarting(Client):
        def nthreads(self) -> dict[str, int]:
            found = super().nthreads()
            if not self.workers:
                ended.put("report")
            return found

    # Without workers twice, but not for long at once.
    client = Restarting([{}, {"a": 1}, {}, {"b": 1}])
    assert run_dask._next(ended, client, ADDRESS) == "report"


def test_no_worker_and_no_scheduler_end_in_one_line() -> None:
    with pytest.raises(RequestError, match=r"8786: no worker has been left for 0\.02 s") as raised:
        run_dask._next(SimpleQueue(), Client([{}] * 100), ADDRESS)
    assert "\n" not in str(raised.value)
    with pytest.raises(RequestError, match="8786: the scheduler ended or was restarted"):
        run_dask._next(SimpleQueue(), Client([]), ADDRESS)
    with pytest.raises(RequestError, match="the scheduler ended or was restarted"):
        run_dask._result(Future("cancelled"), ADDRESS)


def on_a_worker(path: str, *, seen: bool) -> bytes:
    # In a thread of its own: a browser of other tests has a loop running in this one.
    with ThreadPoolExecutor(1) as aside:
        return aside.submit(lambda: asyncio.run(work_unwatched(path, Job(), seen))).result()


def test_a_worker_that_does_not_see_a_report_says_so(tmp_path: Path) -> None:
    path = str(tmp_path / "rank0.sqlite")
    there = unpacked(on_a_worker(path, seen=True))
    assert str(there).startswith("the worker does not see it; ")
    # Nobody has it: the same words as on one machine.
    nowhere = on_a_worker(path, seen=False)
    assert nowhere == work(path, Job()) and str(unpacked(nowhere)).startswith("no such file; ")


def test_what_a_report_became() -> None:
    assert run_dask._result(Future("finished", packed("why")), ADDRESS) == packed("why")
    assert unpacked(run_dask._result(Future("finished"), ADDRESS)) == run_dask.LOST
    assert unpacked(run_dask._result(Future("error", error=KilledWorker), ADDRESS)) == run_dask.LOST
    late = unpacked(run_dask._result(Future("error", error=ModuleNotFoundError), ADDRESS))
    assert str(late).startswith("a worker could not run traceview ") and str(late).endswith("(ModuleNotFoundError)")
