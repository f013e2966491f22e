"""Iterations that slices find and measure are those of the complete trace."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.captures import sample
from tests.measure.iterations.whole_trace import measure_iterations, measured_devices
from tests.slices.windows import quiet_slices
from traceview.errors import RequestError
from traceview.measure.activity import active_devices
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.iterations.figures import build_iterations
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.trace import Trace, Window
from traceview.pipeline import open_trace
from traceview.slices.iterations import find_iterations_in_slices, measure_iteration_part, merge_iteration_parts
from traceview.slices.slice import Slice


@cache
def capture(name: str, ranges: bool = True) -> Trace:
    trace = open_trace(sample(name))
    return trace if ranges else replace(trace, ranges=trace.ranges.clear())


def iterations_of_slices(trace: Trace, slices: list[Slice], **options: int) -> Iterations | NotMeasured:
    resident = replace(trace, operations=trace.operations.clear(), api=trace.api.clear())
    devices = [work.device for work in active_devices(trace)]
    found = find_iterations_in_slices(resident, devices, lambda function: map(function, slices), **options)
    if isinstance(found, NotMeasured):
        return found
    where, finish = found
    parts = []
    for part in slices:
        measured = measured_devices(part.trace, part.threads)
        parts.append(measure_iteration_part(part.trace, part.threads, measured, devices, where))
    return build_iterations(where, merge_iteration_parts(where, parts), finish)


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
        slices = quiet_slices(trace, count)
        assert len(slices) >= cut
        assert iterations_of_slices(trace, slices) == whole


def test_devices_that_are_idle_in_a_slice_count() -> None:
    trace = capture("ddp2.sqlite")
    start = trace.operations.filter(trace.operations["device"] == 1)["start"].to_numpy()
    before = trace.with_window(Window(-(1 << 62), int(start[0])))
    after = trace.with_window(Window(int(start[0]), 1 << 62))
    assert iterations_of_slices(trace, [Slice(before), Slice(after)]) == measure_iterations(
        trace, ThreadStates.from_trace(trace)
    )


def test_too_many_skipped_iterations_are_an_error_in_slices_too() -> None:
    trace = capture("dual.sqlite")
    with pytest.raises(RequestError, match="--skip 99 leaves none"):
        iterations_of_slices(trace, quiet_slices(trace, 2), skip=99)
