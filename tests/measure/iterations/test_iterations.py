"""Tests of iterations and their breakdown, nanosecond by nanosecond."""

from __future__ import annotations

import re
from dataclasses import replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.captures import shared
from tests.made_trace import made_trace
from tests.measure.gaps.test_causes import busy_class, cause_of, next_after
from tests.measure.iterations.whole_trace import measure_iterations
from tests.rules.helpers import with_calls
from traceview.errors import RequestError
from traceview.measure.activity import device_activity
from traceview.measure.iterations import spread
from traceview.model.analysis import CAUSES, Iteration, Iterations, NotMeasured
from traceview.model.names import fold_numbers
from traceview.model.trace import Trace, Window
from traceview.pipeline import open_trace

SPAN = st.tuples(st.integers(0, 50), st.integers(0, 15)).map(lambda pair: (pair[0], pair[0] + pair[1]))
NAMES = st.sampled_from(["step 1", "step 22", "step -3", "forward", "load"])


@st.composite
def runs(draw: st.DrawFn) -> Trace:
    api = draw(
        st.lists(
            st.tuples(SPAN, st.sampled_from(["sync", "blocking_copy", "memory", "api"]), st.integers(0, 1)),
            max_size=8,
        )
    )
    launch = st.none() if not api else st.one_of(st.none(), st.integers(0, len(api) - 1))
    classes = st.sampled_from(["compute", "communication", "copy", "memset"])
    work = draw(st.lists(st.tuples(SPAN, classes, st.integers(0, 2), launch), min_size=1, max_size=8))
    ranges = draw(st.lists(st.tuples(SPAN, NAMES, st.integers(0, 1)), min_size=1, max_size=10))
    return made_trace(
        [(*span, name, stream, call) for span, name, stream, call in work],
        [(*span, role, thread) for span, role, thread in api],
        [(*span, name, thread) for span, name, thread in ranges],
        overhead=draw(st.lists(SPAN, max_size=2)),
        window=draw(st.one_of(st.none(), st.just(Window(10, 50)))),
    )


def running(trace: Trace, moment: int) -> set[str]:
    rows = trace.operations.iter_rows(named=True)
    return {row["class"] for row in rows if row["start"] <= moment < row["end"]}


def expected(trace: Trace, found: Iteration) -> dict[str, object]:
    moments = range(found.start_ns, found.end_ns)
    busy = [running(trace, moment) for moment in moments]
    idle = dict.fromkeys(CAUSES, 0)
    for moment in moments:
        if busy_class(trace, moment) is None:
            idle[cause_of(trace, moment, next_after(trace, moment))] += 1
    calls = trace.api.filter(trace.api["role"] == "sync").iter_rows(named=True)
    blocked = (min(row["end"], found.end_ns) - max(row["start"], found.start_ns) for row in calls)
    kernels = trace.operations.filter(trace.operations["source"] == "kernel")["start"].to_list()
    return {
        "wall_ns": len(moments),
        "compute_ns": sum("compute" in classes for classes in busy),
        "communication_ns": sum("communication" in classes for classes in busy),
        "exposed_h2d_ns": sum("copy" in classes and "compute" not in classes for classes in busy),
        "exposed_d2h_ns": 0,
        "exposed_communication_ns": sum("communication" in classes and "compute" not in classes for classes in busy),
        "idle_ns": sum(idle.values()),
        "idle": idle,
        "blocked_ns": sum(max(length, 0) for length in blocked),
        "kernel_count": sum(found.start_ns <= start < found.end_ns for start in kernels),
    }


@settings(max_examples=80, deadline=None)
@given(runs(), st.sampled_from([None, "step", "forward|load"]))
def test_iterations_by_the_nanosecond(trace: Trace, pattern: str | None) -> None:
    assume(device_activity(trace, 0) is not None)  # a device that does nothing in the window is in no report
    try:
        found = measure_iterations(trace, pattern)
    except RequestError:
        assert pattern is not None
        assert not any(re.search(pattern, name) for name in trace.ranges["name"].to_list())
        return
    if isinstance(found, NotMeasured):
        return
    for one in found.per_iteration:
        wanted = expected(trace, one)
        assert {name: getattr(one, name) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("iteration 7", "iteration #"),
        ("iteration -3", "iteration #"),
        ("-12 of -300", "# of #"),
        ("epoch2-step15", "epoch#-step#"),
        ("layer 1-2", "layer #-#"),
        ("[-1,-2]", "[#,#]"),
        ("v1.25", "v#.#"),
        ("forward", "forward"),
        ("h2d of batch #7", "h2d of batch #"),
        ("part 3of10", "part #of#"),
    ],
)
def test_numbers_fold_with_their_sign(name: str, shape: str) -> None:
    assert fold_numbers(pl.Series([name])).to_list() == [shape]


