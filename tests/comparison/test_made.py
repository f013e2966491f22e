"""Made traces, for what no capture has: any overlap of kernels and copies, a host far ahead, no iterations."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.made_trace import made_trace
from traceview import analyze, compare
from traceview.errors import RequestError
from traceview.model.comparison import CaptureDifference, Comparison
from traceview.model.trace import Trace

CLASSES = ("compute", "communication", "copy", "memset")
MS = 1_000_000
# What an iteration does: (class, stream, delay after its launch, length), all in µs.
WORK = st.lists(
    st.tuples(st.sampled_from(CLASSES), st.integers(0, 2), st.integers(0, 3000), st.integers(0, 1500)), max_size=6
)
RUN = st.lists(WORK, min_size=3, max_size=9)


def trace_of(run: list[list[tuple[str, int, int, int]]], wall: int = MS, factor: int = 1) -> Trace:
    """Each iteration lasts `wall` and launches a kernel of 200 µs, and then its work one µs apart."""
    operations, api, ranges = [], [], []
    for index, work in enumerate(run):
        begin = (index + 1) * wall * factor
        ranges.append((begin, begin + wall * factor, f"iteration {index}", 0))
        for order, (kind, stream, delay, length) in enumerate([("compute", 0, 5, 200), *work]):
            at = begin + 1000 * (order + 1) * factor
            start = at + delay * 1000 * factor
            operations.append((start, start + length * 1000 * factor, kind, stream, len(api)))
            api.append((at, at + 500 * factor, "api", 0))
    return made_trace(operations, api, ranges)


def only(comparison: Comparison) -> CaptureDifference:
    (one,) = comparison.against
    return one


@settings(max_examples=8)
@given(RUN, RUN, st.sampled_from(("range", "gpu", "auto")))
def test_parts_add_up_and_swapping_negates(
    old: list[list[tuple[str, int, int, int]]], new: list[list[tuple[str, int, int, int]]], cut: str
) -> None:
    before, after = (analyze(trace_of(run), skip=0) for run in (old, new))
    forth, back = (compare(*pair, cut=cut) for pair in ((before, after), (after, before)))
    assert forth.cut == back.cut
    there, again = only(forth), only(back)
    assert sum(part.difference for part in there.parts) + there.left_over_ns == there.wall.difference
    assert again.left_over_ns == -there.left_over_ns
    for one, other in zip(there.figures().values(), again.figures().values(), strict=True):
        assert (one.before, one.after, one.difference) == (other.after, other.before, -other.difference)
        assert (one.low is None) == (other.low is None)
        if one.low is not None and one.high is not None:
            assert (other.low, other.high) == (-one.high, -one.low)
    opposite = {"faster": "slower", "slower": "faster", "noise": "noise", "unjudged": "unjudged"}
    # Which change is at least 1% depends on what it is 1% of.
    assert again.verdict in (opposite[there.verdict], "noise") or there.verdict == "noise"
    assert {kernel.name: kernel.time.difference for kernel in there.kernels} == {
        kernel.name: -kernel.time.difference for kernel in again.kernels
    }


@settings(max_examples=8)
@given(RUN, st.sampled_from(("range", "gpu")))
def test_the_parts_of_one_iteration_are_its_wall(run: list[list[tuple[str, int, int, int]]], cut: str) -> None:
    """Of a run whose iterations are all alike, medians add up: nothing is left over, against any other run."""
    steady = [run[0]] * 8
    one = only(compare(trace_of(steady), trace_of([[]] * 8), cut=cut, skip=0))
    assert sum(part.before for part in one.parts) <= one.wall.before
    if cut == "range" and all(delay + length < 900 for _, _, delay, length in run[0]):
        assert sum(part.before for part in one.parts) == one.wall.before
        assert one.left_over_ns == 0


@settings(max_examples=5)
@given(RUN, RUN, st.integers(2, 1000))
def test_a_slower_clock_scales_every_time(
    old: list[list[tuple[str, int, int, int]]], new: list[list[tuple[str, int, int, int]]], factor: int
) -> None:
    one = only(compare(trace_of(old), trace_of(new), skip=0))
    scaled = only(compare(trace_of(old, factor=factor), trace_of(new, factor=factor), skip=0))
    assert scaled.verdict == one.verdict
    for small, large in zip(one.figures().values(), scaled.figures().values(), strict=True):
        times = 1 if small.unit == "count" else factor
        # A median between two whole numbers is rounded down before, not after.
        assert abs(large.difference - small.difference * times) <= factor


def ahead(kernel_ms: float, steps: int = 20) -> Trace:
    """The host needs 0.1 ms a step and waits for the GPU, which needs `kernel_ms`, in the last step alone."""
    length = int(kernel_ms * MS)
    api = [(MS // 10 * step, MS // 10 * step + 1000, "api", 0) for step in range(steps)]
    operations = [(MS + length * step, MS + length * (step + 1), "compute", 0, step) for step in range(steps)]
    last = operations[-1][1] + 1000
    ends = [*(MS // 10 * (step + 1) - 1 for step in range(steps - 1)), last]
    ranges = [(MS // 10 * step, end, f"iteration {step}", 0) for step, end in enumerate(ends)]
    return made_trace(operations, api, ranges)


def test_a_host_that_runs_ahead_hides_nothing() -> None:
    """The median range says 0.1 ms in both; the GPU took 2 ms an iteration, and then 3."""
    found = compare(ahead(2), ahead(3))
    one = only(found)
    assert found.cut == "gpu" and "runs ahead" in found.cut_why
    assert (one.wall.before, one.wall.after, one.verdict) == (2 * MS, 3 * MS, "slower")
    by_range = only(compare(ahead(2), ahead(3), cut="range"))
    assert by_range.wall.difference == 0


def test_without_iterations_captures_are_compared_as_a_whole_and_say_so() -> None:
    bare = made_trace(
        [(0, 10 * MS, "compute", 0, 0), (12 * MS, 13 * MS, "copy", 0, 1)], [(0, 1, "api", 0), (2, 3, "api", 0)]
    )
    found = compare(bare, ahead(2))
    one = only(found)
    assert found.cut == "whole" and "has no iterations" in found.cut_why
    assert (one.wall.before, one.wall.after) == (13 * MS, 40 * MS)
    assert one.verdict == "unjudged" and one.confidence is None and one.wall.low is None
    assert sum(part.difference for part in one.parts) == one.wall.difference and one.left_over_ns == 0


def test_a_difference_below_the_least_is_noise_however_sure() -> None:
    same, little = ahead(2), ahead(2.01)
    assert only(compare(same, little)).verdict == "noise"
    assert "less than 1%" in only(compare(same, little)).why
    assert only(compare(same, little, least=0.001)).verdict == "slower"


def test_few_iterations_are_unjudged() -> None:
    one = only(compare(ahead(2, steps=5), ahead(3, steps=5)))
    assert one.verdict == "unjudged" and "cannot tell a change from noise" in one.why


def test_files_of_one_name_are_told_apart() -> None:
    found = compare(ahead(2), ahead(2), ahead(3))
    assert [found.base.file, *(one.capture.file for one in found.against)] == [
        f"made.sqlite ({at})" for at in (1, 2, 3)
    ]
    other = replace(ahead(2), info=replace(ahead(2).info, file="other.sqlite"))
    assert compare(ahead(2), other).base.file == "made.sqlite"


def test_what_cannot_be_meant_is_said() -> None:
    with pytest.raises(RequestError, match="none of auto, range and gpu"):
        compare(ahead(2), ahead(2), cut="best")
    with pytest.raises(RequestError, match="a share from 0 to 1"):
        compare(ahead(2), ahead(2), least=3)
    empty = made_trace([(0, 5, "compute", 0, None)], ranges=[(at, at + 9, "step", 0) for at in range(0, 90, 10)])
    with pytest.raises(RequestError, match=r"made\.sqlite \(1\): --cut gpu needs two iterations that each launch"):
        compare(empty, empty, cut="gpu")


def test_iterations_without_gpu_work_are_compared_by_the_host() -> None:
    trace = made_trace(ranges=[(at, at + 8, "step", 0) for at in range(0, 90, 10)])
    host_only = replace(trace, devices=trace.devices.head(0))
    one = only(compare(host_only, host_only))
    assert one.verdict == "noise" and one.wall.before == 8
