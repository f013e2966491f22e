"""Tests of overlap, ranges, calls and iterations against hand-computed figures of small exports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.build_export import Call, Copy, CudaDevice, Graph, Kernel, Memset, Nvtx, build_export
from tests.by_hand import Figures, by_both, causes, holds
from tests.oracle import figures


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "report.sqlite"


@by_both
def test_overlap_by_memory(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[
            Kernel(0, 100),
            Kernel(50, 150, stream=8),
            Kernel(140, 240, "ncclDevKernel_AllReduce", stream=9),
        ],
        copies=[
            Copy(80, 180, source=1, bytes=10, stream=10),
            Copy(120, 200, source=0, bytes=20, stream=11),
            Copy(190, 260, kind=2, source=2, target=1, bytes=40, stream=12),
        ],
    )
    pair = "kind", "memory", "count", "bytes", "busy_ns", "overlapped_ns", "exposed_ns"
    rows = [
        ("h2d", "pageable", 1, 20, 80, 30, 50),
        ("h2d", "pinned", 1, 10, 100, 70, 30),
        ("d2h", "pinned", 1, 40, 70, 0, 70),
    ]
    measured = measure(path)
    copies = [{key: row[key] for key in pair} for row in measured["devices"][0]["copies"]]
    assert copies == [dict(zip(pair, row, strict=True)) for row in rows]
    holds(
        measured,
        devices__0__window_ns=[0, 260],
        devices__0__busy_ns=260,
        devices__0__compute_ns=150,
        devices__0__communication_ns=100,
        devices__0__communication__count=1,
        devices__0__communication__busy_ns=100,
        devices__0__communication__overlapped_ns=10,
        devices__0__communication__exposed_ns=90,
    )


@by_both
def test_backward_belongs_to_the_annotating_thread(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[
            Kernel(30, 50, correlation=1),
            Kernel(60, 65, correlation=2),
            Kernel(160, 170, correlation=3),
        ],
        api=[
            Call(10, 20, correlation=1, thread=12),
            Call(55, 58, correlation=2, thread=12),
            Call(150, 155, correlation=3),
        ],
        nvtx=[Nvtx(0, 200, "step"), Nvtx(5, 55, "backward"), Nvtx(54, 60, "hook", thread=12)],
    )
    found = {row["name"]: row for row in measure(path)["nvtx"]}
    # At 55 `backward` is closed (half-open) and thread 12 has a range of its own.
    keys = ("kernel_count", "via_process_count", "gpu_busy_ns", "gpu_span_ns", "host_ns")
    assert {name: tuple(row[key] for key in keys) for name, row in found.items()} == {
        "step": (2, 1, 30, 140, 200),
        "backward": (1, 1, 20, 20, 50),
        "hook": (1, 0, 5, 5, 6),
    }


@by_both
def test_synchronizations_and_pageable_copies(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[Kernel(100, 200, correlation=1), Kernel(300, 310, correlation=4)],
        copies=[Copy(205, 215, source=0, correlation=3), Copy(320, 330, source=1, correlation=5)],
        api=[
            Call(10, 20, correlation=1),
            Call(50, 190, "cudaStreamSynchronize_ptsz", correlation=2),
            Call(190, 220, "cudaMemcpyAsync_v3020", correlation=3),
            Call(240, 250, correlation=4),
            Call(251, 260, "cudaMemcpyAsync_v3020", correlation=5),
        ],
    )
    # The synchronize starves from 50 to 100, before the window begins. The pageable copy waits 190 to 200 and 205 to
    # 215, and 80 ns pass before the next kernel. Nothing is launched between the two calls: they form one wait, which
    # blocks 170 ns and costs 10 + 80, shared 140 : 30. The pinned copy does not block.
    holds(
        measure(path),
        host__sync__calls__0__api="cudaStreamSynchronize",
        host__sync__blocked_ns=140,
        host__sync__waited_ns=90,
        host__sync__starved_ns=50,
        host__sync__idle_in_wait_ns=8,
        host__sync__refill_ns=65,
        host__sync__cost_ns=74,
        host__implicit_sync__count=1,
        host__implicit_sync__blocked_ns=30,
        host__implicit_sync__waited_ns=20,
        host__implicit_sync__starved_ns=10,
        host__implicit_sync__idle_in_wait_ns=2,
        host__implicit_sync__refill_ns=15,
        host__implicit_sync__cost_ns=16,
        host__implicit_sync__calls__0__cost_ns=16,
    )


@by_both
def test_correlation_ids_are_per_process(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[Kernel(100, 110), Kernel(100, 110, process=20), Kernel(150, 160, correlation=2, process=20)],
        copies=[Copy(120, 130, kind=11, source=4, correlation=0), Copy(140, 145, correlation=8)],
        memsets=[Memset(170, 175, correlation=9)],
        api=[
            Call(50, 60),
            Call(50, 60, process=20),
            Call(61, 99, "cudaDeviceSynchronize", correlation=2),
        ],
    )
    found = measure(path)
    assert found["unmatched"] == {"kernels": 1, "copies": 1, "memsets": 1, "graphs": 0}
    assert [device["process_ids"] for device in found["devices"]] == [[10], [20]]
    assert found["devices"][0]["copies"][1]["kind"] == "um_h2d"


@by_both
def test_processes_share_a_device(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[Kernel(0, 10), Kernel(20, 30, process=20)],
        cuda_devices=[CudaDevice(uuid="one"), CudaDevice(process=20, uuid="one")],
    )
    holds(
        measure(path),
        devices__0__process_ids=[10, 20],
        devices__0__gaps__count=1,
        devices__0__streams__1__process_id=20,
    )


@by_both
def test_graph_is_compute_unless_nodes_are_traced(measure: Figures, path: Path) -> None:
    build_export(
        path,
        kernels=[Kernel(0, 10, correlation=1), Kernel(15, 20, correlation=1)],
        graphs=[Graph(0, 20, correlation=1), Graph(40, 70, correlation=2)],
        api=[
            Call(0, 1, "cudaGraphLaunch_v10000", correlation=1),
            Call(30, 35, "cudaGraphLaunch_v10000", correlation=2),
        ],
    )
    # The first graph must not fill the gap between its nodes.
    holds(measure(path), devices__0__compute_ns=45, devices__0__kernel_count=2, devices__0__gaps__total_ns=25)


@by_both
def test_iterations_and_warm_up(measure: Figures, path: Path) -> None:
    starts, walls = (0, 200, 300, 400), (100, 20, 30, 40)
    build_export(
        path,
        kernels=[
            Kernel(210, 215, correlation=1),
            Kernel(218, 310, correlation=2),
            *(Kernel(at, at, correlation=at) for at in (5, 311, 401)),  # of no length, so that each launches work
        ],
        copies=[Copy(212, 217, correlation=3)],
        api=[
            Call(4, 4, correlation=5),
            Call(205, 207, correlation=1),
            Call(207, 208, correlation=2),
            Call(208, 209, correlation=3),
            Call(215, 230, "cudaDeviceSynchronize", correlation=4, thread=12),
            Call(310, 310, correlation=311),
            Call(400, 400, correlation=401),
        ],
        nvtx=[Nvtx(s, s + w, f"iteration {i - 1}") for i, (s, w) in enumerate(zip(starts, walls, strict=True))]
        + [Nvtx(s + 1, s + 9, "forward") for s in starts],
    )
    found = measure(path)
    # The median of all is 35, so 100 is set aside; of 20, 30, 40 the 5th percentile is 21 and the 95th 39.
    holds(
        found,
        iterations__range="iteration #",
        iterations__count=4,
        iterations__skipped=1,
        iterations__wall_ns={"median": 30, "p5": 21, "p95": 39},
    )
    second = found["iterations"]["per_iteration"][1]
    expected = {
        "name": "iteration 0", "wall_ns": 20, "compute_ns": 7, "exposed_h2d_ns": 2, "idle_ns": 11,
        "idle": causes(host=5, launch=2, queued=4), "blocked_ns": 5, "kernel_count": 2, "skipped": False,
    }  # fmt: skip
    assert {key: second[key] for key in expected} == expected
    # No work follows the last iteration, so nothing says why the GPU rested.
    assert found["iterations"]["per_iteration"][3]["idle"] == causes(unknown=40)


@by_both
def test_rows_that_end_before_they_start_are_left_out(measure: Figures, path: Path) -> None:
    build_export(path, kernels=[Kernel(0, 10), Kernel(90, 80), Kernel("soon", 95), Kernel(20, 30)])
    holds(measure(path), devices__0__window_ns=[0, 30], devices__0__kernel_count=2, devices__0__idle_ns=10)


def test_capture_without_gpu_work_has_no_devices(path: Path) -> None:
    build_export(path, api=[Call()])
    assert figures(path)["devices"] == []
