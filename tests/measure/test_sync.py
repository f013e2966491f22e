"""Tests of synchronizing calls against the definition, nanosecond by nanosecond."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import sample
from tests.made_trace import made_trace
from tests.measure.gaps.test_causes import touches, traces
from traceview.measure import sync
from traceview.measure.activity import Activity, device_activity
from traceview.measure.sync import _scale_exactly, measure_host
from traceview.model.analysis import HostUse
from traceview.model.trace import Trace, Window
from traceview.pipeline import open_trace

FIGURES = ("blocked", "waited", "starved", "idle_in_wait", "refill", "cost")


def test_names_of_calls_beyond_the_limit_are_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = open_trace(sample("torch_profiler/serial.json.gz"))
    every = measure_host(trace, ()).sync
    monkeypatch.setattr(sync, "MAX_NAMES", 1)
    first, rest = measure_host(trace, ()).sync.calls
    others = every.calls[1:]
    assert first == every.calls[0] and rest.api == f"({len(others)} other calls)"
    assert (rest.count, rest.blocked_ns) == (sum(row.count for row in others), sum(row.blocked_ns for row in others))


@st.composite
def several_processes(draw: st.DrawFn) -> Trace:
    """Draw a trace of two processes and two GPUs: thread 0 is of process 1, the others of process 2.

    Operations of stream 0 run on GPU 0, the others on GPU 1. The processes share all GPUs, one or none.
    """
    trace = draw(traces())
    sharing = draw(st.sampled_from([([1], [2]), ([1, 2], [2]), ([1, 2], [1, 2]), ([1], [1, 2])]))
    api = trace.api.with_columns(process=pl.when(pl.col("thread") == 0).then(1).otherwise(2).cast(pl.Int32))
    launch = trace.operations["launch"]
    process = [1 if row is None else api["process"][row] for row in launch]
    operations = trace.operations.with_columns(
        pl.Series("process", process, dtype=pl.Int32),
        pl.when(pl.col("stream") == 0).then(0).otherwise(1).cast(pl.Int16).alias("device"),
    )
    devices = pl.concat([trace.devices, trace.devices]).with_columns(
        pl.Series("processes", list(sharing), dtype=pl.List(pl.Int32))
    )
    return replace(trace, api=api, operations=operations, devices=devices)


def activities_of(trace: Trace) -> tuple[Activity, ...]:
    found = (device_activity(trace, index) for index in range(len(trace.devices)))
    return tuple(device for device in found if device is not None)


class Moments:
    """The blocking calls of a trace and their costs, found moment by moment."""

    def __init__(self, trace: Trace, activities: tuple[Activity, ...]) -> None:
        self.trace = trace
        self.window = {device.device: device.window for device in activities}
        self.users = {device: trace.devices["processes"][device].to_list() for device in self.window}
        operations = trace.operations.filter(pl.col("end") > pl.col("start")).rows(named=True)
        self.work = {device: [row for row in operations if row["device"] == device] for device in self.window}
        self.calls = trace.api.rows(named=True)
        self.spans = {
            row: self.inside_window(call) for row, call in enumerate(self.calls)
            if (call["role"] == "sync" or call["implicit"]) and (trace.window is None or touches(call, trace.window))
        }  # fmt: skip
        self.waits = self.find_waits()
        self.returned = [max(self.calls[row]["end"] for row in wait) for wait in self.waits]
        self.owner = [self.calls[wait[0]]["process"] for wait in self.waits]
        self.first_call = self.find_first_calls()

    def inside_window(self, call: dict[str, Any]) -> range:
        window = self.trace.window or Window(call["start"], call["end"])
        return range(max(call["start"], window.start), min(call["end"], window.end))

    def find_waits(self) -> list[list[int]]:
        launching = set(self.trace.operations["launch"].drop_nulls())
        waits: list[list[int]] = []
        current: dict[int, list[int]] = {}
        for row, call in enumerate(self.calls):
            if row in self.spans:
                if call["thread"] not in current:
                    current[call["thread"]] = []
                    waits.append(current[call["thread"]])
                current[call["thread"]].append(row)
            elif row in launching:
                current.pop(call["thread"], None)
        return sorted(waits, key=lambda wait: (self.calls[wait[0]]["thread"], wait[0]))

    def find_first_calls(self) -> dict[tuple[int, int], int]:
        """Return the call that began first of those that contain a moment, by process (of a GPU) and moment."""
        share_gpu = any(set(users) == {1, 2} for users in self.users.values())
        first: dict[tuple[int, int], int] = {}
        for row, span in self.spans.items():
            for process in (1, 2) if share_gpu else (self.calls[row]["process"],):
                for moment in span:
                    first.setdefault((process, moment), row)
        return first

    def is_busy(self, device: int, moment: int) -> bool:
        return self.in_window(device, moment) and any(row["start"] <= moment < row["end"] for row in self.work[device])

    def is_idle(self, device: int, moment: int) -> bool:
        return self.in_window(device, moment) and not self.is_busy(device, moment)

    def in_window(self, device: int, moment: int) -> bool:
        return self.window[device].start <= moment < self.window[device].end

    def any_busy(self, process: int, moment: int) -> bool:
        return any(self.is_busy(device, moment) for device in self.work if process in self.users[device])

    def is_lost(self, process: int, moment: int) -> bool:
        idle = any(self.is_idle(device, moment) for device in self.work if process in self.users[device])
        return idle and not self.any_busy(process, moment)

    def counts_in_call(self, process: int, moment: int) -> bool:
        row = self.first_call.get((process, moment))
        return row is not None and self.is_lost(self.calls[row]["process"], moment)

    def idle_in_wait(self, wait: list[int]) -> int:
        return sum(
            self.first_call[self.calls[row]["process"], moment] == row
            and self.is_lost(self.calls[row]["process"], moment)
            for row in wait
            for moment in self.spans[row]
        )

    def restart_gaps(self) -> list[int]:
        refill = [0] * len(self.waits)
        for device, rows in self.work.items():
            for start in sorted({row["start"] for row in rows}):
                follower = next(row for row in rows if row["start"] == start)
                wait = self.wait_before(follower)
                if wait is None or any(self.returned[wait] <= row["start"] < start for row in rows):
                    continue
                restart = range(self.returned[wait], min(start, self.window[device].end))
                if all(self.is_idle(device, moment) for moment in restart):
                    ns = sum(not self.counts_in_call(self.users[device][0], moment) for moment in restart)
                    refill[wait] = max(refill[wait], ns)
        return refill

    def wait_before(self, operation: dict[str, Any]) -> int | None:
        """Return the last wait of the process that returned before the launch of an operation."""
        if operation["launch"] is None:
            return None
        launch = self.calls[operation["launch"]]
        until = min(launch["start"], operation["start"])
        waits = [index for index, owner in enumerate(self.owner) if owner == launch["process"]]
        waits = [index for index in waits if self.returned[index] <= until]
        return max(waits, key=lambda index: (self.returned[index], index), default=None)


def expected_calls(trace: Trace, activities: tuple[Activity, ...]) -> dict[int, tuple[int, ...]]:
    """Return FIGURES of each blocking call (row of Trace.api)."""
    moments = Moments(trace, activities)
    result: dict[int, tuple[int, ...]] = {}
    for wait, refill in zip(moments.waits, moments.restart_gaps(), strict=True):
        idle = moments.idle_in_wait(wait)
        blocked = [len(moments.spans[row]) for row in wait]
        shares = [share(total, blocked) for total in (idle, refill, min(idle + refill, sum(blocked)))]
        for row, ns, *parts in zip(wait, blocked, *shares, strict=True):
            waited = sum(moments.any_busy(moments.calls[row]["process"], moment) for moment in moments.spans[row])
            result[row] = (ns, waited, ns - waited, *parts)
    return result


def share(total: int, blocked: list[int]) -> list[int]:
    edges = [total * sum(blocked[:count]) // max(sum(blocked), 1) for count in range(len(blocked) + 1)]
    return [after - before for before, after in pairwise(edges)]


def measured_calls(host: HostUse) -> dict[int, tuple[int, ...]]:
    frame = pl.concat([host.sync.frame, host.implicit_sync.frame])
    return dict(zip(frame["api"], frame.select(FIGURES).rows(), strict=True))


@settings(max_examples=100, deadline=None)
@given(st.one_of(traces(), several_processes()))
def test_calls_by_the_nanosecond(trace: Trace) -> None:
    activities = activities_of(trace)
    host = measure_host(trace, activities)
    assert measured_calls(host) == expected_calls(trace, activities)


def measured(trace: Trace) -> HostUse:
    return measure_host(trace, activities_of(trace))


def test_waiting_for_gpu_work_has_no_cost() -> None:
    trace = made_trace(
        [(0, 100, "compute", 0, 0), (130, 200, "compute", 0, 1)],
        [(0, 2, "api", 0), (120, 125, "api", 0), (5, 105, "sync", 0)],
    )
    sync = measured(trace).sync
    assert (sync.blocked_ns, sync.waited_ns, sync.starved_ns) == (100, 95, 5)
    assert (sync.idle_in_wait_ns, sync.refill_ns, sync.cost_ns) == (5, 25, 30)


def test_wait_costs_at_most_what_it_blocks() -> None:
    trace = made_trace(
        [(0, 100, "compute", 0, 0), (900, 1000, "compute", 0, 2)],
        [(0, 2, "api", 0), (95, 103, "sync", 0), (890, 895, "api", 0)],
    )
    sync = measured(trace).sync
    assert (sync.refill_ns, sync.blocked_ns, sync.cost_ns) == (797, 8, 8)


def test_restart_gap_belongs_to_the_last_wait_alone() -> None:
    """Thread 1 returns first, thread 0 last; thread 0 launches what ends the gap."""
    trace = made_trace(
        [(0, 100, "compute", 0, 0), (150, 200, "compute", 0, 1)],
        [(0, 2, "api", 0), (140, 145, "api", 0), (50, 102, "sync", 1), (50, 110, "sync", 0)],
    )
    frame = measured(trace).sync.frame.sort("thread")
    assert frame["refill"].to_list() == [40, 0]
    assert frame["idle_in_wait"].sum() == 10


def test_time_after_the_last_operation_costs_nothing() -> None:
    trace = made_trace([(0, 100, "compute", 0, 0)], [(0, 2, "api", 0), (50, 5000, "sync", 0), (5100, 9000, "sync", 0)])
    sync = measured(trace).sync
    assert (sync.starved_ns, sync.cost_ns) == (8800, 0)


def test_calls_share_the_cost_of_their_wait() -> None:
    """An item(): the copy blocks 30 ns, the synchronization after it 10 ns; nothing is launched between them."""
    trace = made_trace(
        [(0, 100, "compute", 0, 0), (140, 200, "compute", 0, 3)],
        [(0, 2, "api", 0), (70, 100, "sync", 0), (101, 111, "sync", 0), (130, 135, "api", 0)],
    )
    frame = measured(trace).sync.frame
    assert frame["wait"].n_unique() == 1
    assert frame["cost"].to_list() == [29, 10]


@given(st.integers(0, 1 << 60), st.integers(1, 1 << 60), st.floats(0, 1))
def test_shares_of_long_waits_do_not_overflow(total: int, whole: int, fraction: float) -> None:
    part = int(whole * fraction)
    total = min(total, whole)
    series = (pl.Series([value], dtype=pl.Int64).to_numpy() for value in (total, part, whole))
    assert int(_scale_exactly(*series)[0]) == total * part // whole


def test_window_clips_calls_and_gaps() -> None:
    trace = made_trace(
        [(0, 100, "compute", 0, 0), (150, 200, "compute", 0, 2)],
        [(0, 2, "api", 0), (40, 104, "sync", 0), (140, 145, "api", 0)],
        window=Window(90, 120),
    )
    sync = measured(trace).sync
    assert (sync.blocked_ns, sync.waited_ns, sync.idle_in_wait_ns, sync.refill_ns) == (14, 10, 4, 16)
    assert sync.cost_ns == 14
