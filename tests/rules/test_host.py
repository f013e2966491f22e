"""Tests of the rules on the host: launches, synchronizations, allocations, waits, start-up, the profiler."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import polars as pl
import pytest

from tests.made_trace import made_trace
from tests.rules.helpers import (
    MS,
    US,
    findings,
    in_training,
    iterations,
    notes,
    with_calls,
)
from traceview.model.program import Program
from traceview.model.stacks import SCOPES
from traceview.model.trace import KINDS, Trace
from traceview.pipeline import analyze
from traceview.rules.calls import allocation, slow_calls, synchronize
from traceview.rules.captured import profiler_overhead
from traceview.rules.host_bound import host_bound
from traceview.rules.launches import launch_bound
from traceview.rules.outside import outside_iterations
from traceview.rules.queues import queued_work, unknown_launch
from traceview.rules.start_up import COMPILES, start_up


def launched(count: int, kernel: int, gap: int) -> Trace:
    """Kernels with `gap` ns between them; the launch call takes the second half of each gap."""
    period = kernel + gap
    work = [(i * period, i * period + kernel, "compute", 0, i) for i in range(count)]
    calls = [(max(i * period - gap // 2, 0), i * period, "api", 0) for i in range(count)]
    return made_trace(work, calls)


def test_launch_bound() -> None:
    (finding,) = findings(launched(100, 10 * US, 20 * US), launch_bound)
    assert finding.cost_ns == 99 * 20 * US
    assert finding.severity == "high"
    assert "99 short gaps" in finding.title
    assert "static shapes" in finding.advice
    assert finding.evidence[0].end_ns - finding.evidence[0].start_ns <= 1 * MS


def test_gaps_are_named_after_what_lies_on_both_sides() -> None:
    """Kernels and copies by turns have no gap between two kernels (`sudoku_bfs` of round 12)."""
    calls = [(at * 30 * US - 10 * US, at * 30 * US, "api", 0) for at in range(1, 101)]
    for every, words in ((2, "operations"), (9, "kernels")):
        classes = ["compute" if at % every else "copy" for at in range(100)]
        work = [
            (call[1], call[1] + 10 * US, name, 0, at)
            for at, (call, name) in enumerate(zip(calls, classes, strict=True))
        ]
        (finding,) = findings(made_trace(work, calls), launch_bound)
        assert finding.title.endswith(f"between small {words}")


def test_awaited_launch_costs_its_latency_too() -> None:
    work = [(20 * US * at, 20 * US * at + 5 * US, "compute", 0, at) for at in range(200)]
    calls = [(20 * US * at - 9 * US, 20 * US * at - 2 * US, "api", 0) for at in range(200)]
    result = findings(made_trace(work, calls), launch_bound, queued_work)
    assert [(finding.id, finding.cost_ns) for finding in result] == [("launch_bound", 199 * 15 * US)]


def test_latency_of_a_launch_after_a_wait_is_no_gap_between_launched_operations() -> None:
    """`bfs` of round 16: the host waits for each kernel, then launches the next."""
    calls, work = [], []
    for begin in range(0, 200 * 20 * US, 20 * US):
        calls += [(begin, begin + 6 * US, "api", 0), (begin + 6 * US, begin + 17 * US, "sync", 0)]
        work.append((begin + 8 * US, begin + 15 * US, "compute", 0, len(calls) - 2))
    result = findings(made_trace(work, calls), launch_bound, queued_work)
    assert [(finding.id, finding.cost_ns) for finding in result] == [("launch_bound", 199 * (3 + 6 + 2) * US)]


def test_gap_between_launched_operations_is_not_latency_of_launches() -> None:
    work = [(40 * US * at, 40 * US * at + 5 * US, "compute", 0, at) for at in range(200)]
    calls = [(40 * US * at - 32 * US, 40 * US * at - 30 * US, "api", 0) for at in range(200)]
    costs = {finding.id: finding.cost_ns for finding in findings(made_trace(work, calls), launch_bound, queued_work)}
    assert costs == {"launch_bound": 199 * 10 * US, "late_start": 199 * 25 * US}


def late_work(gap: int, calls: int = 1, role: str = "api") -> Trace:
    """Return kernels on two streams in turn, each `gap` after the other; all are launched at the start.

    `calls` counts the calls on another thread that last as long as a gap each.
    """
    work = [(at * (gap + 5 * US), at * (gap + 5 * US) + 5 * US, "compute", at % 2, 0) for at in range(1, 20)]
    others = [(at * (gap + 5 * US) + 5 * US, (at + 1) * (gap + 5 * US), role, 1) for at in range(1, calls)]
    return made_trace(work, [(0, 1 * US, "api", 0), *others])


def with_call(trace: Trace, name: str) -> Trace:
    """Return the trace with this name for all its calls."""
    name_all = pl.lit(name).cast(pl.Enum([name])).alias("name")
    return replace(trace, api=trace.api.with_columns(name_all))


def test_reason_of_launched_work_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    (short,) = findings(with_call(late_work(20 * US), "cudaStreamWaitEvent"), queued_work)
    assert (short.id, short.cost_ns) == ("dependency_wait", 18 * 20 * US)
    # Streams that nothing orders take turns on an engine (shared capture m_rishi).
    (turns_on,) = findings(late_work(20 * US), queued_work)
    assert (turns_on.id, turns_on.cost_ns) == ("operation_gaps", 18 * 20 * US)
    (drawing,) = findings(with_call(late_work(1 * MS), "cudaGraphicsMapResources"), queued_work)
    assert drawing.id == "late_start" and drawing.title.endswith("in a program that also draws")
    (long,) = findings(late_work(1 * MS), queued_work)
    assert (long.id, long.cost_ns) == ("late_start", 18 * MS)
    assert "18 gaps before launched work that starts 1.00 ms late on average; the capture" in long.title
    (held,) = findings(late_work(1 * MS, calls=15), queued_work)
    assert (held.id, held.cost_ns) == ("late_start", 18 * MS)
    assert "while a thread is in `cudaapi`" in held.title and "In 77.8% of this time" in held.advice
    # It has no managed memory.
    assert long.remedy == "Look for what the capture lacks: other programs or work from before the recording."
    assert long.gain.reason == "the capture does not show what the GPU waits for" and not held.gain.reason
    for role in ("sync", "blocking_copy"):
        (waiting,) = findings(late_work(1 * MS, calls=15, role=role), queued_work)
        assert "does not show why" in waiting.title
    monkeypatch.setattr(sys.modules[queued_work.__module__], "is_shared", lambda use: True)
    (shared,) = findings(late_work(1 * MS), queued_work)
    assert "while another program uses the GPU" in shared.title and shared.remedy == "Capture alone on the GPU."
    trace = late_work(1 * MS)
    turns = trace.operations.with_columns(process=pl.col("stream").cast(pl.Int32))
    devices = trace.devices.with_columns(processes=pl.Series([[0, 1]], dtype=pl.List(pl.Int32)))
    (other,) = findings(replace(trace, operations=turns, devices=devices), queued_work)
    assert (other.id, other.cost_ns) == ("process_wait", 18 * MS)


def test_thread_without_a_name_is_shown_by_its_id() -> None:
    trace = launched(100, 10 * US, 20 * US)
    threads = trace.threads.with_columns(pl.lit("").alias("name"), pl.lit(77, pl.Int64).alias("tid"))
    (finding,) = findings(replace(trace, threads=threads), launch_bound)
    assert "of the wait is for thread 77)" in finding.advice


def test_long_kernels_are_not_launch_bound() -> None:
    assert findings(launched(100, 2 * MS, 20 * US), launch_bound) == ()


def test_long_gaps_are_host_bound() -> None:
    result = findings(launched(100, 10 * US, 400 * US), launch_bound, host_bound, slow_calls)
    assert [finding.id for finding in result] == ["host_bound", "slow_calls"]
    assert [finding.cost_ns for finding in result] == [99 * 200 * US, 99 * 200 * US]


@pytest.mark.parametrize(
    ("count", "name", "each", "words", "remedy"),
    [
        (8, "cudaStreamCreateWithPriority", 400 * US, "8 cudaStreamCreateWithPriority", "Make these calls before"),
        (9, "cudaGraphicsMapResources", 400 * US, "9 cudaGraphicsMapResources", "Map another buffer"),
        (9, "cudaEventDestroy", 400 * US, "9 cudaEventDestroy", "Move these calls out of the loop."),
        (9, "cudaEventDestroy", 0, "9 cudaLaunchKernel", "Find what holds up these launches."),
    ],
)
def test_call_that_blocks_has_its_name_in_the_title(count: int, name: str, each: int, words: str, remedy: str) -> None:
    """Ten steps of 1 ms of compute; before each launch of 0.1 ms, or all before the last one, the host makes calls."""
    in_loop, names, calls, work, ranges, now = count == 9, [], [], [], [], 0
    for step in range(10):
        begin = now
        for _ in range((1 if in_loop else count * (step == 9)) if step and each else 0):
            calls.append((now, now + each, "api", 0))
            names.append(name)
            now += each
        calls.append((now, now + 200 * US, "api", 0))
        names.append("cudaLaunchKernel")
        work.append((now + 200 * US, now + 1200 * US, "compute", 0, len(calls) - 1))
        now += 1200 * US
        ranges.append((begin, now, f"step {step}", 0))
    (finding,) = findings(with_calls(made_trace(work, calls, ranges), names), slow_calls)
    assert words in finding.title and finding.remedy.startswith(remedy)


def test_slow_calls_are_named_by_those_that_other_findings_leave() -> None:
    """A made loop with four waits for results of 2 ms in ten steps, too few for `synchronize`; each step has a call."""
    calls, work, ranges, now = [], [], [], 0
    for step in range(10):
        begin, wait = now, 2 * MS * (step in (2, 4, 6, 8))
        if wait:
            calls.append((now - 500 * US, now + wait, "sync", 0))
        calls.append((now + wait, now + wait + 200 * US, "api", 0))
        now += wait + 210 * US
        calls.append((now, now, "api", 0))
        work.append((now, now + MS, "compute", 0, len(calls) - 1))
        now += MS
        ranges.append((begin, now, f"step {step}", 0))
    names = ["cudaStreamSynchronize" if call[2] == "sync" else "cudaEventDestroy" for call in calls]
    (finding,) = findings(with_calls(made_trace(work, calls, ranges), names), synchronize, slow_calls)
    assert "mostly 4 cudaStreamSynchronize" in finding.title
    assert finding.remedy == "Launch the next work before waiting."


def test_allocation_of_another_thread_holds_up_a_launch() -> None:
    """The launch of the sixth step waits 80 ms for the lock that an allocation of a loader's thread holds."""
    calls, work, ranges, now = [], [], [], 0
    for step in range(10):
        length = 80 * MS if step == 5 else 10 * US
        if step == 5:
            calls.append((now - 10 * US, now + length, "memory", 1))
        calls.append((now, now + length, "api", 0))
        work.append((now + length, now + length + 5 * MS, "compute", 0, len(calls) - 1))
        ranges.append((now, now + length + 5 * MS, f"step {step}", 0))
        now += length + 5 * MS
    trace = made_trace(work, calls, ranges)
    (finding,) = findings(trace, start_up, allocation, slow_calls)
    assert (finding.id, finding.cost_ns) == ("allocation", 80 * MS)
    assert "1 cudamemory of another thread inside the iterations keeps the GPU idle for 80.0 ms" in finding.title
    assert analyze(trace).devices[0].gaps.causes["memory"] == 80 * MS


