"""The bubbles of pipeline parallelism, on captures made by hand: no GPU was at hand to record one.

Two GPUs run 1F1B on four micro-batches. Between its micro-batches a stage waits in the receive kernel of NCCL, or, with
another library, in nothing.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.build_export import Call, CudaDevice, Gpu, Kernel, Nvtx, build_export
from traceview.pipeline import analyze
from traceview.report.analysis import document

MICRO_BATCHES, STAGES, STEPS = 4, 2, 3
FORWARD, BACKWARD = 1_000_000, 2_000_000  # ns
STEP = (MICRO_BATCHES + STAGES - 1) * (FORWARD + BACKWARD)
BUBBLES = (STAGES - 1) / (MICRO_BATCHES + STAGES - 1)


# When each chunk of a step starts, in units of 0.1 ms. Stage 1 needs a forward of stage 0, which needs its backward.
CHUNKS = (
    {"forward": (0, 10, 60, 90), "backward": (40, 70, 100, 130)},
    {"forward": (10, 40, 70, 100), "backward": (20, 50, 80, 110)},
)


def chunks(stage: int) -> list[tuple[int, int, str]]:
    """Return (start, end, range) of the chunks of a step in ns, in their order."""
    lengths = {"forward": FORWARD, "backward": BACKWARD}
    return sorted(
        (100_000 * start, 100_000 * start + lengths[kind], f"stage {stage} {kind} {number}")
        for kind, starts in CHUNKS[stage].items()
        for number, start in enumerate(starts)
    )


def capture(path: Path, *, receives: bool) -> dict[str, Any]:
    kernels: list[Kernel] = []
    calls: list[Call] = []
    ranges: list[Nvtx] = []

    def launch(stage: int, name: str, start: int, end: int, stream: int) -> None:
        process, call = 10 + stage, len(calls) + 1
        calls.append(Call(start, start + 10, correlation=call, thread=100 + stage, process=process))
        kernels.append(Kernel(start + 20, end, name, call, stream, stage, process))

    for stage, step in product(range(STAGES), range(STEPS)):
        origin = free = 1_000_000 + step * STEP
        own = {"process": 10 + stage, "thread": 100 + stage}
        ranges.append(Nvtx(origin, origin + STEP, f"iteration {step}", **own))
        for start, end, name in chunks(stage):
            if receives and origin + start > free:
                launch(stage, "ncclDevKernel_SendRecv", free, origin + start, stream=9)
            ranges.append(Nvtx(origin + start, origin + end - 1000, name, **own))
            launch(stage, "gemm", origin + start, origin + end, stream=7)
            free = origin + end
    gpus = [Gpu(stage, uuid=f"GPU-{stage}", device=stage) for stage in range(STAGES)]
    devices = [CudaDevice(stage, 10 + stage, f"GPU-{stage}", stage) for stage in range(STAGES)]
    build_export(path, kernels=kernels, api=calls, nvtx=ranges, gpus=gpus, cuda_devices=devices)
    return document(analyze(path))


@pytest.fixture(scope="module", params=[True, False], ids=["nccl", "idle"])
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[bool, dict[str, Any]]:
    return request.param, capture(tmp_path_factory.mktemp("pipeline") / "made.sqlite", receives=request.param)


def test_bubbles_are_what_an_iteration_does_not_compute(found: tuple[bool, dict[str, Any]]) -> None:
    receives, analysis = found
    iterations = analysis["iterations"]
    wall, compute = (iterations[name]["median"] for name in ("wall_ns", "compute_ns"))
    assert (wall - compute) / wall == pytest.approx(BUBBLES, abs=0.005)
    where = "exposed_communication_ns" if receives else "idle_ns"
    assert iterations[where]["median"] / wall == pytest.approx(BUBBLES, abs=0.005)
    assert {device["id"] for device in analysis["devices"]} == {"GPU 0", "GPU 1"}
    finding = analysis["findings"][0]
    assert finding["id"] == ("exposed_communication" if receives else "host_bound")
    assert finding["cost_fraction"] == pytest.approx(BUBBLES, abs=0.01)


def test_each_stage_and_micro_batch_has_its_gpu_time(found: tuple[bool, dict[str, Any]]) -> None:
    rows = {row["name"]: row["gpu_busy_ns"] / row["count"] for row in found[1]["nvtx"]}
    for stage, number in product(range(STAGES), range(MICRO_BATCHES)):
        assert rows[f"stage {stage} forward {number}"] == pytest.approx(FORWARD, rel=0.01)
        assert rows[f"stage {stage} backward {number}"] == pytest.approx(BACKWARD, rel=0.01)
