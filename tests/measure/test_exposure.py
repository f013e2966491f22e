"""Exposed time by cause: against the oracle on captures and on random timelines, and each cause alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import SAMPLES, analyzed, sample, shared
from tests.made_trace import made_trace
from tests.oracle.exposure import exposed_operations, grouped
from tests.oracle.iterations import fold
from traceview.measure.activity import device_activity
from traceview.measure.base import DeviceInput
from traceview.measure.exposure import device_exposure
from traceview.measure.gaps import ThreadStates
from traceview.measure.nvtx import LIBRARY_NAMES, project_operations
from traceview.measure.overlap import communication_overlap, exposed_ranges
from traceview.measure.places import locate_operations
from traceview.measure.rates import collectives
from traceview.model.trace import CLASSES, LIBRARY_DOMAINS, STREAM_EVENTS, Trace, Window
from traceview.pipeline import open_trace

US = 1_000
SAMPLED = (
    *("trainer/ddp.sqlite", "trainer/prefetch.sqlite", "trainer/serial.sqlite", "trainer/staged.sqlite"),
    *("fsdp_tp/rank0.json.gz", "mpi/heat.sqlite", "scenarios/p2p.sqlite", "scenarios/many_streams.sqlite"),
    *(f"exposure/{path.name}" for path in sorted((SAMPLES / "exposure").glob("*.xz"))),
)
SHARED = (
    *("h200_ddp2.sqlite", "public/nsys2026.2_2gpu_nccl.sqlite", "public/teek_task3.sqlite.xz"),
    *("public/polpuig2.sqlite.xz", "public/nsys2023.4_arm64_jacobi.sqlite"),
)


def causes(trace: Trace, window: Window | None = None, device: int = 0) -> dict[str, dict[str, int]]:
    """Return the exposed ns of each kind of work by the causes that it has."""
    work = device_activity(trace, device)
    assert work is not None
    return nonzero(device_exposure(trace, work).inside(trace, window or work.window).by_work)


Causes = dict[tuple[str, int], dict[str, int]]


def expected_operations(trace: Trace, device: int, window: Window, complete: Window) -> Causes:
    """Return the oracle's causes; memsets of less than a two-hundredth of the complete window have none."""
    sums = exposed_operations(trace, device, window)
    memsets = trace.operations.filter(pl.col("class") == "memset", pl.col("device") == device)
    if int((memsets["end"] - memsets["start"]).sum()) * 200 < complete.length:
        return {key: some for key, some in sums.items() if key[0] != "memset"}
    return sums


def by_work(operations: Causes) -> dict[str, dict[str, int]]:
    return grouped((work, some) for (work, _), some in operations.items())


def expected(trace: Trace, device: int, window: Window, complete: Window) -> dict[str, dict[str, int]]:
    return by_work(expected_operations(trace, device, window, complete))


def innermost_ranges(trace: Trace) -> Callable[[int], str | None]:
    """Return the name of the range around the launch of an operation, without its numbers, in plain Python."""
    ranges = [row for row in trace.ranges.iter_rows(named=True)
              if row["domain"] not in LIBRARY_DOMAINS and not re.search(LIBRARY_NAMES, row["name"])]  # fmt: skip
    spent: dict[tuple[int, int], int] = {}
    for row in ranges:
        key = row["process"], row["thread"]
        spent[key] = spent.get(key, 0) + row["end"] - row["start"]
    launches, calls = trace.operations["launch"].to_list(), trace.api.select("start", "thread", "process").rows()

    def innermost(operation: int) -> str | None:
        if launches[operation] is None:
            return None
        moment, thread, process = calls[launches[operation]]
        busiest = max((key for key in spent if key[0] == process), key=lambda key: spent[key], default=(0, None))[1]
        for one in (thread, busiest):
            around = [row for row in ranges if row["thread"] == one and row["start"] <= moment < row["end"]]
            if around:
                return fold(max(around, key=lambda row: (row["start"], -row["end"]))["name"])
        return None

    return innermost


NCCL = ("AllReduce", "ReduceScatter", "AllGather", "Broadcast", "SendRecv", "Reduce")
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "send_receive", "reduce")


