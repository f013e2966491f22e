"""Iterations that parts find and measure are those of the complete trace."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.captures import sample
from tests.engine.windows import quiet_parts
from tests.measure.iterations.whole_trace import measure_iterations, measured_devices
from traceview.engine.iterations import find_iterations_in_parts, measure_iteration_part, merge_iteration_parts
from traceview.engine.part import PartTrace
from traceview.errors import RequestError
from traceview.measure.activity import active_devices
from traceview.measure.gaps import ThreadStates
from traceview.measure.iterations import build_iterations
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.trace import Trace, Window
from traceview.pipeline import open_trace


@cache
def capture(name: str, ranges: bool = True) -> Trace:
    trace = open_trace(sample(name))
    return trace if ranges else replace(trace, ranges=trace.ranges.clear())


def iterations_of_parts(trace: Trace, parts: list[PartTrace], **options: int) -> Iterations | NotMeasured:
    resident = replace(trace, operations=trace.operations.clear(), api=trace.api.clear())
    devices = [work.device for work in active_devices(trace)]
    found = find_iterations_in_parts(resident, devices, lambda function: map(function, parts), **options)
    if isinstance(found, NotMeasured):
        return found
    where, work = found
    measured_parts = []
    for part in parts:
        measured = measured_devices(part.trace, part.threads)
        measured_parts.append(measure_iteration_part(part.trace, part.threads, measured, devices, where))
    return build_iterations(where, merge_iteration_parts(where, measured_parts), work)


@pytest.mark.parametrize(
    ("name", "ranges", "least"),
    [
        ("dual.sqlite", True, (2, 7, 50)),
        ("ddp2.sqlite", True, (2, 7, 35)),
        ("dual.sqlite", False, (2, 7, 50)),  # a period of the launches
        ("cudagraph.sqlite", False, (2, 3, 8)),
        ("scenarios/graph_nodes.sqlite", True, (2, 7, 15)),
    ],
)
def test_iterations_of_slices_equal_those_in_memory(name: str, ranges: bool, least: tuple[int, ...]) -> None:
    trace = capture(name, ranges)
    whole = measure_iterations(trace, ThreadStates.from_trace(trace))
    for count, cut in zip((2, 7, 50), least, strict=True):
        parts = quiet_parts(trace, count)
        assert len(parts) >= cut
        assert iterations_of_parts(trace, parts) == whole


def test_devices_that_are_idle_in_a_slice_count() -> None:
    trace = capture("ddp2.sqlite")
    start = trace.operations.filter(trace.operations["device"] == 1)["start"].to_numpy()
    before = trace.with_window(Window(-(1 << 62), int(start[0])))
    after = trace.with_window(Window(int(start[0]), 1 << 62))
    assert iterations_of_parts(trace, [PartTrace(before), PartTrace(after)]) == measure_iterations(
        trace, ThreadStates.from_trace(trace)
    )


def test_too_many_skipped_iterations_are_an_error_in_slices_too() -> None:
    trace = capture("dual.sqlite")
    with pytest.raises(RequestError, match="--skip 99 leaves none"):
        iterations_of_parts(trace, quiet_parts(trace, 2), skip=99)
