"""Rules on what the capture lacks, and the whole set on any capture at all."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, reject, settings
from hypothesis import strategies as st

from tests.made_trace import made_trace
from tests.rules.made import MS, findings
from traceview.errors import RequestError
from traceview.model.trace import CLASSES, ROLES, Trace, Window
from traceview.pipeline import analyze
from traceview.pricing.format import duration, folded, listed, many, share, size
from traceview.rules import RULES
from traceview.rules.cut_capture import cut_capture
from traceview.rules.missing_data import missing_data

WORK = [(0, MS, "compute", 0, 0), (2 * MS, 3 * MS, "compute", 0, None)]
CALLS = [(0, 10, "api", 0)]


def ids(trace: Trace) -> list[str]:
    return [one.id for one in findings(trace, missing_data, cut_capture)]


def test_a_capture_without_ranges_or_calls_says_both() -> None:
    assert ids(made_trace(WORK[1:])) == ["no_cuda_calls", "no_ranges"]


def test_nvtx_events_without_a_range_were_lost() -> None:
    trace = made_trace(WORK, CALLS)
    trace = replace(trace, info=replace(trace.info, tables={"NVTX_EVENTS": 3}))
    (found,) = findings(trace, missing_data)
    assert found.id == "lost_ranges"
    assert "3 NVTX events but no range" in found.title
    assert "nvtx<0.2.12" in found.code


def test_ranges_that_do_not_repeat_are_no_iterations() -> None:
    assert ids(made_trace(WORK, CALLS, [(0, 3 * MS, "main", 0)])) == ["no_iterations"]


def test_an_annotated_capture_lacks_nothing() -> None:
    assert ids(made_trace(WORK, CALLS, [(i * MS, i * MS + MS, f"step {i}", 0) for i in range(3)])) == []


def test_lost_launches_and_open_ranges_say_that_the_capture_was_cut() -> None:
    trace = made_trace(WORK[:1] * 2, CALLS, [(0, 3 * MS, "main", 0)])
    lost = trace.operations.with_columns(launch=None).cast({"launch": trace.operations.schema["launch"]})
    trace = replace(trace, operations=lost, ranges=trace.ranges.with_columns(open=True))
    (found,) = findings(trace, cut_capture)
    assert found.title == (
        "The capture was cut: 2 GPU operations (100%) without a launch and 1 NVTX range without an end"
    )
    assert found.severity == "high"


times = st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted)
operations = st.lists(
    st.tuples(times, st.sampled_from(CLASSES), st.integers(0, 2), st.none() | st.integers(0, 4)),
    min_size=1,
    max_size=12,
)
calls = st.lists(st.tuples(times, st.sampled_from(ROLES), st.integers(0, 1)), min_size=5, max_size=9)
ranges = st.lists(
    st.tuples(times, st.sampled_from(["step 1", "step 2", "load"]), st.integers(0, 1)), max_size=6
)
windows = st.none() | st.tuples(st.integers(0, 30), st.integers(1, 30)).map(
    lambda w: Window(w[0], w[0] + w[1])
)


@settings(max_examples=80, deadline=None)
@given(operations, calls, ranges, windows, st.sampled_from([1, 100_000, 2**40]))
def test_no_capture_pays_more_than_it_lost(work, api, spans, window, unit) -> None:
    trace = made_trace(
        [(start * unit, end * unit, *rest) for (start, end), *rest in work],
        [(start * unit, end * unit, *rest) for (start, end), *rest in api],
        [(start * unit, end * unit, *rest) for (start, end), *rest in spans],
    )
    first, last = trace.operations["start"][0], trace.operations["end"].max()
    if window is not None and window.start * unit < last and window.end * unit > first:
        trace = trace.narrowed(Window(window.start * unit, window.end * unit))
    try:
        analysis = analyze(trace)
    except RequestError:  # the window lies in a gap, which leaves nothing to measure
        reject()
    for device in analysis.devices:
        paid = sum(one.cost_ns for one in analysis.findings if one.device == device.id)
        assert 0 <= paid <= device.idle_ns + device.busy_ns - device.compute_ns


def test_every_rule_says_symptom_cause_and_remedy() -> None:
    for rule in RULES:
        text = __import__(rule.__module__, fromlist=["__doc__"]).__doc__
        assert all(word in text for word in ("Symptom:", "Cause:", "Remedy:")), rule.__module__


def test_figures_are_written_one_way() -> None:
    assert [duration(ns) for ns in (999, 12_340, 331_449_587, 6_861_000_000)] == [
        "999 ns",
        "12.3 µs",
        "331 ms",
        "6.86 s",
    ]
    assert [size(count) for count in (12, 1356, 126_418_748, 2_684_354_560)] == [
        "12 bytes",
        "1.36 kB",
        "126 MB",
        "2.68 GB",
    ]
    assert (share(1, 3), share(1, 0), many(1312, "call"), many(1, "copy", "copies")) == (
        "33.3%",
        "0%",
        "1,312 calls",
        "1 copy",
    )
    assert (listed(["a"]), listed(["a", "b", "c"]), listed([])) == ("a", "a, b and c", "")
    assert [folded(name) for name in ("iteration -3", "h2d", "layer7.attn")] == [
        "iteration #",
        "h2d",
        "layer#.attn",
    ]