def check_tables(trace: Trace, device: int, oracle: Causes) -> None:
    """Compare the exposed time of collectives and ranges with the oracle's, row by row."""
    work = device_activity(trace, device)
    assert work is not None
    places = locate_operations(trace, project_operations(trace))
    given = DeviceInput(trace, work, places, ThreadStates.from_trace(trace), device_exposure(trace, work))
    messages = {row["operation"]: row for row in trace.sizes.messages.iter_rows(named=True)}
    names = trace.operations["name"].cast(pl.String).to_list()

    def message(row: int) -> tuple[object, ...]:
        known = messages.get(row)
        if known is not None:
            return known["collective"], known["group"], known["group_size"], known["bytes"]
        kinds = (kind for name, kind in zip(NCCL, KINDS, strict=True) if name in names[row])
        return next(kinds, "other"), None, None, None

    rows = collectives(given)
    found = grouped(
        ((row.collective, row.group, row.group_size, row.message_bytes), row.exposed_causes) for row in rows
    )
    assert nonzero(found) == grouped(
        (message(row), some) for (kind, row), some in oracle.items() if kind == "communication"
    )
    assert sum(row.busy_ns for row in rows) == communication_overlap(given)[0].busy_ns
    assert all(row.exposed_ns == sum(row.exposed_causes.values()) <= row.busy_ns <= row.total_ns for row in rows)
    ranges = exposed_ranges(given)
    assert nonzero(grouped((row.work, row.exposed_causes) for row in ranges)) == by_work(oracle)
    assert all(row.exposed_ns == sum(row.exposed_causes.values()) > 0 for row in ranges)
    assert sum(row.count for row in ranges) == len(oracle)
    if trace.scopes.is_empty() and trace.captures.is_empty():
        innermost = innermost_ranges(trace)
        by_range = grouped(((row.work, row.range and fold(row.range)), row.exposed_causes) for row in ranges)
        assert nonzero(by_range) == grouped(((kind, innermost(row)), some) for (kind, row), some in oracle.items())


def nonzero(sums: Mapping[Any, Mapping[str, int]]) -> dict[Any, dict[str, int]]:
    kept = {key: {cause: ns for cause, ns in some.items() if ns} for key, some in sums.items()}
    return {key: some for key, some in kept.items() if some}


@pytest.mark.parametrize("name", [*SAMPLED, *SHARED])
def test_captures_agree_with_the_oracle(name: str) -> None:
    trace = open_trace(sample(name) if name in SAMPLED else shared(name))
    for device in range(len(trace.devices)):
        work = device_activity(trace, device)
        assert work is not None
        third = work.window.length // 3
        for window in (work.window, Window(work.window.start + third + 1, work.window.end - third)):
            oracle = expected_operations(trace, device, window, work.window)
            assert causes(trace, window, device) == by_work(oracle)
            if window == work.window:
                check_tables(trace, device, oracle)


