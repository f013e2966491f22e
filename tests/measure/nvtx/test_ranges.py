"""Tests of NVTX projection, operation by operation and nanosecond by nanosecond."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import ALL, shared
from tests.made_trace import made_trace
from traceview.intervals import Times
from traceview.measure import nvtx_ranges
from traceview.measure.base import CaptureInput
from traceview.measure.nvtx import Projection, project_operations
from traceview.measure.nvtx_ranges import RANGES
from traceview.measure.sync import measure_host
from traceview.model.analysis import NotMeasured
from traceview.model.rows import RangeUse
from traceview.model.trace import Trace, Window
from traceview.pipeline import analyze, open_trace

SPAN = st.tuples(st.integers(0, 40), st.integers(0, 25)).map(lambda pair: (pair[0], pair[0] + pair[1]))

NO_ITERATIONS = NotMeasured("iterations are not measured")


@st.composite
def annotated(draw: st.DrawFn) -> Trace:
    ranges = draw(st.lists(st.tuples(SPAN, st.sampled_from("abc"), st.integers(0, 2)), max_size=8))
    api = draw(st.lists(st.tuples(SPAN, st.integers(0, 3)), max_size=6))
    launch = st.none() if not api else st.one_of(st.none(), st.integers(0, len(api) - 1))
    classes = st.sampled_from(["compute", "copy"])
    work = draw(st.lists(st.tuples(SPAN, classes, launch), min_size=1, max_size=8))
    return made_trace(
        [(*span, name, 0, call) for span, name, call in work],
        [(*span, "api", thread) for span, thread in api],
        [(*span, name, thread) for span, name, thread in ranges],
        window=draw(st.one_of(st.none(), st.just(Window(10, 40)))),
    )


def annotating_thread(trace: Trace, process: int) -> int:
    total: dict[int, int] = {}
    for row in trace.ranges.iter_rows(named=True):
        if row["process"] == process:
            total[row["thread"]] = total.get(row["thread"], 0) + row["end"] - row["start"]
    return min(total, key=lambda thread: (-total[thread], thread), default=-1)


def open_at(trace: Trace, thread: int, moment: int) -> set[int]:
    return {
        index
        for index, row in enumerate(trace.ranges.iter_rows(named=True))
        if row["thread"] == thread and row["start"] <= moment < row["end"]
    }


def belongs(trace: Trace, operation: dict[str, int | None]) -> tuple[set[int], bool]:
    if operation["launch"] is None:
        return set(), False
    call = trace.api.row(operation["launch"], named=True)
    own = open_at(trace, call["thread"], call["start"])
    if own:
        return own, False
    other = open_at(trace, annotating_thread(trace, call["process"]), call["start"])
    return other, bool(other)


def per_operation(projection: Projection, run_values: np.ndarray) -> np.ndarray:
    """Return the value of each operation's run."""
    return np.repeat(run_values, np.diff(projection.begin, append=projection.operations))


def pairs(projection: Projection) -> tuple[Times, Times]:
    return projection.stretches.open_ranges(per_operation(projection, projection.stretch))


def innermost_of(projection: Projection) -> Times:
    place = projection.stretches.place[per_operation(projection, projection.stretch)]
    return np.append(projection.stretches.nesting.rows, -1)[place]


def seen(trace: Trace, row: dict[str, int]) -> tuple[int, int] | None:
    start, end, window = row["start"], row["end"], trace.window
    if window is None:
        return start, end
    if start < window.end and (end > window.start or start == end >= window.start):
        return max(start, window.start), min(end, window.end)
    return None


def extent(spans: Iterable[tuple[int, int]]) -> int:
    found = list(spans)
    return max(end for _, end in found) - min(start for start, _ in found) if found else 0


def expected_use(trace: Trace, *names: str, title: str = "") -> RangeUse:
    ranges = list(enumerate(trace.ranges.iter_rows(named=True)))
    mine = {index for index, row in ranges if row["name"] in names}
    host = [span for index, row in ranges if index in mine and (span := seen(trace, row))]
    members: list[tuple[tuple[int, int], bool, bool]] = []
    by_range: dict[int, list[tuple[int, int]]] = {}
    for operation in trace.operations.iter_rows(named=True):
        span = seen(trace, operation)
        owners, via = belongs(trace, operation)
        if span is None or not owners & mine:
            continue
        members.append((span, operation["source"] == "kernel", via))
        for owner in owners & mine:
            by_range.setdefault(owner, []).append(span)
    return RangeUse(
        name=title or names[0],
        domain="",
        count=len(host),
        host_ns=sum(end - start for start, end in host),
        gpu_busy_ns=len({moment for (start, end), _, _ in members for moment in range(start, end)}),
        gpu_span_ns=extent(span for span, _, _ in members),
        gpu_span_each_ns=sum(extent(spans) for spans in by_range.values()),
        kernel_count=sum(kernel for _, kernel, _ in members),
        operation_count=len(members),
        via_process_count=sum(via for _, _, via in members),
    )


def measure_ranges(trace: Trace) -> tuple[RangeUse, ...] | NotMeasured:
    table = RANGES.fill_table(
        CaptureInput(trace, measure_host(trace, ()), project_operations(trace), (), NO_ITERATIONS)
    )
    return NotMeasured(str(table.not_measured)) if table.not_measured else table.rows


@settings(max_examples=60, deadline=None)
@given(annotated())
def test_range_names_by_the_nanosecond(trace: Trace) -> None:
    names = sorted(set(trace.ranges["name"].to_list()))
    wanted = [use for name in names if (use := expected_use(trace, name)).count]
    found = measure_ranges(trace)
    if not wanted:
        assert isinstance(found, NotMeasured)
        return
    assert isinstance(found, tuple)
    assert list(found) == sorted(wanted, key=lambda use: (-use.gpu_busy_ns, -use.host_ns, use.name))


