"""Rules on the host: launches, synchronizations, allocations, waiting, start-up, the profiler."""

from __future__ import annotations

from tests.made_trace import made_trace
from tests.rules.made import MS, US, findings, iterations, with_calls
from traceview.model.trace import Trace
from traceview.rules.allocation import allocation
from traceview.rules.dependency_wait import dependency_wait
from traceview.rules.host_bound import host_bound
from traceview.rules.launch_bound import launch_bound
from traceview.rules.profiler_overhead import profiler_overhead
from traceview.rules.slow_calls import slow_calls
from traceview.rules.start_up import start_up
from traceview.rules.synchronize import synchronize
from traceview.rules.unknown_launch import unknown_launch


def launched(count: int, kernel: int, gap: int) -> Trace:
    """Kernels of one length, each launched `gap` after the last one ended, its launch taking half of that."""
    period = kernel + gap
    work = [(i * period, i * period + kernel, "compute", 0, i) for i in range(count)]
    calls = [(max(i * period - gap // 2, 0), i * period, "api", 0) for i in range(count)]
    return made_trace(work, calls)


def test_small_kernels_with_short_gaps_are_launch_bound() -> None:
    (found,) = findings(launched(100, 10 * US, 20 * US), launch_bound)
    assert found.cost_ns == 99 * 20 * US
    assert found.severity == "high"
    assert "99 short gaps" in found.title
    assert "static shapes" in found.advice
    assert found.evidence[0].end_ns - found.evidence[0].start_ns <= 1 * MS


def test_short_gaps_between_long_kernels_are_not_launch_bound() -> None:
    assert findings(launched(100, 2 * MS, 20 * US), launch_bound) == ()


def test_long_gaps_are_not_launch_bound_but_host_bound() -> None:
    found = findings(launched(100, 10 * US, 400 * US), launch_bound, host_bound, slow_calls)
    assert [one.id for one in found] == ["host_bound", "slow_calls"]
    assert [one.cost_ns for one in found] == [99 * 200 * US, 99 * 200 * US]


def synchronized(steps: int, pause: int) -> Trace:
    """Each step: 5 ms of compute, a synchronize returning 0.1 ms late, the next launch after a pause."""
    length = 5 * MS + 100 * US + pause
    work, calls = [], []
    for step in range(steps):
        begin = step * length
        work.append((begin, begin + 5 * MS, "compute", 0, 2 * step))
        calls.append((begin, begin, "api", 0))
        calls.append((begin + 1 * MS, begin + 5 * MS + 100 * US, "sync", 0))
    return made_trace(work, calls, iterations(steps, length))


def test_a_synchronization_costs_what_it_starves_and_the_refill() -> None:
    (found,) = findings(synchronized(10, 300 * US), synchronize)
    assert found.cost_ns == 9 * (100 + 300) * US
    assert "10 synchronizations (1 in each iteration)" in found.title
    assert "`iteration #`" in found.title
    assert found.cost_per_iteration_ns == found.cost_ns // 10
    assert "they held the host for 41.0 ms, of which the GPU worked 40.0 ms" in found.advice


def test_a_long_pause_after_a_synchronization_is_the_host_s_own() -> None:
    by_rule = {one.id: one.cost_ns for one in findings(synchronized(10, 5 * MS), synchronize, host_bound)}
    assert by_rule == {"synchronize": 9 * (100 * US + 1 * MS), "host_bound": 9 * 4 * MS}


def test_a_rare_synchronization_is_no_habit() -> None:
    work = [(0, 1 * MS, "compute", 0, None), (2 * MS, 3 * MS, "compute", 0, 1)]
    calls = [(0, 1500 * US, "sync", 0), (2 * MS, 2 * MS, "api", 0)]
    assert findings(made_trace(work, calls), synchronize) == ()


def test_allocation_in_the_loop_is_priced_and_counted() -> None:
    work, calls = [], []
    for step in range(10):
        begin = step * 2 * MS
        calls += [
            (begin + 1 * MS, begin + 1500 * US, "memory", 0),
            (begin + 2 * MS, begin + 2 * MS, "api", 0),
        ]
        work.append((begin + 2 * MS, begin + 3 * MS, "compute", 0, 2 * step + 1))
    trace = with_calls(made_trace(work, calls, iterations(11, 2 * MS)), ["cudaMalloc", "launch"] * 10)
    (found,) = findings(trace, allocation)
    assert found.cost_ns == 9 * 500 * US
    assert "9 cudaMalloc" in found.title
    assert "inside the iterations" in found.title


def test_a_wait_inside_a_data_range_is_data_loading() -> None:
    work, calls, ranges = [], [], iterations(10, 10 * MS)
    for step in range(10):
        begin = step * 10 * MS
        ranges.append((begin, begin + 8 * MS, "next_batch", 0))
        calls.append((begin + 8 * MS, begin + 8 * MS, "api", 0))
        work.append((begin + 8 * MS, begin + 10 * MS, "compute", 0, step))
    (found,) = findings(made_trace(work, calls, ranges), host_bound)
    assert found.id == "data_loading"
    assert found.cost_ns == 9 * 8 * MS
    assert "`next_batch`" in found.title
    assert "num_workers" in found.code


def test_a_wait_inside_mpi_is_for_another_rank_or_a_transfer() -> None:
    work, calls, ranges = [], [], iterations(10, 10 * MS)
    for step in range(10):
        begin = step * 10 * MS
        ranges.append((begin, begin + 8 * MS, "MPI_Waitall", 0))
        calls.append((begin + 8 * MS, begin + 8 * MS, "api", 0))
        work.append((begin + 8 * MS, begin + 10 * MS, "compute", 0, step))
    (found,) = findings(made_trace(work, calls, ranges), host_bound)
    assert found.id == "host_bound"
    assert "in `MPI_Waitall`" in found.title and "late" in found.advice and "MPI_Wait" in found.code


def test_a_wait_on_a_thread_without_ranges_is_named_by_the_annotating_thread() -> None:
    work, calls, ranges = [], [], iterations(10, 10 * MS)
    for step in range(10):
        begin = step * 10 * MS
        ranges.append((begin + 1, begin + 9 * MS, "backward", 0))
        calls.append((begin + 8 * MS, begin + 8 * MS, "api", 1))
        work.append((begin + 8 * MS, begin + 9 * MS, "compute", 0, step))
    (found,) = findings(made_trace(work, calls, ranges), host_bound)
    assert "`backward`" in found.title


def test_what_comes_before_the_iterations_is_start_up_and_never_more_than_low() -> None:
    work = [(0, 1 * MS, "compute", 0, None)]
    work += [
        (1000 * MS + step * 10 * MS, 1009 * MS + step * 10 * MS, "compute", 0, None) for step in range(5)
    ]
    ranges = [
        (1000 * MS + step * 10 * MS, 1010 * MS + step * 10 * MS, f"step {step}", 0) for step in range(5)
    ]
    (found,) = findings(made_trace(work, (), ranges), start_up)
    assert (found.id, found.severity, found.cost_ns) == ("start_up", "low", 999 * MS)
    assert found.cost_per_iteration_ns is None


def test_profiler_queue_and_unknown_are_information() -> None:
    work = [
        (0, 1 * MS, "compute", 0, None),
        (2 * MS, 3 * MS, "compute", 0, 0),
        (4 * MS, 5 * MS, "compute", 0, None),
        (6 * MS, 7 * MS, "compute", 0, 1),
    ]
    calls = [(0, 10, "api", 0), (5 * MS, 5 * MS, "api", 0)]
    trace = made_trace(work, calls, overhead=[(5 * MS, 6 * MS)])
    found = findings(trace, profiler_overhead, dependency_wait, unknown_launch)
    assert {one.id: one.cost_ns for one in found} == dict.fromkeys(
        ["profiler_overhead", "dependency_wait", "unknown_launch"], 1 * MS
    )
    assert {one.severity for one in found} == {"info"}


def test_less_than_a_thousandth_is_not_worth_saying_and_stays_for_others() -> None:
    work = [(0, 1000 * MS, "compute", 0, None), (1000 * MS + 500 * US, 2000 * MS, "compute", 0, None)]
    assert findings(made_trace(work), unknown_launch) == ()
