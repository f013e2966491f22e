"""What-if across ranks: made captures against arithmetic by hand, and real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.build_export import Call, Kernel, Nvtx, Record, Sync, build_export
from tests.captures import sample, shared
from tests.cli.command import Command
from tests.ranks.reports import ranks_of
from traceview.errors import RequestError
from traceview.model.whatif import WhatIf
from traceview.ranks.whatif import whatif_ranks
from traceview.replay.constants import LOADING_LEFT, REDUCE_CALL

US = 1_000
# An iteration: the host loads a batch, launches two kernels and two all-reduces, and waits for the GPU.
LATENCY, CALL, COMPUTE, REDUCE, RETURN, STEPS = 6 * US, 4 * US, 100 * US, 300 * US, 5 * US, 12
KERNEL = "at::native::vectorized_elementwise_kernel"
# A collective waits for the kernel before it: its stream waits for an event of the other stream.
SUM = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
NAMES = {1: "cudaEventRecord_v3020", 2: "cudaStreamWaitEvent_v3020"}
WAIT_EVENT = 2
LOADING = (50 * US, 50 * US, 450 * US)  # of each rank


def made_ranks(folder: Path, *, name: str = SUM, computes: int = COMPUTE) -> list[Path]:
    """Write a report for each rank. Collectives end, on all ranks, REDUCE after the last rank arrives.

    `computes` is the time of the kernel before the second all-reduce.
    """
    tables = ("kernels", "api", "nvtx", "records", "syncs")
    rows: list[dict[str, list[object]]] = [{table: [] for table in tables} for _ in LOADING]
    free = np.zeros(len(LOADING), np.int64)  # when each host is free
    for step in range(STEPS):
        begin, loaded = free.copy(), free + LOADING
        launch = loaded[:, None] + np.arange(8) * (CALL + US)
        gemm = launch[:, 0] + LATENCY
        second = gemm + COMPUTE + US
        first_end = int((gemm + COMPUTE + US).max()) + REDUCE
        arrival = np.maximum(second + computes + US, first_end + US)
        end = int(arrival.max()) + REDUCE
        for rank, row in enumerate(rows):
            spans = {
                0: (gemm[rank], gemm[rank] + COMPUTE, KERNEL, 7),
                3: (gemm[rank] + COMPUTE + US, first_end, name, 8),
                4: (second[rank], second[rank] + computes, KERNEL, 7),
                7: (arrival[rank], end, name, 8),
            }
            for place, at in enumerate(launch[rank].tolist()):
                number = 10 * step + place + 1
                row["api"].append(Call(at, at + CALL, NAMES.get(place % 4, Call.name), correlation=number))
                if place in spans:
                    start, stop, kernel, stream = spans[place]
                    row["kernels"].append(Kernel(int(start), int(stop), kernel, number, stream=stream))
                elif place % 4 == 1:
                    row["records"].append(Record(2 * step + place // 4, number, 7))
                else:
                    row["syncs"].append(Sync(WAIT_EVENT, number, 8, 2 * step + place // 4))
            waits = int(launch[rank, -1]) + CALL + US
            row["api"].append(Call(waits, end + RETURN, "cudaDeviceSynchronize_v3020", correlation=10 * step + 9))
            row["nvtx"].append(Nvtx(int(begin[rank]), end + RETURN + US, text=f"step {step}"))
            row["nvtx"].append(Nvtx(int(begin[rank]) + US, int(loaded[rank]) - US, text="data loading"))
        free[:] = end + RETURN + 2 * US
    return [build_export(folder / f"rank{rank}.sqlite", **row) for rank, row in enumerate(rows)]  # type: ignore[arg-type]


def gains(result: WhatIf) -> dict[str, int]:
    return {each.change: result.measured_ns - each.iteration_ns for each in result.predictions}


def test_made_ranks_against_arithmetic(tmp_path: Path) -> None:
    result = whatif_ranks(made_ranks(tmp_path))
    assert result.error == pytest.approx(0, abs=0.01)
    saved, slower = gains(result), LOADING[2] - LOADING[0]
    # The other ranks load for 400 µs less, so all ranks wait that much less.
    assert saved["without:rank2"] == pytest.approx(slower, rel=0.02)
    # With the loading of rank 2 hidden, the other ranks are left; with that of all, 3% of the longest range.
    assert saved["load@rank2"] == pytest.approx(slower, rel=0.02)
    assert saved["load"] == pytest.approx((1 - LOADING_LEFT) * (LOADING[2] - 2 * US), rel=0.001)
    # Both all-reduces are on the path: half of what each takes beyond a call of a few bytes.
    assert saved["bf16-gradients"] == pytest.approx(2 * (REDUCE - REDUCE_CALL) / 2, rel=0.001)
    assert "buckets:4" in {each.change for each in result.left_out}, "an iteration has two all-reduces"


@pytest.mark.parametrize("computes", [10 * US, COMPUTE])
def test_larger_buckets_against_arithmetic(computes: int, tmp_path: Path) -> None:
    """The first all-reduce runs beside the second kernel; both together begin after it, and save a call."""
    result = whatif_ranks(made_ranks(tmp_path, computes=computes))
    before = REDUCE + US + REDUCE
    after = US + computes + 2 * REDUCE - REDUCE_CALL
    assert gains(result)["buckets:2"] == pytest.approx(before - after, abs=US)


def test_sums_of_integers_stay(tmp_path: Path) -> None:
    result = whatif_ranks(made_ranks(tmp_path, name="ncclDevKernel_AllReduce_Max_i32_RING_LL"))
    assert "bf16-gradients" in {each.change for each in result.left_out}


@pytest.mark.parametrize(("name", "slowest"), [("slowhost", 1), ("slowgpu", 2)])
def test_slowest_rank_of_four(name: str, slowest: int) -> None:
    result = whatif_ranks(ranks_of(name))
    assert abs(result.error) < 0.05
    label = f"{name}_rank{slowest}"
    alone = {each.change: each for each in result.predictions}[f"without:{label}"]
    # The other ranks of both runs take 12.3 to 12.9 ms by themselves (traceview fleet).
    assert alone.iteration_ns == pytest.approx(12_600_000, rel=0.05)


def test_two_gpus_of_one_capture(traceview: Command, tmp_path: Path) -> None:
    place = tmp_path / "out.json"
    report = shared("h200_ddp2.sqlite")
    assert traceview("whatif", report, "--all-ranks", "--json", place).code == 0
    document = json.loads(place.read_text())
    assert abs(document["replay_error"]) < 0.05
    assert document["file"] == f"2 ranks of {report.name}"
    assert any(each["change"].startswith(f"without:{report.stem}") for each in document["predictions"])


def test_errors(traceview: Command) -> None:
    with pytest.raises(RequestError, match="no collective of several ranks"):
        whatif_ranks([sample("serial.sqlite"), sample("dual.sqlite")])
    paths = ranks_of("slowhost")[:2]
    code, out, error = traceview("whatif", *paths, "--faster", "gemm=2")
    assert (code, out) == (2, "") and error.count("\n") == 1 and "for a report alone" in error