@settings(max_examples=60, deadline=None)
@given(annotated())
def test_names_beyond_the_limit_are_one_row(trace: Trace) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvtx_ranges, "MAX_NAMES", 1)
        found = measure_ranges(trace)
    every = measure_ranges(trace)
    if isinstance(every, NotMeasured) or len(every) < 2:
        assert found == every
        return
    others = [use.name for use in every[1:]]
    assert found == (every[0], expected_use(trace, *others, title=f"({len(others)} other ranges)"))


@settings(max_examples=60, deadline=None)
@given(annotated())
def test_operations_belong_to_all_open_ranges(trace: Trace) -> None:
    projection = project_operations(trace)
    found: dict[int, set[int]] = {}
    for operation, owner in zip(*(column.tolist() for column in pairs(projection)), strict=True):
        found.setdefault(operation, set()).add(owner)
    innermost, via_process = innermost_of(projection).tolist(), per_operation(projection, projection.via_process)
    for index, operation in enumerate(trace.operations.iter_rows(named=True)):
        owners, via = belongs(trace, operation)
        assert found.get(index, set()) == owners
        assert bool(via_process[index]) == via
        inner = [(-trace.ranges["start"][row], trace.ranges["end"][row]) for row in owners]
        if owners:
            row = innermost[index]
            assert (-trace.ranges["start"][row], trace.ranges["end"][row]) == min(inner)
        else:
            assert innermost[index] == -1


def test_backward_has_the_work_of_the_autograd_thread() -> None:
    uses = measure_ranges(open_trace(shared("h200_dual.sqlite")))
    assert isinstance(uses, tuple)
    backward = next(use for use in uses if use.name == "backward")
    assert backward.kernel_count == 3600
    assert backward.count == 20
    assert backward.via_process_count == backward.operation_count - 20
    assert backward.name == uses[0].name


def test_backward_kernel_time() -> None:
    trace = open_trace(shared("h200_dual.sqlite"))
    operation, owner = pairs(project_operations(trace))
    chosen = (trace.ranges["name"] == "backward").to_numpy()[owner]
    length = (trace.operations["end"] - trace.operations["start"]).to_numpy()[operation[chosen]]
    kernels = (trace.operations["source"] == "kernel").to_numpy()[operation[chosen]]
    assert round(int(length[kernels].sum()) / 1e6, 1) == 80.4


@pytest.mark.parametrize("name", ALL)
def test_membership_on_real_captures(name: str) -> None:
    trace = open_trace(shared(name))
    uses = measure_ranges(trace)
    if trace.ranges.is_empty():
        assert isinstance(uses, NotMeasured)
        return
    assert isinstance(uses, tuple)
    assert sum(use.count for use in uses) == len(trace.ranges)
    assert sum(use.host_ns for use in uses) == int((trace.ranges["end"] - trace.ranges["start"]).sum())
    projection = project_operations(trace)
    innermost, via_process = innermost_of(projection), per_operation(projection, projection.via_process)
    for row in np.linspace(0, len(trace.operations) - 1, 40, dtype=int) if len(trace.operations) else ():
        owners, via = belongs(trace, trace.operations.row(int(row), named=True))
        assert (int(innermost[row]) in owners) or (not owners and innermost[row] == -1)
        assert bool(via_process[row]) == via


def test_large_times_do_not_overflow() -> None:
    far = 1 << 61
    trace = made_trace(
        [(far + 20, far + 50, "compute", 0, 0), (10, 30, "compute", 0, 1), (20, 40, "compute", 0, 1)],
        [(far + 1, far + 2, "api", 4), (5, 6, "api", 0)],
        [(far, far + 10, "late", 4), (0, 9, "early", 0), (1, 8, "early", 0)],
    )
    uses = measure_ranges(trace)
    assert isinstance(uses, tuple)
    assert [(use.name, use.gpu_busy_ns, use.gpu_span_each_ns) for use in uses] == [
        ("early", 30, 60),
        ("late", 30, 30),
    ]


def test_missing_ranges_have_a_remedy() -> None:
    found = measure_ranges(made_trace([(0, 10, "compute", 0, None)]))
    assert isinstance(found, NotMeasured)
    assert "nvtxRangePush" in found.reason


def test_phases_fold_counters_and_keep_parts() -> None:
    ranges = [(100 * i, 100 * i + 90, f"iteration {i}", 0) for i in range(5)]
    ranges += [(100 * i + 10 * j, 100 * i + 10 * j + 8, f"layer {j}", 0) for i in range(5) for j in range(3)]
    api = [(100 * i + 10 * j + 1, 100 * i + 10 * j + 2, "api", 0) for i in range(5) for j in range(3)]
    operations = [(start + 2, start + 6, "compute", 0, at) for at, (start, *_) in enumerate(api)]
    tables = analyze(made_trace(operations, api, ranges)).tables
    phases = {row.name: row for row in tables["nvtx_phases"].rows}
    each = {row.name: row for row in tables["nvtx"].rows}
    assert set(phases) == {"iteration #", "layer 0", "layer 1", "layer 2"} and len(each) == 8
    steps = [row for name, row in each.items() if name.startswith("iteration")]
    folded = phases["iteration #"]
    for figure in ("count", "host_ns", "gpu_busy_ns", "kernel_count", "operation_count", "gpu_span_each_ns"):
        assert getattr(folded, figure) == sum(getattr(row, figure) for row in steps)
    assert folded.gpu_span_ns == operations[-1][1] - operations[0][0] and phases["layer 1"] == each["layer 1"]
    assert analyze(made_trace(operations, api)).tables["nvtx_phases"].rows == ()
