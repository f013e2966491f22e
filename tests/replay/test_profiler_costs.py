"""How slow the host of a capture ran, from its launch calls."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests.made_trace import made_trace
from traceview.model.trace import Trace
from traceview.replay.profiler_costs import DECILES, MAX_SLOWDOWN, USUAL_LAUNCH, host_slowdown

PROCESS = 1  # of made traces


def launches(lengths: list[int], gpu: str = "NVIDIA H200") -> Trace:
    """Hand-made: launch calls of these lengths in ns, on a host of this GPU."""
    operations, api, at = [], [], 0
    for length in lengths:
        api.append((at, at + length, "api", 0))
        operations.append((at + length + 3_000, at + length + 3_500, "compute", 0, len(api) - 1))
        at += length + 6_000
    trace = made_trace(operations, api)
    name = pl.col("name").cast(pl.String).replace("cudaapi", "cudaLaunchKernel").cast(pl.Enum(["cudaLaunchKernel"]))
    return replace(
        trace, api=trace.api.with_columns(name), devices=trace.devices.with_columns(pl.lit(gpu).alias("name"))
    )


@pytest.mark.parametrize(
    ("lengths", "slowdown"),
    [
        ([4_000, 5_000, 5_400, 6_000, 6_000] * 40, 1),  # full speed
        ([4_500] * 60 + [7_000] * 140, 7_000 / USUAL_LAUNCH),  # slow most of the time
        ([4_500] * 140 + [7_000] * 60, 1),  # slow for a while
        ([7_500] * 200, 7_500 / USUAL_LAUNCH),  # slow all the time
        ([5_000] * 90 + [500_000] * 110, 1),  # most launches wait for room
        ([11_000] * 200, MAX_SLOWDOWN),
        ([7_500] * 99, 1),  # too few launches
    ],
)
def test_slow_host(lengths: list[int], slowdown: float) -> None:
    assert host_slowdown(launches(lengths), PROCESS) == pytest.approx(slowdown)


def test_host_whose_usual_launch_is_unknown_is_compared_with_itself() -> None:
    assert host_slowdown(launches([9_000] * 200, "NVIDIA L4"), PROCESS) == 1
    mixed = launches([6_000] * 40 + [9_000] * 160, "NVIDIA L4")
    assert host_slowdown(mixed, PROCESS) == pytest.approx(9_000 / 6_000 / DECILES)


def test_processes_that_launch_at_once_are_compared_with_themselves() -> None:
    trace = launches([7_500] * 400)
    both = trace.api.with_columns(process=pl.Series([PROCESS, PROCESS + 1] * 200, dtype=trace.api["process"].dtype))
    assert host_slowdown(trace, PROCESS) == pytest.approx(7_500 / USUAL_LAUNCH)
    assert host_slowdown(replace(trace, api=both), PROCESS) == 1


def test_calls_of_no_length_show_nothing() -> None:
    assert host_slowdown(launches([0] * 200), PROCESS) == 1


def test_capture_without_launch_calls() -> None:
    assert host_slowdown(made_trace([(5, 9, "compute", 0, 0)], [(0, 4, "api", 0)]), PROCESS) == 1
