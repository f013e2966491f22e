"""Tests of compare() on hand-made traces: overlaps, a host that runs ahead, no iterations."""

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
# The work of an iteration: (class, stream, delay after its launch in µs, length in µs).
WORK = st.lists(
    st.tuples(st.sampled_from(CLASSES), st.integers(0, 2), st.integers(0, 3000), st.integers(0, 1500)), max_size=6
)
RUN = st.lists(WORK, min_size=3, max_size=9)


def trace_of(run: list[list[tuple[str, int, int, int]]], wall: int = MS, factor: int = 1) -> Trace:
    """Each iteration lasts `wall`, launches a kernel of 200 µs, and then its work 1 µs apart."""
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
    (against,) = comparison.against
    return against


@settings(max_examples=8)
@given(RUN, RUN)
def test_parts_add_up_and_swapping_negates(
    old: list[list[tuple[str, int, int, int]]], new: list[list[tuple[str, int, int, int]]]
) -> None:
    before, after = (analyze(trace_of(run), skip=0) for run in (old, new))
    forth, back = (compare(*pair) for pair in ((before, after), (after, before)))
    there, again = only(forth), only(back)
    assert sum(part.difference for part in there.mean_parts) == there.time.difference
    for row, other in zip(there.figures().values(), again.figures().values(), strict=True):
        assert (row.before, row.after, row.difference) == (other.after, other.before, -other.difference)
        assert (row.low is None) == (other.low is None)
        if row.low is not None and row.high is not None:
            assert (other.low, other.high) == (-row.high, -row.low)
    opposite = {"faster": "slower", "slower": "faster", "noise": "noise", "unjudged": "unjudged"}
    # The 1% threshold depends on the base, so one direction may be noise.
    assert again.verdict in (opposite[there.verdict], "noise") or there.verdict == "noise"
    assert {kernel.label: kernel.time.difference for kernel in there.kernels} == {
        kernel.label: -kernel.time.difference for kernel in again.kernels
    }


@settings(max_examples=5)
@given(RUN, RUN, st.integers(2, 1000))
def test_times_scale_with_the_clock(
    old: list[list[tuple[str, int, int, int]]], new: list[list[tuple[str, int, int, int]]], factor: int
) -> None:
    against = only(compare(trace_of(old), trace_of(new), skip=0))
    scaled = only(compare(trace_of(old, factor=factor), trace_of(new, factor=factor), skip=0))
    assert scaled.verdict == against.verdict
    for small, large in zip(against.figures().values(), scaled.figures().values(), strict=True):
        times = 1 if small.unit == "count" else factor
        # Figures are rounded down before the difference is taken; "other" has what the other parts leave over.
        assert abs(large.difference - small.difference * times) <= factor * len(against.mean_parts)


def host_ahead(kernel_ms: float, steps: int = 20) -> Trace:
    """Each step takes 0.1 ms on the host and `kernel_ms` on the GPU; the host waits only in the last step."""
    length = int(kernel_ms * MS)
    api = [(MS // 10 * step, MS // 10 * step + 1000, "api", 0) for step in range(steps)]
    operations = [(MS + length * step, MS + length * (step + 1), "compute", 0, step) for step in range(steps)]
    last = operations[-1][1] + 1000
    ends = [*(MS // 10 * (step + 1) - 1 for step in range(steps - 1)), last]
    ranges = [(MS // 10 * step, end, f"iteration {step}", 0) for step, end in enumerate(ends)]
    return made_trace(operations, api, ranges)


def test_host_runs_ahead() -> None:
    """The median range is 0.1 ms in both captures; the GPU takes 2 ms per iteration, then 3 ms."""
    comparison = compare(host_ahead(2), host_ahead(3))
    against = only(comparison)
    assert (against.time.before, against.time.after, against.verdict) == (2 * MS, 3 * MS, "slower")


def test_captures_without_iterations() -> None:
    bare = made_trace(
        [(0, 10 * MS, "compute", 0, 0), (12 * MS, 13 * MS, "copy", 0, 1)], [(0, 1, "api", 0), (2, 3, "api", 0)]
    )
    comparison = compare(bare, host_ahead(2))
    against = only(comparison)
    assert "has no iterations" in comparison.whole_because
    assert (against.time.before, against.time.after) == (13 * MS, 40 * MS)
    assert against.verdict == "unjudged" and against.confidence is None and against.time.low is None
    assert sum(part.difference for part in against.mean_parts) == against.time.difference


def test_change_below_min_change_is_noise() -> None:
    same, little = host_ahead(2), host_ahead(2.01)
    assert only(compare(same, little)).verdict == "noise"
    assert "below 1%" in only(compare(same, little)).why
    assert only(compare(same, little, min_change=0.001)).verdict == "slower"


def test_few_iterations_are_unjudged() -> None:
    against = only(compare(host_ahead(2, steps=4), host_ahead(3, steps=4)))
    assert against.verdict == "unjudged" and "too few to tell a change from noise" in against.why


def test_equal_file_names_are_numbered() -> None:
    comparison = compare(host_ahead(2), host_ahead(2), host_ahead(3))
    assert [comparison.base.file, *(row.capture.file for row in comparison.against)] == [
        f"made.sqlite ({at})" for at in (1, 2, 3)
    ]
    other = replace(host_ahead(2), info=replace(host_ahead(2).info, file="other.sqlite"))
    assert compare(host_ahead(2), other).base.file == "made.sqlite"


def test_invalid_options() -> None:
    with pytest.raises(RequestError, match="use a share from 0 to 1"):
        compare(host_ahead(2), host_ahead(2), min_change=3)


def test_iterations_without_gpu_work() -> None:
    trace = made_trace(ranges=[(at, at + 8, "step", 0) for at in range(0, 90, 10)])
    host_only = replace(trace, devices=trace.devices.head(0))
    against = only(compare(host_only, host_only))
    assert against.verdict == "noise" and against.time.before == 10