def shape(name: str) -> str:
    return re.sub(r"(?<=\s)-?\d+", "#", name)


def outermost(trace: Trace, rows: list[int]) -> list[int]:
    spans = [(trace.ranges["start"][row], trace.ranges["end"][row]) for row in rows]
    threads = [trace.ranges["thread"][row] for row in rows]

    def inside(one: int, other: int) -> bool:
        (start, end), (first, last) = spans[one], spans[other]
        if threads[one] != threads[other] or one == other or not first <= start < last or end > last:
            return False
        return spans[one] != spans[other] or other < one

    return [row for one, row in enumerate(rows) if not any(inside(one, other) for other in range(len(rows)))]


def often(trace: Trace, rows: list[int]) -> dict[tuple[int, str], list[int]]:
    groups: dict[tuple[int, str], list[int]] = {}
    for row in rows:
        groups.setdefault((trace.ranges["thread"][row], shape(trace.ranges["name"][row])), []).append(row)
    return {key: members for key, members in groups.items() if len(members) >= 3}


@settings(max_examples=80, deadline=None)
@given(runs())
def test_longest_outermost_name_is_the_iteration(trace: Trace) -> None:
    trace = without_launches(trace)
    candidates = sorted(row for rows in often(trace, list(range(len(trace.ranges)))).values() for row in rows)
    groups = often(trace, outermost(trace, candidates))
    found = measure_iterations(trace)
    if not groups:
        assert isinstance(found, NotMeasured) or found.source == "period"
        return
    length = (trace.ranges["end"] - trace.ranges["start"]).to_list()
    thread, name = min(groups, key=lambda key: (-sum(length[row] for row in groups[key]), key))
    assert isinstance(found, Iterations)
    assert (found.thread, found.range) == (thread, name)
    starts = [trace.ranges["start"][row] for row in groups[thread, name]]
    assert [one.start_ns for one in found.per_iteration] == starts


def without_launches(trace: Trace) -> Trace:
    operations = trace.operations.with_columns(launch=pl.lit(None, pl.Int32))
    return replace(trace, operations=operations, window=None)


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=30))
def test_percentiles_interpolate_between_ranks(values: list[int]) -> None:
    found = spread(np.array(values))
    ordered = sorted(values)
    for percent, value in ((50, found.median), (5, found.p5), (95, found.p95)):
        rank = Fraction(percent * (len(values) - 1), 100)
        low = ordered[int(rank)]
        high = ordered[min(int(rank) + 1, len(values) - 1)]
        assert value == int(low + (high - low) * (rank - int(rank)))


def steps(*lengths: int) -> Trace:
    ends = np.cumsum(np.array(lengths) + 5) - 5
    spans = [(int(end) - length, int(end)) for end, length in zip(ends, lengths, strict=True)]
    return made_trace(
        [(start + 1, end, "compute", 0, index) for index, (start, end) in enumerate(spans)],
        [(start, start + 1, "api", 0) for start, _ in spans],
        [(*span, f"step {index}", 0) for index, span in enumerate(spans)],
    )


