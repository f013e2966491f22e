"""How slow the host of a capture ran, from nsys's own calls."""

from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from traceview.model.trace import Trace
from traceview.model.unprofiled import OWN_CALL
from traceview.replay import select as select_module
from traceview.replay.profiler_costs import MAX_SLOWDOWN, USUAL_SLOWDOWN, host_slowdown

PROCESS = 1  # of made traces


def own_calls(lengths: list[int]) -> Trace:
    """Hand-made: each launch call follows a call of nsys with one of the lengths, in ns."""
    operations, api, at = [], [], 0
    for length in lengths:
        api += [(at, at + length, "memory", 0), (at + length + 200, at + length + 4_000, "api", 0)]
        operations.append((at + length + 3_000, at + length + 3_500, "compute", 0, len(api) - 1))
        at += 10_000
    trace = made_trace(operations, api)
    name = pl.col("name").cast(pl.String).replace("cudamemory", OWN_CALL)
    return replace(trace, api=trace.api.with_columns(name.cast(pl.Enum([OWN_CALL, "cudaapi"]))))


@pytest.mark.parametrize(
    ("lengths", "slowdown"),
    [
        ([80, 84, 88, 92] * 50, 1),  # full speed
        ([80] * 60 + [140] * 140, 140 / 80 / USUAL_SLOWDOWN),  # slow most of the time
        ([80] * 140 + [140] * 60, 1),  # slow for a while
        ([80] * 60 + [400] * 140, MAX_SLOWDOWN),
        ([80] * 20 + [140] * 60, 1),  # too few calls
        ([200] * 200, 1),  # cold code is as slow in each call
    ],
)
def test_slow_host(lengths: list[int], slowdown: float) -> None:
    assert host_slowdown(own_calls(lengths), PROCESS) == pytest.approx(slowdown, rel=0.01)


def test_programs_that_load_data_in_other_processes_are_slow_without_nsys_too() -> None:
    trace = own_calls([80] * 60 + [140] * 140)
    threads = trace.threads.with_columns(pl.lit("pt_data_pin").alias("name"))
    assert host_slowdown(replace(trace, threads=threads), PROCESS) == 1


def test_capture_without_calls_of_nsys() -> None:
    assert host_slowdown(made_trace([(5, 9, "compute", 0, 0)], [(0, 4, "api", 0)]), PROCESS) == 1


def test_slowdown_is_measured_only_for_the_time_without_the_profiler(monkeypatch: pytest.MonkeyPatch) -> None:
    analysis, measured = analyzed(sample("serial.sqlite")), list[int]()

    def slowdown(_trace: Trace, process: int) -> float:
        measured.append(process)
        return 1.5

    monkeypatch.setattr(select_module, "host_slowdown", slowdown)
    selection = select_module.select(analysis)
    before = list(measured)
    assert not isinstance(selection, str)
    work = selection.work
    assert (before, work.slowdown(), work.slowdown(), measured) == ([], 1.5, 1.5, [work.process])
