"""Tests of idle gaps against hand-computed figures, for the oracle and for traceview."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build_export import Call, Copy, Kernel, Memset, Overhead, build_export
from tests.by_hand import Figures, by_both, causes, holds


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


@by_both
def test_gap_causes_by_precedence(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[Kernel(1000, 1100, correlation=1), Kernel(2000, 2100, correlation=2)],
        api=[
            Call(900, 910, correlation=1),
            Call(1110, 1200, "cudaDeviceSynchronize_v3020", correlation=3),
            Call(1250, 1300, "cudaMemcpy_v3020", correlation=4),
            Call(1290, 1320, "cudaMalloc_v3020", correlation=5),
            Call(1150, 1335, "cudaGraphInstantiate_v12000", correlation=6),
            Call(1400, 1500, "cudaStreamSynchronize_v3020", correlation=7, thread=12),
            Call(1800, 1850, correlation=2),
        ],
        overhead=[Overhead(1095, 1115)],
    )
    found = measure(path)
    # The gap is [1100, 2000). Overhead takes 1100 to 1115, so the synchronize keeps 85 of its 90 ns, and of the
    # call around them api keeps 1200 to 1250 and 1320 to 1335. Thread 12 launched nothing, so its synchronize
    # explains nothing; host is 1115 to 1800 less 85 + 50 + 20 + 65. It returned last, so the restart gap is its own,
    # but costs no more than it blocked. The first three calls form one wait, with 160 idle ns shared 90 : 50 : 30.
    holds(
        found,
        devices__0__gaps__count=1,
        devices__0__gaps__total_ns=900,
        devices__0__gaps__causes=causes(
            profiler=15, queued=150, launch=50, sync=85, blocking_copy=50, memory=20, api=65, host=465
        ),
        host__sync__count=2,
        host__sync__blocked_ns=190,
        host__sync__waited_ns=0,
        host__sync__starved_ns=190,
        host__sync__idle_in_wait_ns=84 + 100,
        host__sync__refill_ns=2000 - 1500,
        host__sync__cost_ns=84 + 100,
        host__implicit_sync__count=2,
        host__implicit_sync__blocked_ns=80,
        host__implicit_sync__cost_ns=160 - 84,
    )
    assert [call["api"] for call in found["host"]["sync"]["calls"]] == [
        "cudaStreamSynchronize", "cudaDeviceSynchronize",
    ]  # fmt: skip
    assert [call["api"] for call in found["host"]["implicit_sync"]["calls"]] == ["cudaMemcpy", "cudaMalloc"]


@by_both
def test_work_launched_before_the_gap_is_queued(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[Kernel(100, 200, correlation=1), Kernel(230, 300, correlation=2)],
        api=[Call(10, 20, correlation=1), Call(30, 40, correlation=2)],
    )
    holds(measure(path), devices__0__gaps__causes=causes(queued=30), devices__0__idle_ns=30)


@by_both
def test_long_call_and_missing_launch(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[
            Kernel(100, 200, correlation=1),
            Kernel(230, 300, correlation=2),
            Kernel(350, 360, correlation=9),
        ],
        api=[Call(10, 20, correlation=1), Call(150, 225, correlation=2)],
        overhead=[Overhead(310, 320)],
    )
    holds(
        measure(path),
        devices__0__gaps__causes=causes(launch=25, queued=5, profiler=10, unknown=40),
        unmatched__kernels=1,
        unmatched__copies=0,
    )


@by_both
def test_operations_without_length_do_not_end_gaps(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[
            Kernel(0, 50, correlation=1),
            Kernel(100, 100, correlation=2),
            Kernel(150, 150, correlation=2),
            Kernel(150, 200, correlation=3),
        ],
        api=[Call(0, 1, correlation=1), Call(20, 30, correlation=2), Call(60, 70, correlation=3)],
    )
    # Ended by the third launch: host 50 to 60, launch to 70, queued to 150.
    holds(
        measure(path),
        devices__0__gaps__count=1,
        devices__0__gaps__causes=causes(host=10, launch=10, queued=80),
        devices__0__kernel_count=4,
        devices__0__streams__0__gap_count=1,
    )


@by_both
def test_stream_gaps_include_work_of_other_streams(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[
            Kernel(0, 10),
            Kernel(100, 110),
            Kernel(30, 60, "ncclKernel_Broadcast", stream=9),
            Kernel(50, 65, stream=10),
        ],
        copies=[Copy(20, 40, stream=8)],
        memsets=[Memset(70, 80, stream=8)],
    )
    # Stream 7 rests from 10 to 100, the device for 35 ns of it.
    holds(
        measure(path),
        devices__0__streams__0__id=7,
        devices__0__streams__0__gap_ns=90,
        devices__0__streams__1__gap_ns=30,
        devices__0__gaps__total_ns=35,
    )  # fmt: skip


@by_both
def test_window_clips_gaps(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[
            Kernel(0, 100, correlation=1),
            Kernel(150, 200, correlation=2),
            Kernel(300, 310, correlation=3),
        ],
        api=[
            Call(0, 0, correlation=1),
            Call(110, 120, correlation=2),
            Call(190, 230, "cudaDeviceSynchronize", correlation=4),
            Call(260, 270, correlation=3),
        ],
    )
    # [50, 250): the last gap is cut at 250, before the call that ends it begins.
    holds(
        measure(path, window=(50, 250)),
        devices__0__window_ns=[50, 250],
        devices__0__busy_ns=100,
        devices__0__gaps__count=2,
        devices__0__gaps__causes=causes(host=10 + 20, launch=10, queued=30, sync=30),
        host__sync__waited_ns=10,
        host__sync__starved_ns=30,
    )
