"""Launches without GPU work, counted call by call."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import sample
from traceview.model.trace import API, FAILED
from traceview.normalise.lost_events import count_launches, unrecorded_calls
from traceview.pipeline import open_trace

NAMES = ("cudaLaunchKernel", "cudaGraphLaunch", "cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaMemcpyAsync")
PROCESSES = (10, 20)
# Calls have a name, a process, the correlation id of the call before or not, work or not, a length of the work, and
# fail or not.
CALLS = st.lists(
    st.tuples(
        *(st.sampled_from(values) for values in (NAMES, PROCESSES)),
        *(st.booleans(), st.booleans(), st.integers(1, 40), st.booleans()),
    ),
    min_size=1,
    max_size=30,
)


def frames(calls: list[tuple[str, int, bool, bool, int, bool]]) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """Return the calls, the operations and the failed calls; a call begins every 10 ns."""
    rows = range(len(calls))
    api = pl.DataFrame(
        {
            "start": [10 * row for row in rows],
            "end": [10 * row + 5 for row in rows],
            "name": pl.Series([call[0] for call in calls], dtype=pl.Enum(NAMES)),
            "process": [call[1] for call in calls],
            "correlation": [row if row and call[2] else row + 1 for row, call in zip(rows, calls, strict=True)],
        },
        schema_overrides={name: API[name] for name in ("process", "correlation")},
    )
    working = [row for row in rows if calls[row][3]]
    ends = [10 * row + 7 + calls[row][4] for row in working]
    processes = [calls[row][1] for row in working]
    operations = pl.DataFrame(
        {"launch": working, "end": ends, "process": processes},
        schema={"launch": pl.Int32, "end": pl.Int64, "process": pl.Int32},
    )
    return api, operations, api.filter(pl.Series([call[5] for call in calls])).select(list(FAILED))


@given(CALLS)
def test_launches_without_work(calls: list[tuple[str, int, bool, bool, int, bool]]) -> None:
    api, operations, failed = frames(calls)
    counts = count_launches(api, operations, failed)
    assert (counts.total, counts.queued, sum(row.lost for row in counts.lost)) == counted(api, operations, failed)


def counted(api: pl.DataFrame, operations: pl.DataFrame, failed: pl.DataFrame) -> tuple[int, int, int]:
    """Return how many launches should have work, how many of these were queued, and how many were lost."""
    known, bad, depth = set(), set(failed.rows()), dict.fromkeys(PROCESSES, 0)
    launched = {process: [row for row, _, owner in operations.rows() if owner == process] for process in PROCESSES}
    reach = {
        process: max([end for _, end, owner in operations.rows() if owner == process], default=-1)
        for process in PROCESSES
    }
    total = queued = lost = 0
    for row, (start, _, name, process, correlation) in enumerate(api.rows()):
        depth[process] = max(0, depth[process] + (name == NAMES[2]) - (name == NAMES[3]))
        is_first, key = (process, correlation) not in known, (process, correlation)
        known.add(key)
        if name not in NAMES[:2]:
            continue
        if row in launched[process]:
            total += 1
        elif is_first and key not in bad and depth[process] == 0:
            total += 1
            waits = bool(launched[process]) and row > max(launched[process]) and start <= reach[process]
            queued, lost = queued + waits, lost + (not waits)
    return total, queued, lost


# Steps of ids and of ns from one recorded call to the next: 60 calls follow at once, others come after holes.
FULL, HOLE, LIBRARY = [(6, 1_000)] * 60, [(50_000, 200_000)], [(50_000, 5_000)]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        (FULL, 0),
        (FULL + HOLE * 12 + FULL, 600_000),
        (FULL + HOLE * 3 + FULL, 0),
        (FULL + LIBRARY * 12 + FULL, 0),  # many ids at once: a library that loads
        (FULL + [(900, 200_000)] * 12 + FULL, 0),  # a long time with few calls
        ([*FULL, (5_000, 200_000)] * 12, 60_000),
        (HOLE * 20, 0),  # ids that count no calls
    ],
)
def test_calls_that_were_not_recorded(steps: list[tuple[int, int]], expected: int) -> None:
    ids, starts = (np.cumsum([1, *each]) for each in zip(*steps, strict=True))
    for processes in ((10,), PROCESSES):
        each = [pl.DataFrame({"process": process, "start": starts, "correlation": ids}) for process in processes]
        assert unrecorded_calls(pl.concat(each).sort("start")) == expected * len(processes)


@pytest.mark.parametrize("name", ["serial", "dual", "quad", "ddp2"])
def test_samples_have_their_calls(name: str) -> None:
    assert open_trace(sample(f"{name}.sqlite")).info.trust.unrecorded == 0