@pytest.mark.parametrize(
    ("lengths", "skip", "skipped", "why"),
    [
        ((100, 90, 10, 10, 10, 10), None, 2, "the first 2 took more than 1.5 times the median"),
        ((10, 90, 10, 10), None, 0, "none"),
        ((15, 10, 10, 10), None, 0, "none"),
        ((16, 10, 10, 10), None, 1, "the first took more than 1.5 times the median"),
        ((13, 10, 10, 10, 10), None, 1, "the first took longer than all later ones, which are alike"),
        ((30, 13, 10, 10, 10, 10), None, 2, "the first 2 took longer than all later ones, which are alike"),
        ((13, 8, 12, 9, 11), None, 0, "none"),
        ((13, 10, 10, 10, 14), None, 0, "none"),
        ((10, 10, 10, 10), 2, 2, "--skip 2"),
        ((90, 10, 10, 10), 0, 0, "--skip 0"),
    ],
)
def test_warm_up_is_skipped(lengths: tuple[int, ...], skip: int | None, skipped: int, why: str) -> None:
    found = measure_iterations(steps(*lengths), skip=skip)
    assert isinstance(found, Iterations)
    assert (found.count, found.skipped, found.skipped_why) == (len(lengths), skipped, why)
    assert [one.skipped for one in found.per_iteration] == [index < skipped for index in range(len(lengths))]
    rest = sorted(lengths[skipped:])
    assert found.wall_ns.median == (rest[(len(rest) - 1) // 2] + rest[len(rest) // 2]) // 2


@pytest.mark.parametrize(
    ("at", "loads", "skipped"),
    [(6, "cuModuleLoadData", 7), (6, "cuModuleGetFunction", 0), (15, "cuModuleLoadData", 0)],
)
def test_iterations_up_to_one_that_compiles_are_warm_up(at: int, loads: str, skipped: int) -> None:
    """A kernel that is compiled when it is used first, in the middle of a loop (`cupy_glcm` of round 14)."""
    calls, work, ranges, names, now = [], [], [], [], 0
    for step in range(20):
        begin = now
        if step == at:
            now += 50_000
            calls.append((now, now + 1000, "api", 0))
            names.append(loads)
        calls.append((now + 1000, now + 1100, "api", 0))
        names.append("cuLaunchKernel")
        work.append((now + 1100, now + 1900, "compute", 0, len(calls) - 1))
        now += 2000
        ranges.append((begin, now, f"iteration {step}", 0))
    found = measure_iterations(with_calls(made_trace(work, calls, ranges), names))
    assert isinstance(found, Iterations)
    assert (found.count, found.skipped) == (20, skipped)
    assert (found.skipped_why == "the last compiles or loads kernels") == bool(skipped)


@pytest.mark.parametrize(("late", "skipped"), [((0,), 2), ((0, 9), 1), ((6,), 0)])
def test_iterations_that_the_gpu_begins_after_a_set_up_are_warm_up(late: tuple[int, ...], skipped: int) -> None:
    """The host sets something up for 0.4 ms at the end of a step, so that the GPU takes long for the next one.

    `nccl_poisson` of round 16: the first AllReduce connects the ranks.
    """
    calls, work, ranges, now, done = [], [], [], 0, 0
    for step in range(20):
        length = 400_000 if step in late else 1000
        calls.append((now, now + 100, "api", 0))
        ranges.append((now, now + length, f"step {step}", 0))
        done = max(done, now) + 10_000
        work.append((done - 10_000, done, "compute", 0, step))
        now += length
    found = measure_iterations(made_trace(work, calls, ranges))
    assert isinstance(found, Iterations)
    assert found.skipped == skipped


@pytest.mark.parametrize("skip", [4, 400, -1])
def test_skip_must_leave_an_iteration(skip: int) -> None:
    with pytest.raises(RequestError, match=rf"made\.sqlite.*--skip {skip}"):
        measure_iterations(steps(10, 10, 10, 10), skip=skip)


def test_unmatched_pattern_lists_names() -> None:
    with pytest.raises(RequestError, match=r"made\.sqlite.*'epoch'.*'step 0'"):
        measure_iterations(steps(10, 10, 10), pattern="epoch")


def test_invalid_pattern_is_refused() -> None:
    with pytest.raises(RequestError, match=r"made\.sqlite.*'step \('.*regular expression"):
        measure_iterations(steps(10, 10, 10), pattern="step (")


def test_two_numbered_steps_are_iterations() -> None:
    found = measure_iterations(steps(10, 10))
    assert isinstance(found, Iterations)
    assert (found.count, found.range) == (2, "step #")


def test_without_repeats_there_are_no_iterations() -> None:
    found = measure_iterations(steps(10))
    assert isinstance(found, NotMeasured)
    assert "--iteration" in found.reason


@pytest.mark.parametrize(("name", "count", "process"), [("h200_ddp2.sqlite", 13, None), ("h200_dual.sqlite", 20, 1531)])
def test_iterations_of_real_runs(name: str, count: int, process: int | None) -> None:
    trace = open_trace(shared(name))
    found = measure_iterations(trace)
    assert isinstance(found, Iterations)
    assert (found.range, found.count) == ("iteration #", count)
    assert process in (None, found.process_id)
    assert trace.threads["tid"][found.thread] == found.process_id  # the main thread
    assert found.per_iteration[0].name == ("iteration -3" if "ddp2" in name else "iteration 0")


def test_one_device_has_the_iterations_of_its_process() -> None:
    trace = open_trace(shared("h200_ddp2.sqlite"))
    for device, processes in enumerate(trace.devices["processes"].to_list()):
        found = measure_iterations(trace, device=device)
        assert isinstance(found, Iterations)
        assert [found.process_id] == processes
        assert found.count == 13
        assert min(one.compute_ns for one in found.per_iteration) > 0