def synchronized(steps: int, pause: int) -> Trace:
    """Each step: 5 ms of compute, a synchronize call that returns 0.1 ms later, the next launch after `pause`."""
    length = 5 * MS + 100 * US + pause
    work, calls = [], []
    for step in range(steps):
        begin = step * length
        work.append((begin, begin + 5 * MS, "compute", 0, 2 * step))
        calls.append((begin, begin, "api", 0))
        calls.append((begin + 1 * MS, begin + 5 * MS + 100 * US, "sync", 0))
    return made_trace(work, calls, iterations(steps, length))


def test_synchronization_costs_starved_and_refill() -> None:
    (finding,) = findings(synchronized(10, 300 * US), synchronize)
    assert finding.cost_ns == 9 * (100 + 300) * US
    assert "10 synchronizations (one per iteration)" in finding.title
    assert "`iteration #`" in finding.title
    assert finding.cost_per_iteration_ns == 5_400 * US * finding.cost_ns // (53_600 * US)  # no wait after the last step
    assert "blocked the host for 41.0 ms; the GPU was busy for 40.0 ms of it" in finding.advice


def test_number_per_iteration_is_that_of_most() -> None:
    """Ranges of 10 steps of 1 ms: half of them wait twice, the others never (`md` of round 14)."""
    work, calls = [], []
    for begin in range(0, 5 * MS, MS // 2):
        work.append((begin, begin + 300 * US, "compute", 0, len(calls)))
        calls += [(begin, begin, "api", 0), (begin, begin + 350 * US, "sync", 0)]
    for begin in range(5 * MS, 10 * MS, MS):
        work.append((begin, begin + 900 * US, "compute", 0, len(calls)))
        calls.append((begin, begin, "api", 0))
    (finding,) = findings(made_trace(work, calls, iterations(10, MS)), synchronize)
    assert finding.title.startswith("10 synchronizations cost ")


def test_long_pause_after_synchronization_is_host_bound() -> None:
    by_rule = {finding.id: finding.cost_ns for finding in findings(synchronized(10, 5 * MS), synchronize, host_bound)}
    assert by_rule == {"synchronize": 9 * (100 * US + 1 * MS), "host_bound": 9 * 4 * MS}


def test_rare_synchronization_has_no_finding() -> None:
    work = [(0, 1 * MS, "compute", 0, None), (2 * MS, 3 * MS, "compute", 0, 1)]
    calls = [(0, 1500 * US, "sync", 0), (2 * MS, 2 * MS, "api", 0)]
    assert findings(made_trace(work, calls), synchronize) == ()


def test_allocation_after_a_wait_has_all_its_idle_time() -> None:
    """The wait and the allocation share the cost by their lengths (`bgk2d` of round 16)."""
    calls, work = [], []
    for begin in range(0, 60 * MS, 6 * MS):
        calls += [
            (begin, begin, "api", 0),
            (begin, begin + 5 * MS, "sync", 0),
            (begin + 5 * MS, begin + 6 * MS, "memory", 0),
        ]
        work.append((begin, begin + 5 * MS, "compute", 0, len(calls) - 3))
    (finding,) = findings(made_trace(work, calls, iterations(10, 6 * MS)), allocation, slow_calls)
    assert (finding.id, finding.cost_ns) == ("allocation", 9 * MS)


def test_allocation_in_the_loop() -> None:
    work, calls = [], []
    for step in range(10):
        begin = step * 2 * MS
        calls += [
            (begin + 1 * MS, begin + 1500 * US, "memory", 0),
            (begin + 2 * MS, begin + 2 * MS, "api", 0),
        ]
        work.append((begin + 2 * MS, begin + 3 * MS, "compute", 0, 2 * step + 1))
    trace = with_calls(made_trace(work, calls, iterations(11, 2 * MS)), ["cudaMalloc", "launch"] * 10)
    (finding,) = findings(trace, allocation)
    assert finding.cost_ns == 9 * 500 * US
    assert "9 cudaMalloc" in finding.title
    assert "inside the iterations" in finding.title
    assert finding.remedy == "Allocate once, before the loop, or from a pool."
    for kind, region in (("openacc", "data region"), ("openmp", "`target data` region")):
        (of_runtime,) = findings(replace(trace, program=Program(kind)), allocation)
        assert of_runtime.remedy == f"Open one {region} around the loop."


def host_in(name: str) -> Trace:
    """Return iterations of 10 ms; in each the host spends 8 ms in a range with this name, then launches a kernel."""
    starts = [step * 10 * MS for step in range(10)]
    ranges = iterations(10, 10 * MS) + [(begin, begin + 8 * MS, name, 0) for begin in starts]
    calls = [(begin + 8 * MS, begin + 8 * MS, "api", 0) for begin in starts]
    return made_trace([(at, at + 2 * MS, "compute", 0, step) for step, (at, *_) in enumerate(calls)], calls, ranges)


def test_data_loading() -> None:
    (finding,) = findings(in_training(host_in("next_batch")), host_bound)
    assert (finding.id, finding.cost_ns) == ("data_loading", 9 * 8 * MS)
    assert "`next_batch`" in finding.title
    assert "num_workers" in finding.code


@pytest.mark.parametrize("name", ["DistributedDataParallel.forward", "DataParallel"])
def test_data_parallel_loads_no_data(name: str) -> None:
    (finding,) = findings(in_training(host_in(name)), host_bound)
    assert finding.id == "host_bound" and f"`{name}`" in finding.title


@pytest.mark.parametrize(("name", "waits"), [("WaitForGPU", True), ("block_until_ready", True), ("wait_queue", False)])
def test_range_that_waits_for_the_gpu_by_its_name(name: str, waits: bool) -> None:
    (finding,) = findings(host_in(name), host_bound)
    assert finding.remedy.startswith("Wait only where the host needs a result") == waits


def test_wait_in_mpi() -> None:
    (finding,) = findings(host_in("MPI_Waitall"), host_bound)
    assert finding.id == "host_bound"
    assert "in `MPI_Waitall`" in finding.title and "late" in finding.advice and "MPI_Wait" in finding.code


def test_thread_without_ranges_uses_the_annotating_thread() -> None:
    work, calls, ranges = [], [], iterations(10, 10 * MS)
    for step in range(10):
        begin = step * 10 * MS
        ranges.append((begin + 1, begin + 9 * MS, "backward", 0))
        calls.append((begin + 8 * MS, begin + 8 * MS, "api", 1))
        work.append((begin + 8 * MS, begin + 9 * MS, "compute", 0, step))
    inside, outside = findings(made_trace(work, calls, ranges), host_bound)
    assert "`backward`" in inside.title and "`iteration #`" in outside.title
    assert {inside.remedy[:4], outside.remedy[:4]} == {"Find"}  # ranges that launch kernels do not say where
    # A wait of 9 ms belongs to the ranges that overlap it.
    assert (inside.cost_ns, outside.cost_ns) == pytest.approx((9 * 8 * MS, 9 * 1 * MS), abs=100)


Rows: TypeAlias = Sequence[tuple[int, int, str, int]]
IN_PYTHON = Program("arrays", ("cupy",), python=True)
NOT_SHOWN = "They are not shown; --whole includes them"


def loop_after(first: tuple[int, int, str], calls: Rows = (), more: Rows = ()) -> Trace:
    """Return five iterations of 10 ms from 1 s on, after one piece of work (start, end, class)."""
    starts = [1000 * MS + step * 10 * MS for step in range(5)]
    work = [(*first, 0, None), *((start, start + 9 * MS, "compute", 0, None) for start in starts)]
    return made_trace(work, calls, [*more, *((start, start + 10 * MS, f"step {start}", 0) for start in starts)])


def test_time_before_the_loop_is_a_note_or_with_the_whole_window_a_finding() -> None:
    trace = loop_after((0, 1 * MS, "compute"))
    assert findings(trace, outside_iterations) == ()
    (note,) = notes(trace, outside_iterations)
    assert note.id == "before_loop"
    assert note.text == f"1.00 s of the run of 1.05 s lie before the counted iterations. {NOT_SHOWN}"
    (finding,) = findings(trace, outside_iterations, whole=True)
    assert (finding.id, finding.severity, finding.cost_ns) == ("before_loop", "high", 999 * MS)
    assert finding.cost_per_iteration_ns is None


def test_time_without_gpu_work_before_the_loop_is_start_up() -> None:
    """It is in a capture of nsys alone: a trace of torch.profiler begins in the middle of a run."""
    trace = loop_after((700 * MS, 701 * MS, "compute"), [(0, 600 * MS, "memory", 0)])
    note, rest = notes(trace, outside_iterations)
    assert (note.id, rest.id) == ("start_up", "before_loop")
    assert note.text == "Start-up takes 700 ms of the run of 1.05 s. It is not shown; --whole includes it"
    between = "lie between the first kernel and the counted iterations. "
    assert rest.text.startswith(f"Another 300 ms of the run of 1.05 s {between}")
    first_copy = loop_after((700 * MS, 701 * MS, "copy"), [(0, 600 * MS, "memory", 0)])
    (note,) = notes(first_copy, outside_iterations)
    assert note.text.startswith("Start-up takes 1.00 s of")  # until the first kernel
    own = loop_after((700 * MS, 701 * MS, "compute"), [(0, 90 * MS, "memory", 0)])
    assert "lie before the first kernel, mostly outside CUDA calls." in notes(own, outside_iterations)[0].text
    (note,) = notes(replace(trace, info=replace(trace.info, profiler="torch.profiler")), outside_iterations)
    assert note.id == "before_loop"


def test_copies_and_ranges_outside_the_iterations_are_named() -> None:
    (note,) = notes(loop_after((0, 600 * MS, "copy")), outside_iterations)
    assert note.text.startswith("1.00 s of the run of 1.05 s lie before the counted iterations, mostly in copies. ")
    ranges = [(0, 5000 * MS, "main", 0), (10 * MS, 990 * MS, "Warm-up", 0), (20 * MS, 900 * MS, "forward", 0)]
    (note,) = notes(loop_after((0, 600 * MS, "copy"), more=ranges), outside_iterations)
    assert "iterations, mostly in `Warm-up`. " in note.text


def test_gpus_without_common_iterations_have_no_time_outside() -> None:
    """The clock of a GPU may be off by more than the run (`nccl4`)."""
    starts = [step * 10 * MS for step in range(10)]
    work = [(start, start + 5 * MS, "compute", 0, None) for start in starts]
    work.append((500 * MS, 501 * MS, "compute", 1, None))
    trace = made_trace(work, (), iterations(10, 10 * MS))
    assert "outside the counted" in analyze(trace).answer.text
    other = trace.devices.with_columns(id=pl.lit("GPU 1"), device_id=pl.lit(1, pl.Int64))
    on_other = pl.col("stream").cast(pl.Int16)
    trace = replace(
        trace,
        devices=pl.concat([trace.devices, other]),
        operations=trace.operations.with_columns(device=on_other),
        streams=trace.streams.with_columns(device=pl.Series([0, 1], dtype=pl.Int32)),
    )
    assert not notes(trace, outside_iterations)
    assert "outside the counted" not in analyze(trace).answer.text


@pytest.mark.parametrize(
    ("last", "title", "remedy"),
    [
        ("cuModuleUnload", "The run goes on for ", "Look at what the host does after the last result."),
        (
            "cuCtxSynchronize",
            "The capture goes on for ",
            "The capture ends before the program does: record more.",
        ),
    ],
)
def test_capture_that_ends_claims_nothing(last: str, title: str, remedy: str) -> None:
    """`mpas_uploads` ends its capture range in set-up; other programs give back what they have."""
    calls = [(0, 10 * US, "api", 0), (90 * MS, 91 * MS, "api", 0)]
    trace = with_calls(made_trace([(5 * US, 10 * MS, "compute", 0, 0)], calls), ["cudaLaunchKernel", last])
    (finding,) = (each for each in findings(trace, start_up) if each.id == "after_loop")
    assert finding.title.startswith(f"{title}81.0 ms after the last GPU work: 80.0 ms in host code")
    assert finding.remedy == remedy
    assert finding.gain.reason.startswith("the capture ends") == (last == "cuCtxSynchronize")
    ranges = [(12 * MS, 85 * MS, "check", 0), (15 * MS, 80 * MS, "product", 0)]
    (finding,) = (each for each in findings(replace(trace, ranges=made_trace([], [], ranges).ranges), start_up))
    assert "80.0 ms in `check`" in finding.title


def test_context_after_a_reset_is_start_up() -> None:
    """`tacker_fft` of round 12: the context is made a second time after cudaDeviceReset."""
    calls = [(0, MS, "sync", 0), (10 * MS, 50 * MS, "api", 0), (130 * MS, 131 * MS, "memory", 0)]
    calls += [(132 * MS, 133 * MS, "api", 0)]
    trace = made_trace([(133 * MS, 140 * MS, "compute", 0, 3)], calls)
    named = with_calls(trace, ["cuCtxSynchronize", "cudaDeviceReset", "cudaFree", "cudaLaunchKernel"])
    costs = {finding.id: finding.cost_ns for finding in findings(named, start_up)}
    assert costs == {"start_up": 132 * MS, "host_bound": 1 * MS}


@pytest.mark.parametrize("kind", ["openacc", "openmp"])
def test_runtime_of_directives_starts_until_it_loads_code(kind: str) -> None:
    """In a made program, 19 ms between its first allocation and the load of its module are start-up."""
    calls = [(0, 1 * MS, "memory", 0), (20 * MS, 30 * MS, "api", 0), (35 * MS, 35 * MS, "api", 0)]
    trace = made_trace([(35 * MS, 50 * MS, "compute", 0, 2)], calls)
    program = replace(trace.program, kind=kind)
    named = with_calls(replace(trace, program=program), ["cuMemAllocHost", "cuModuleLoadDataEx", "cuLaunchKernel"])
    costs = {finding.id: finding.cost_ns for finding in findings(named, start_up)}
    assert costs == {"start_up": 30 * MS, "host_bound": 5 * MS}


@pytest.mark.parametrize(
    ("again", "once", "rest"),
    [((600 * MS, 640 * MS), 60, 40), ((600 * MS, 900 * MS), 20, 80), ((5 * MS, 25 * MS), 100, 0)],
)
def test_ranges_that_come_again_are_no_start_up(again: tuple[int, int], once: int, rest: int) -> None:
    """The host works for 80 ms in a range before the first work: it is start-up as far as later ones are shorter."""
    calls = [(0, 10 * US, "memory", 0), (100 * MS, 100 * MS, "api", 0), (950 * MS, 950 * MS, "api", 0)]
    work = [(100 * MS, 150 * MS, "compute", 0, 1), (950 * MS, 999 * MS, "compute", 0, 2)]
    ranges = [(20 * MS, 100 * MS, "layer 0", 0), (*again, "layer 1", 0), (0, 999 * MS, "main", 0)]
    trace = with_calls(made_trace(work, calls, ranges), ["cuInit", "cudaLaunchKernel", "cudaLaunchKernel"])
    program = replace(trace.program, kind="pytorch", python=True)
    found = {each.id: each.cost_ns for each in findings(replace(trace, program=program), start_up)}
    assert found.get("start_up") == once * MS and found.get("host_bound", 0) == rest * MS
    info = replace(trace.info, profiler="torch.profiler")
    found = {each.id: each.cost_ns for each in findings(replace(trace, program=program, info=info), start_up)}
    assert found == {"host_bound": 100 * MS - 10 * US}


def test_library_that_makes_handles_in_a_loop_does_not_start_there() -> None:
    """hipBLAS asks for the properties of the device before each product (`mi300_qwen`)."""
    starts = [1 * MS, *(2 * MS + at * at * 10 * US for at in range(3, 9))]
    calls = [each for at in starts for each in ((at - 9 * US, at - 8 * US, "api", 0), (at - US, at, "api", 0))]
    work = [(0, 10 * US, "compute", 0, None)]
    work += [(at, at + 5 * US, "compute", 0, 2 * row + 1) for row, at in enumerate(starts)]
    trace = with_calls(made_trace(work, calls), ["hipGetDeviceProperties", "hipLaunchKernel"] * len(starts))
    assert "start_up" not in [each.id for each in findings(trace, start_up)]
    (finding, *_) = findings(
        with_calls(made_trace(work[:2], calls[:2]), ["hipGetDeviceProperties", "launch"]), start_up
    )
    assert finding.id == "start_up" and "in the start of libraries" in finding.title


def test_run_begins_with_a_long_first_launch() -> None:
    """It loads code (`flux_darknet53`); a later launch waits for a free place in a queue."""
    work = [(570 * MS, 571 * MS, "compute", 0, 0), (580 * MS, 581 * MS, "compute", 0, 1)]
    calls = [(0, 569 * MS, "api", 0), (569 * MS, 579 * MS, "api", 0)]
    trace = with_calls(made_trace(work, calls), ["cudaLaunchKernel"] * 2)
    assert analyze(trace).run.start == 0
    later = trace.operations.with_columns(launch=pl.Series([None, 1], dtype=pl.Int32))
    assert analyze(replace(trace, operations=later)).run.start == 570 * MS


def test_calls_before_the_first_work_are_start_up() -> None:
    """A context that takes most of a short run is its first finding, with or without iterations."""
    calls = [(0, 900 * MS, "memory", 0)]
    calls += [(at * MS, at * MS + 20 * US, "api", 0) for at in range(910, 1000, 10)]
    work = [(start + 10 * US, start + 2 * MS, "compute", 0, at) for at, (start, *_) in enumerate(calls) if at]
    ranges = [(start, start + 9 * MS, f"step {at}", 0) for at, (start, *_) in enumerate(calls) if at]
    for more in ([], ranges):
        finding, own = findings(made_trace(work, calls, more), start_up)
        assert (finding.id, finding.cost_ns, finding.severity) == ("start_up", 900 * MS + 10 * US, "high")
        assert finding.title.startswith("Start-up takes 900 ms: 900 ms in cudamemory")
        assert (own.id, own.cost_ns, finding.cost_per_iteration_ns) == ("host_bound", 10 * MS, None)


def test_work_of_the_host_after_the_first_kernel_is_no_start_up() -> None:
    """The host checks the first result against a reference for 900 ms, and then measures (`florian` of round 13)."""
    steps = range(920 * MS, 950 * MS, 3 * MS)
    calls = [(0, 10 * MS, "memory", 0), (11 * MS, 12 * MS, "api", 0)]
    calls += [(start, start + 20 * US, "api", 0) for start in steps]
    work = [(start + 10 * US, start + 1 * MS, "compute", 0, at) for at, (start, *_) in enumerate(calls) if at]
    ranges = [(start, start + 3 * MS, f"step {at}", 0) for at, start in enumerate(steps)]
    own = next(each for each in findings(made_trace(work, calls, ranges), start_up) if each.id == "host_bound")
    assert own.title == "The host is outside CUDA calls for 908 ms between the first kernel and the counted iterations"
    assert own.cost_ns == 908 * MS


@pytest.mark.parametrize(("each", "expected"), [(4 * MS, ["start_up"]), (40 * MS, [])])
def test_time_before_few_iterations_is_start_up(each: int, expected: list[str]) -> None:
    """What comes in Python before iterations that take less than 15% of the run is start-up, also outside calls."""
    steps = range(910 * MS, 910 * MS + 10 * each, each)
    calls = [(0, 20 * US, "memory", 0), (2 * MS, 802 * MS, "api", 0)]
    calls += [(start, start + 20 * US, "api", 0) for start in steps]
    work = [(10 * US, 1 * MS, "compute", 0, 0)]
    work += [(start + 10 * US, start + each // 2, "compute", 0, at + 2) for at, start in enumerate(steps)]
    ranges = [(start, start + each, f"step {at}", 0) for at, start in enumerate(steps)]
    made = findings(replace(made_trace(work, calls, ranges), program=IN_PYTHON), start_up)
    assert [finding.id for finding in made] == expected
    for finding in made:
        assert (finding.severity, finding.cost_ns) == ("high", 910 * MS - 10 * US)
        assert finding.title.endswith("800 ms in cudaapi and 110 ms in host code")


def test_pause_before_a_module_is_loaded_is_compilation() -> None:
    """CuPy compiles a kernel without calls, then loads it. Other pauses before the loop are host code."""
    steps = range(900 * MS, 930 * MS, 3 * MS)
    calls = [(0, 20 * US, "memory", 0), (700 * MS, 701 * MS, "api", 0), (800 * MS, 801 * MS, "api", 0)]
    calls += [(start, start + 20 * US, "api", 0) for start in steps]
    work = [(10 * US, 1 * MS, "compute", 0, 0)]
    work += [(start + 10 * US, start + 1 * MS, "compute", 0, at + 3) for at, start in enumerate(steps)]
    ranges = [(start, start + 3 * MS, f"step {at}", 0) for at, start in enumerate(steps)]
    names = ["cudaMalloc", "cuModuleLoadData", "cudaGetDevice", *["cudaLaunchKernel"] * len(steps)]
    trace = with_calls(made_trace(work, calls, ranges), names)
    finding, own = findings(trace, start_up)
    assert own.title == "The host is outside CUDA calls for 197 ms between the first kernel and the counted iterations"
    assert "700 ms in the loading or compilation of kernels" in finding.title
    (finding,) = findings(replace(trace, program=IN_PYTHON), start_up)
    assert finding.title == "Start-up takes 900 ms: 700 ms in the compilation of kernels and 198 ms in host code"


@pytest.mark.parametrize(
    "name", ["XlaCompile:#module=jit_step#", "XlaPassPipeline:#name=x#", "Nvrtc::Compile", "jit_x"]
)
def test_range_that_compiles(name: str) -> None:
    assert COMPILES.search(name)
    assert not COMPILES.search("XlaModule:#hlo_module=step#") and not COMPILES.search("decompiled")
    assert not COMPILES.search("Thunk:#name=jit(train)/while#")  # callbacks run in it
    assert not COMPILES.search("## Call CompiledFxGraph fx ##")  # it is compiled before


def test_gap_in_which_a_module_is_loaded_is_compilation() -> None:
    """A thread waits for another one that compiles, then loads the result: that is start-up, not work of the host."""
    calls = [(0, 10 * US, "api", 0), (80 * MS, 80 * MS + 50 * US, "memory", 0), (81 * MS, 81 * MS + 10 * US, "api", 0)]
    work = [(5 * US, 1 * MS, "compute", 0, 0), (81 * MS + 5 * US, 90 * MS, "compute", 0, 2)]
    trace = made_trace(work, calls)
    kinds = pl.Enum(["cudaLaunchKernel", "cuModuleLoadData"])
    names = pl.Series(["cudaLaunchKernel", "cuModuleLoadData", "cudaLaunchKernel"], dtype=kinds)
    (host,) = findings(trace, start_up, host_bound)[:1]
    (loaded, *_) = findings(replace(trace, api=trace.api.with_columns(name=names)), start_up, host_bound)
    assert host.id == "host_bound"
    assert loaded.id == "start_up" and "in the loading or compilation of kernels" in loaded.title
    assert "what NVRTC compiles" in loaded.advice


def test_call_that_occurs_once_is_start_up() -> None:
    """The first allocation, of 50 ms, is start-up where nothing repeats; ten equal ones are not."""
    once = [(0, 10 * US, "api", 0), (1 * MS, 51 * MS, "memory", 0), (51 * MS, 51 * MS + 10 * US, "api", 0)]
    work = [(5 * US, 1 * MS, "compute", 0, 0), (51 * MS + 5 * US, 60 * MS, "compute", 0, 2)]
    assert [finding.id for finding in findings(made_trace(work, once), start_up, allocation)] == ["start_up"]
    often = [
        call
        for at in range(10)
        for call in (
            (at * 9 * MS, at * 9 * MS + 10 * US, "api", 0),
            (at * 9 * MS + 1 * MS, at * 9 * MS + 9 * MS, "memory", 0),
        )
    ]
    work = [(at * 9 * MS + 5 * US, at * 9 * MS + 1 * MS, "compute", 0, 2 * at) for at in range(10)]
    assert "start_up" not in [finding.id for finding in findings(made_trace(work, often), start_up, allocation)]


def test_each_long_call_of_a_gap_has_its_own_time() -> None:
    """In a made gap, frees stall for 200 and 100 ms, and a first launch takes 300 ms. Pinning never stalls."""
    calls = [
        (0, 10 * US, "api", 0),
        (2 * MS, 202 * MS, "memory", 0),
        *((203 * MS + at * 10 * US, 203 * MS + at * 10 * US + US, "memory", 0) for at in range(4)),
        (210 * MS, 310 * MS, "memory", 0),
        (311 * MS, 611 * MS, "api", 0),
    ]
    work = [(5 * US, 1 * MS, "compute", 0, 0), (611 * MS + 5 * US, 620 * MS, "compute", 0, 7)]
    names = ["launch", "cudaFree", *["cudaFree"] * 5, "launch of another kernel"]
    (finding, *others) = findings(with_calls(made_trace(work, calls), names), start_up, allocation)
    assert "300 ms in cudaFree and 300 ms in launch of another kernel" in finding.title
    assert "allocation" not in [each.id for each in others]
    pinned = ["launch", *["cudaFreeHost"] * 6, "launch of another kernel"]
    (finding, *_) = findings(with_calls(made_trace(work, calls), pinned), start_up, allocation)
    assert "200 ms in cudaFreeHost" in finding.title


@pytest.mark.parametrize(("first", "leads"), [(700 * MS, True), (40 * MS, False)])
def test_first_launches_of_a_training_that_take_most_of_the_run_are_start_up(first: int, leads: bool) -> None:
    """The first step of a training loads its kernels (`norm_layers` of round 13). One that is long is only a step."""
    begins = [0, *(800 * MS + step * 5 * MS for step in range(1, 11))]
    calls = [(0, 10 * US, "api", 0), (2 * MS, 2 * MS + first, "api", 0)]
    calls += [(at, at + 10 * US, "api", 0) for begin in begins[1:-1] for at in (begin, begin + 2 * MS)]
    work = [(end, end + 1 * MS, "compute", 0, row) for row, (_, end, _, _) in enumerate(calls)]
    ranges = [(begin, end, f"step {step}", 0) for step, (begin, end) in enumerate(pairwise(begins))]
    found = findings(in_training(made_trace(work, calls, ranges)), start_up)
    assert [finding.id for finding in found] == ["start_up"] * leads


def test_single_call_that_takes_most_of_the_iterations_comes_first() -> None:
    """The host waits for a third of each step, 50 ms in all; one call of 250 ms in the fifth is more."""
    for call, expected in ((250 * MS, ["allocation", "host_bound"]), (40 * MS, ["host_bound"])):
        starts = [500 * MS + step * 15 * MS + (call if step > 4 else 0) for step in range(10)]
        calls = [(start, start + 20 * US, "api", 0) for start in starts]
        work = [(0, 1 * MS, "compute", 0, None)]
        work += [(start + 10 * US, start + 10 * MS, "compute", 0, at) for at, start in enumerate(starts)]
        ranges = [
            (start, end, f"step {at}", 0) for at, (start, end) in enumerate(pairwise([*starts, starts[-1] + 15 * MS]))
        ]
        calls.append((starts[4] + 12 * MS, starts[4] + 12 * MS + call, "memory", 0))
        found = analyze(made_trace(work, calls, ranges)).findings
        assert [finding.id for finding in found][: len(expected)] == expected


def test_profiler_is_a_note_queued_and_unknown_are_findings() -> None:
    work = [
        (0, 1 * MS, "compute", 0, None),
        (2 * MS, 3 * MS, "compute", 0, 0),
        (4 * MS, 5 * MS, "compute", 0, None),
        (6 * MS, 7 * MS, "compute", 0, 1),
    ]
    calls = [(0, 10, "api", 0), (5 * MS, 5 * MS, "api", 0)]
    trace = made_trace(work, calls, overhead=[(5 * MS, 6 * MS)])
    result = findings(trace, profiler_overhead, queued_work, unknown_launch)
    assert {finding.id: finding.cost_ns for finding in result} == dict.fromkeys(
        ["late_start", "unknown_launch"], 1 * MS
    )
    (note,) = notes(trace, profiler_overhead)
    assert note.text.startswith("The profiler itself keeps GPU 0 idle for 1.00 ms, 14.3% of the time.")


def test_less_than_a_thousandth_has_no_finding() -> None:
    work = [(0, 1000 * MS, "compute", 0, None), (1000 * MS + 500 * US, 2000 * MS, "compute", 0, None)]
    assert findings(made_trace(work), unknown_launch) == ()


def loading_loop(size: int, read_back: int, kind: str = "pytorch", *, kernel_first: bool = False) -> Trace:
    """Ten steps of 10 ms: a pause of 7 ms, a copy of `size` bytes to the GPU, a kernel, a copy back of `read_back`.

    With `kernel_first`, a kernel of 1 us runs 0.2 ms before the copy to the GPU.
    """
    one_step = [(7 * MS, MS, "copy"), (8 * MS, MS, "compute"), (9 * MS, MS, "copy")]
    if kernel_first:
        one_step.insert(0, (7 * MS - 200 * US, 2 * US, "compute"))
    work, calls = [], []
    for step in range(10):
        begin, first = step * 10 * MS, len(calls)
        for at, (start, length, work_class) in enumerate(one_step):
            calls.append((begin + start, begin + start + US, "api", 0))
            work.append((begin + start + US, begin + start + length, work_class, 0, first + at))
    trace = made_trace(work, calls, iterations(10, 10 * MS))
    kinds, sizes = ([None] * kernel_first + ["h2d", None, "d2h"]) * 10, ([0] * kernel_first + [size, 0, read_back]) * 10
    own = [pl.Series("kind", kinds, dtype=pl.Enum(KINDS)), pl.Series("bytes", sizes, dtype=pl.Int64)]
    return replace(trace, operations=trace.operations.with_columns(own), program=Program(kind, (kind,)))


def test_wait_before_the_copies_of_batches_is_data_loading() -> None:
    """A scalar does not count, and a host that reads back as much computes the next input from it."""
    first = [findings(loading_loop(*sizes), host_bound)[0] for sizes in ((10_000, 4), (100, 4), (10_000, 20_000))]
    assert [finding.id for finding in first] == ["data_loading", "host_bound", "host_bound"]
    assert first[0].cost_ns == 9 * 7 * MS and "for batches that are not ready" in first[0].title
    assert first[0].change == "load"


def test_copy_in_the_middle_of_a_step_is_no_batch() -> None:
    """The wait ends with a kernel: the host did something else, as building a plan for a new shape."""
    first = findings(loading_loop(10_000, 4, kernel_first=True), host_bound)[0]
    assert (first.id, first.change) == ("host_bound", "")


def test_wait_before_input_of_a_program_without_a_model_is_work_of_the_host() -> None:
    """Nothing else says that data are loaded: a solver makes its input there as well."""
    first = findings(loading_loop(10_000, 4, "cuda"), host_bound)[0]
    assert (first.id, first.cost_ns, first.change) == ("host_bound", 9 * 7 * MS, "load")
    assert "for the host before input is copied" in first.title and "in several threads" in first.remedy


def test_op_that_runs_on_the_cpu_names_the_wait() -> None:
    """It ends before the copy. An op that launches the copy does not run on the CPU."""
    rows = [
        (step * 10 * MS + start * MS, step * 10 * MS + end * MS, name, 0, 1, "op", False, None, None, None)
        for step in range(10)
        for start, end, name in ((1, 6, "aten::randn"), (1, 5, "aten::normal_"), (6, 8, "aten::copy_"))
    ]
    names = pl.Enum(sorted({str(row[2]) for row in rows}))
    scopes = pl.DataFrame(rows, schema={**SCOPES, "name": names}, orient="row")
    finding = findings(replace(loading_loop(10_000, 4), scopes=scopes), host_bound)[0]
    assert (finding.id, finding.cost_ns) == ("host_bound", 9 * 7 * MS)
    assert "`aten::randn`" in finding.title and "on the GPU" in finding.remedy
