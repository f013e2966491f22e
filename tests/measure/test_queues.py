"""What launched work waits for, and queues. Traces are made by hand, except where a sample is named."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import pytest

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from tests.measured import measured

US = 1_000


@pytest.mark.parametrize("name", ["ddp2.sqlite", "quad.sqlite", "mpi/heat.sqlite", "scenarios/p2p.sqlite"])
def test_producers_add_up_to_queued(name: str) -> None:
    for device in analyzed(sample(name), costs=None).devices:
        rows = device.tables["queued_for"].rows
        assert sum(row.ns for row in rows) == device.gaps.causes["queued"]


def test_producers_of_queued_time() -> None:
    work = [(0, 10 * US, "compute", 0, 0), (14 * US, 20 * US, "compute", 1, 1), (23 * US, 30 * US, "compute", 1, 2)]
    work += [(530 * US, 540 * US, "compute", 1, 3)]
    calls = [(at, at + 1, "api", 0) for at in range(4)] + [(40 * US, 340 * US, "memory", 1)]
    [device] = measured(made_trace(work, calls)).devices
    rows = {(row.kind, row.name): row.ns for row in device.tables["queued_for"].rows}
    assert rows == {
        ("kernel", "compute"): 4 * US,
        ("next operation", ""): 3 * US,
        ("call", "cudamemory"): 300 * US,
        ("unknown", ""): 200 * US,
    }


def test_queue_length() -> None:
    """Four kernels are launched while the first one waits: each finds one more in the queue."""
    work = [(100 * US + at * 10 * US, 105 * US + at * 10 * US, "compute", 0, at) for at in range(4)]
    [device] = measured(made_trace(work, [(at * US, at * US + 1, "api", 0) for at in range(4)])).devices
    (row,) = device.tables["queue_length"].rows
    assert (row.median, row.p95) == (1, 3)
    assert (row.median_delay_ns, row.p95_delay_ns) == (109 * US - 1, 127 * US - 1)


@pytest.mark.parametrize("name", ["torch_profiler/serial.json.gz", "torch_profiler/graph.json.gz", "quad.sqlite"])
def test_queue_of_a_capture(name: str) -> None:
    """Count one launch after the other what is launched and has not started."""
    analysis = analyzed(sample(name))
    for device in analysis.devices:
        work = analysis.trace.operations.filter(device=device.device).drop_nulls("launch")
        launched = analysis.trace.api[work["launch"]]
        starts, calls = sorted(work["start"].to_list()), sorted(launched["start"].to_list())
        ahead = [max(bisect_left(calls, call) - bisect_right(starts, call), 0) for call in calls]
        delay = [max(start - end, 0) for start, end in zip(work["start"], launched["end"], strict=True)]
        (row,) = device.tables["queue_length"].rows
        assert row.median == sorted(ahead)[(len(ahead) - 1) // 2]
        assert row.median_delay_ns == sorted(delay)[(len(delay) - 1) // 2]


def test_communication_blocks_what_waits_for_it() -> None:
    """A kernel is ready from 10 µs on and starts when the communication ends: that blocks it for 20 µs."""
    work = [
        (0, 10 * US, "compute", 0, 0),
        (5 * US, 30 * US, "communication", 1, 1),
        (31 * US, 40 * US, "compute", 0, 2),
    ]
    [device] = measured(made_trace(work, [(at, at + 1, "api", 0) for at in range(3)])).devices
    assert (device.communication.exposed_ns, device.communication.blocking_ns) == (20 * US, 20 * US)
    late = [*work[:2], (60 * US, 70 * US, "compute", 0, 2)]
    [device] = measured(made_trace(late, [(at, at + 1, "api", 0) for at in range(3)])).devices
    assert device.communication.blocking_ns == 0