@st.composite
def timelines(draw: st.DrawFn) -> Trace:
    """Draw operations of three streams one after another, their launches, synchronizations and events."""
    calls, operations, host = list[tuple[int, int, str, int]](), [], 0
    events, free = [], [0, 0, 0]
    for _ in range(draw(st.integers(1, 14))):
        host += draw(st.integers(0, 20)) * US
        kind = draw(st.sampled_from(("work", "work", "work", "work", "sync", "record", "wait")))
        stream, length = draw(st.integers(0, 2)), draw(st.integers(0, 12)) * US
        thread = draw(st.integers(0, 1))
        if kind == "work":
            call = (host, host + length // 4, "api", thread)
            start = max(free[stream], host) + draw(st.sampled_from((0, 1, 2, 4, 9, 30))) * US
            sort = draw(st.sampled_from(("compute", "compute", "communication", "copy", "memset")))
            launched = draw(st.sampled_from((True, True, True, False)))
            free[stream] = start + length
            operations.append((start, start + length, sort, stream, len(calls) if launched else None))
        else:
            call = (host, host + length, "sync" if kind == "sync" else "api", thread)
            events.append((len(calls), kind, stream, draw(st.integers(1, 2))))
        host = call[1] if draw(st.booleans()) else call[0] + 1
        calls.append(call)
    operations.append((free[0] + US, free[0] + 2 * US, "compute", 0, None))
    trace = made_trace(operations, calls)
    order = sorted(range(len(calls)), key=lambda index: (calls[index][0], calls[index][1], index))
    row_of = {index: row for row, index in enumerate(order)}
    names = ["cudaLaunchKernel"] * len(calls)
    rows = []
    for index, kind, stream, event in events:
        names[row_of[index]] = {"wait": "cudaStreamWaitEvent", "record": "cudaEventRecord"}.get(kind, "cudaSync")
        stated = draw(st.sampled_from((True, True, False)))
        if stated:
            sort = "record" if kind == "record" else "synchronize"
            rows.append((sort, 1, 1, stream, event, row_of[index]))
    frame = pl.DataFrame(rows, schema=dict(STREAM_EVENTS), orient="row")
    named = trace.api.with_columns(pl.Series("name", names, dtype=pl.Enum(sorted({*names}))))
    independent = pl.Series("independent", draw(st.lists(st.booleans(), min_size=3, max_size=3)))
    streams = trace.streams.with_columns(independent[: len(trace.streams)])
    return replace(trace, api=named, stream_events=frame, streams=streams)


@given(timelines(), st.integers(0, 60), st.integers(1, 80))
def test_random_timelines_agree_with_the_oracle(trace: Trace, start: int, length: int) -> None:
    work = device_activity(trace, 0)
    assert work is not None
    assert causes(trace) == expected(trace, 0, work.window, work.window)
    window = Window(start * US, (start + length) * US).within(work.window)
    if window.length:
        assert causes(trace, window) == expected(trace, 0, window, work.window)


@given(timelines())
def test_causes_add_up_to_the_exposed_time(trace: Trace) -> None:
    work = device_activity(trace, 0)
    assert work is not None
    for name, some in device_exposure(trace, work).by_work.items():
        if name == "memset":
            continue
        code = CLASSES.index("copy" if name == "h2d pinned" else name)
        members = np.flatnonzero(work.codes == code)
        busy = np.zeros(work.window.length, np.bool_)
        for computes in (False, True):
            for index in (np.flatnonzero(work.codes == 0) if computes else members).tolist():
                span = slice(int(work.start[index]) - work.window.start, int(work.end[index]) - work.window.start)
                busy[span] = not computes
        assert sum(some.values()) == np.count_nonzero(busy)
        assert min(some.values()) >= 0


# The largest cause of what each program plants (samples/README.md, benchmarks/results/exposure_planted.txt).
PLANTED = (
    ("one_same_stream", "h2d pinned", "same_stream"),
    ("one_slow_host", "h2d pinned", "host"),
    ("one_late_copy", "h2d pinned", "launched_late"),
    ("one_needed_at_once", "h2d pinned", "waited_itself"),
    ("one_connections_memset", "h2d pinned", "queue"),
    ("one_engine", "h2d pinned", "copy_engine"),
    ("one_prefetch", "h2d pinned", "kernel_gap"),
    ("one_full_sms", "communication", "queue"),
    ("two_late_rank", "communication", "same_stream"),
    ("two_late_rank_async", "communication", "waited_itself"),
    ("two_late_launch_async", "communication", "launched_late"),
    ("two_gather_ahead", "communication", "waited_itself"),
    ("two_gather_at_once_async", "communication", "waited_itself"),
    ("two_tensor_parallel_async", "communication", "waited_itself"),
)


@pytest.mark.parametrize(("name", "work", "cause"), PLANTED)
def test_planted_causes_are_the_largest(name: str, work: str, cause: str) -> None:
    sums = causes(open_trace(sample(f"exposure/{name}.sqlite.xz")))[work]
    assert max(sums, key=lambda each: sums[each]) == cause


def test_late_rank_waits_for_nobody() -> None:
    [first, second] = analyzed(sample("exposure/two_late_rank.sqlite.xz")).devices
    assert first.communication.exposed_waiting_for_ranks_ns > 0.8 * first.communication.exposed_ns
    assert second.communication.waiting_for_ranks_ns < 0.1 * second.communication.busy_ns


EARLY = [(0, 1, "api", 0), (1, 2, "api", 0), (2, 3, "api", 0), (3, 4, "api", 0)]  # launches before all work


def of_copy(
    *operations: tuple[int, int, str, int, int | None], api: Sequence[tuple[int, int, str, int]] = EARLY
) -> dict[str, int]:
    """Return the causes of the exposed copies between two kernels on stream 0, in µs. The usual gap is 3 µs."""
    last = operations[-1][1]
    following = [(last + 1 + 5 * number, last + 5 + 5 * number, "compute", 0, 0) for number in range(5)]
    trace = made_trace(
        [(start * US, end * US, *rest) for start, end, *rest in (*operations, *following)],
        [(start * US, end * US, *rest) for start, end, *rest in api],
    )
    sums = causes(trace)
    return {cause: ns // US for cause, ns in sums["h2d pinned"].items()}


def test_host_has_not_launched_the_next_kernel() -> None:
    calls = [(0, 1, "api", 0), (1, 2, "api", 0), (80, 90, "api", 0)]
    work = ((5, 25, "compute", 0, 0), (25, 100, "copy", 1, 1), (100, 110, "compute", 0, 2))
    # The copy is the kernel's neighbour. Without events, work that starts when the copy ends waits for it.
    assert of_copy(*work, api=calls) == {"host": 55, "launch": 10, "waited_itself": 10}


def test_host_waits_for_the_copy() -> None:
    calls = [(0, 1, "api", 0), (1, 2, "api", 0), (30, 102, "sync", 0), (105, 106, "api", 0)]
    work = ((5, 20, "compute", 0, 0), (20, 100, "copy", 1, 1), (110, 120, "compute", 0, 3))
    assert of_copy(*work, api=calls) == {"host": 10, "waits_for_it": 70}


def test_copy_on_the_stream_of_the_kernels() -> None:
    work = ((5, 20, "compute", 0, 0), (20, 100, "copy", 0, 1), (101, 110, "compute", 0, 2))
    assert of_copy(*work) == {"same_stream": 80}


def test_ordinary_gap_between_kernels() -> None:
    work = ((5, 20, "compute", 0, 0), (10, 100, "copy", 1, 1), (22, 200, "compute", 0, 2))
    assert of_copy(*work) == {"kernel_gap": 2}


def test_kernels_need_a_copy_that_is_launched_late() -> None:
    calls = [(0, 1, "api", 0), (48, 49, "api", 0), (49, 50, "api", 0)]
    work = ((5, 20, "compute", 0, 0), (50, 100, "copy", 1, 1), (102, 110, "compute", 0, 2))
    assert of_copy(*work, api=calls) == {"launched_late": 50}


def test_kernels_need_a_copy_that_waited_itself() -> None:
    work = ((5, 20, "compute", 0, 0), (50, 100, "copy", 1, 1), (102, 110, "compute", 0, 2))
    assert of_copy(*work) == {"waited_itself": 50}


def test_kernels_wait_for_a_third_stream() -> None:
    work = (
        (5, 20, "compute", 0, 0),
        (30, 60, "copy", 1, 1),
        (30, 100, "memset", 2, 2),
        (101, 110, "compute", 0, 3),
    )
    assert of_copy(*work) == {"other": 30}


def test_nothing_that_the_capture_shows_keeps_the_kernel() -> None:
    work = ((5, 20, "compute", 0, 0), (30, 100, "copy", 1, 1), (150, 160, "compute", 0, 2))
    assert of_copy(*work) == {"queue": 70}


def test_copy_behind_another_of_its_direction() -> None:
    work = (
        (5, 20, "compute", 0, 0),
        (30, 100, "copy", 1, 1),
        (101, 110, "copy", 0, 2),
        (111, 120, "compute", 0, 3),
    )
    assert of_copy(*work) == {"copy_engine": 70, "same_stream": 9}


def test_launch_that_the_capture_lacks_and_the_end_of_the_window() -> None:
    work = [(5 * US, 20 * US, "compute", 0, None), (20 * US, 60 * US, "copy", 1, None)]
    assert causes(made_trace(work)) == {"h2d pinned": {"end": 40 * US}}
    work.append((60 * US, 70 * US, "compute", 0, None))
    assert causes(made_trace(work)) == {"h2d pinned": {"unknown": 40 * US}}


def test_stream_with_half_of_the_compute_is_a_computing_stream() -> None:
    work = [
        (0, 10 * US, "compute", 0, 0),
        (10 * US, 90 * US, "communication", 0, 1),
        (91 * US, 95 * US, "compute", 0, 2),
    ]
    calls = [(start * US // 10, end * US // 10, role, thread) for start, end, role, thread in EARLY]
    assert causes(made_trace(work, calls)) == {"communication": {"same_stream": 80 * US}}
