"""What threads wait for. Tables are made by hand."""

from __future__ import annotations

import polars as pl

from traceview.normalise.host_events import waited_for
from traceview.normalise.threads import Threads
from traceview.read import raw

MS = 1_000_000


def tid(process: int, thread: int) -> int:
    return (process << 24) | thread


def test_wait_is_for_the_thread_that_runs() -> None:
    names = {"main": (7, 7), "pin_memory": (7, 8), "worker": (9, 9), "cuda-EvtHandlr": (7, 6), "stranger": (11, 11)}
    runs = (((9, 9), 9 * MS), ((7, 6), 30 * MS), ((11, 11), 30 * MS))
    tables = {
        raw.STRINGS: pl.DataFrame({"id": range(5), "value": list(names)}),
        raw.THREAD_NAMES: pl.DataFrame({"nameId": range(5), "globalTid": [tid(*who) for who in names.values()]}),
        raw.PROCESSES: pl.DataFrame({"globalPid": [7 << 24, 9 << 24], "name": ["/bin/python", "python"]}),
        raw.SYSTEM_CALLS: pl.DataFrame({"start": [0], "end": [25 * MS], "globalTid": [tid(7, 8)], "nameId": [0]}),
        raw.SCHEDULING: pl.DataFrame(
            [(at, on, tid(*who)) for who, until in runs for at, on in ((0, 1), (until, 0))],
            schema=["start", "isSchedIn", "globalTid"],
            orient="row",
        ),
    }
    names_of_calls = ["sem_timedwait", "pthread_cond_wait", "read", "poll"]
    starts, ends = [0, 15 * MS, 15 * MS, 26 * MS], [10 * MS, 25 * MS, 25 * MS, 29 * MS]
    waits = pl.DataFrame({"start": starts, "end": ends, "name": names_of_calls, "thread": [0] * 4})
    result = waited_for(waits, tables, Threads(pl.Series("globalTid", [tid(7, 7)])))
    # The process has the program's name; drivers and strangers do not count, nor do files.
    assert result.to_list() == ["process python", "thread pin_memory", "", ""]
