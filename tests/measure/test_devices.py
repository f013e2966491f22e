"""Tests of the steady part against an analysis of that time alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from traceview import analyze
from traceview.measure.activity import Activity, device_activity
from traceview.measure.devices import measure_device
from traceview.measure.gaps import ThreadStates
from traceview.measure.nvtx import project_operations
from traceview.measure.places import Places, locate_operations
from traceview.model.analysis import DeviceFigures, DeviceUse, Iterations
from traceview.model.trace import CLASSES, ROLES, Trace, Window
from traceview.pipeline.findings import steady_use

MS = 1_000_000

times = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(sorted)
operations = st.lists(
    st.tuples(times, st.sampled_from(CLASSES), st.integers(0, 2), st.none() | st.integers(0, 4)),
    min_size=1,
    max_size=12,
)
calls = st.lists(st.tuples(times, st.sampled_from(ROLES), st.integers(0, 1)), min_size=5, max_size=9)
windows = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: Window(pair[0], pair[0] + pair[1]))


def of_device(trace: Trace) -> tuple[ThreadStates, Activity, DeviceUse]:
    work = device_activity(trace, 0)
    assert work is not None
    threads = ThreadStates.from_trace(trace)
    return threads, work, measure_device(trace, threads, work, places_of(trace))


def places_of(trace: Trace) -> Places:
    return locate_operations(trace, project_operations(trace))


def figures(use: DeviceFigures) -> list[object]:
    frame = use.gaps.frame
    return [
        use.window,
        use.kernel_count,
        use.busy_ns,
        use.compute_ns,
        use.communication_ns,
        use.idle_ns,
        use.gaps.count,
        use.gaps.total_ns,
        dict(use.gaps.causes),
        [use.tables[name] for name in ("copies", "communication", "kernels", "kernel_families", "kernel_places")],
        frame.rows(),
    ]


@settings(max_examples=60, deadline=None)
@given(operations, calls, windows)
def test_part_equals_a_narrowed_analysis(work, api, window) -> None:
    trace = made_trace([(*span, *rest) for span, *rest in work], [(*span, *rest) for span, *rest in api])
    threads, whole, _ = of_device(trace)
    window = Window(max(window.start, whole.window.start), min(window.end, whole.window.end))
    narrowed = device_activity(trace.with_window(window), 0)
    if window.length <= 0 or window == whole.window:
        return
    part = whole.clip(window)
    if narrowed is None:
        assert part.rows.tolist() == []
        return
    begun = part.busy.start > window.start  # another operation may begin a member that the border cuts
    assert part.busy_rows[begun].tolist() == narrowed.busy_rows[begun].tolist()
    for name in ("rows", "start", "end", "codes"):
        assert getattr(part, name).tolist() == getattr(narrowed, name).tolist(), name
    for name in ("busy", "compute", "communication"):
        assert np.array_equal(getattr(part, name), getattr(narrowed, name)), name
    _, _, expected = of_device(trace.with_window(window))
    use = measure_device(trace, threads, whole, places_of(trace), window)
    assert figures(use.steady) == figures(expected)
    view = steady_use(trace, use, part).streams
    gaps = {"gap_count": 0, "gap_ns": 0}
    of_window = {row.stream: {"bytes": row.bytes, "purpose": row.purpose} for row in view}
    assert view == tuple(replace(row, **gaps, **of_window[row.stream]) for row in expected.streams)


@pytest.mark.parametrize("name", ["ddp2.sqlite", "cudagraph.sqlite", "serial.sqlite"])
def test_steady_part_of_captures(name: str) -> None:
    analysis = analyzed(sample(name))
    assert isinstance(analysis.iterations, Iterations)
    for device in analysis.devices:
        steady = device.steady
        assert steady.window.start >= analysis.iterations.steady.start
        assert steady.window.end <= analysis.iterations.steady.end
        narrowed = analyze(analysis.trace, window=steady.window, device=device.id).devices[0]
        assert figures(steady) == figures(narrowed)


def test_without_iterations_the_steady_part_is_the_window() -> None:
    analysis = analyze(made_trace([(0, MS, "compute", 0, None), (2 * MS, 3 * MS, "copy", 0, None)]))
    (device,) = analysis.devices
    assert figures(device.steady) == figures(device)


def test_device_that_works_only_before_the_iterations() -> None:
    """A device without work in the iterations has an empty steady part and no findings."""
    trace = made_trace(
        [(0, MS, "compute", 0, None), (2 * MS, 3 * MS, "compute", 0, None)],
        (),
        [(step * MS, (step + 1) * MS, f"step {step}", 0) for step in range(5, 9)],
    )
    analysis = analyze(trace)
    (device,) = analysis.devices
    assert device.steady.window.length == device.steady.busy_ns == device.steady.idle_ns == 0
    assert analysis.findings == () and device.idle_ns == MS
    assert {finding.id for finding in analyze(trace, whole=True).findings} == {"before_loop", "costliest_kernel"}
