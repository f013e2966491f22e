"""Replays: worked examples, and properties of all graphs."""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from traceview.model.trace import Trace
from traceview.model.whatif import WhatIf
from traceview.pipeline import analyze as analyze_capture
from traceview.replay.build import build
from traceview.replay.graph import (
    RUN,
    STREAM,
    DependencyGraph,
    Edges,
    GraphCalls,
    MachineFacts,
    NoWorkError,
    Operations,
    UnfitGraphError,
    path_times,
    replay,
)
from traceview.replay.prediction import predict, whatif
from traceview.replay.select import Selection, select

# Runs under the profiler, so that predictions are exact.
analyze = partial(analyze_capture, costs=None)


def chain(lengths: list[int], gaps: list[int]) -> DependencyGraph:
    """Return a hand-made graph: operations of one stream with gaps between them."""
    count, none, no = len(lengths), np.zeros(0, np.int64), np.zeros(0, np.bool_)
    rows = np.arange(count)
    zero, ones = np.zeros(count, np.int64), np.ones(count, np.int64)
    ops = Operations(
        rows, zero, zero, -ones, zero, zero, zero, zero, -ones, -ones, zero, zero, zero, zero, zero, zero * np.nan
    )
    edges = Edges(none, none, none, none)
    edges = edges.plus(2 * rows, 2 * rows + 1, np.array(lengths, np.int64), RUN)
    edges = edges.plus(2 * rows[:-1] + 1, 2 * rows[1:], np.array(gaps[: count - 1], np.int64), STREAM)
    calls = GraphCalls(none, none, none, none, none, no, no, none, no, no, no)
    facts = MachineFacts(0, 0, 1.0, False, 1.0)
    return DependencyGraph(calls, ops, edges, np.zeros(2 * count, np.int64), 0, 1, facts, [])


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=30))
def test_chain_takes_the_sum(parts: list[tuple[int, int]]) -> None:
    lengths, gaps = [item[0] for item in parts], [item[1] for item in parts]
    graph = chain(lengths, gaps)
    result = replay(graph)
    assert result.per_iteration == sum(lengths) + sum(gaps[:-1])
    path = path_times(graph, result)
    assert sum(path.values()) == result.per_iteration
    assert path["compute"] == sum(lengths)


def test_cycle_is_an_error() -> None:
    graph = chain([1, 1], [1])
    back = graph.edges.plus(np.array([3]), np.array([0]), 1, STREAM)
    with pytest.raises(UnfitGraphError, match="cycle"):
        replay(graph.with_edges(back))


def test_counted_iterations_without_known_launches_are_an_error() -> None:
    """Found by generated databases: repeated rows took the launches of all counted iterations."""
    with pytest.raises(NoWorkError, match="known launch"):
        replay(chain([1, 1], [1])._replace(first=1, last=2))


@cache
def serial() -> tuple[Selection, DependencyGraph]:
    analysis = analyzed(sample("trainer/serial.sqlite"), costs=None)
    chosen = select(analysis)
    assert isinstance(chosen, Selection)
    return chosen, build(analysis.trace, chosen)


def test_unchanged_graph_keeps_all_times() -> None:
    _, graph = serial()
    first, again = replay(graph), replay(graph)
    rows = np.arange(len(graph.operations.row))
    np.testing.assert_array_equal(first.time, again.time)
    np.testing.assert_array_equal(first.time[graph.starts(rows)], graph.operations.start)
    np.testing.assert_array_equal(first.time[graph.ends(rows)], graph.operations.end)
    calls = np.arange(len(graph.calls.row))
    np.testing.assert_array_equal(first.time[2 * calls], graph.calls.start)
    np.testing.assert_array_equal(first.time[2 * calls + 1], graph.calls.end)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_less_work_never_delays(seed: int, share: float) -> None:
    _, graph = serial()
    chance = np.random.default_rng(seed)
    edges = graph.edges
    cut = np.where(chance.random(len(edges.weight)) < share, chance.random(len(edges.weight)), 1.0)
    less = np.where(edges.weight > 0, edges.weight * cut, edges.weight).astype(np.int64)
    kept = chance.random(len(less)) < 1 - share / 10
    # A node that loses all its edges falls back to its release.
    after = replay(graph.with_edges(edges.with_weight(less).keep(kept)))
    assert (after.time <= replay(graph).time).all()


def synchronized() -> Trace:
    """Return a hand-made trace of three iterations of 200 µs: launch at 10, kernel 20 to 120, wait until 125."""
    at = [200_000 * index for index in range(3)]
    return made_trace(
        operations=[(t + 20_000, t + 120_000, "compute", 0, 2 * index) for index, t in enumerate(at)],
        api=[call for t in at for call in ((t + 10_000, t + 15_000, "api", 0), (t + 20_000, t + 125_000, "sync", 0))],
        ranges=[(t, t + 200_000, f"iteration {index}", 0) for index, t in enumerate(at)],
    )


def test_synchronization_in_each_iteration() -> None:
    analysis = analyze(synchronized())
    result = whatif(analysis)
    assert isinstance(result, WhatIf)
    assert result.measured_ns == result.replayed_ns == 200_000
    # The first wait stays: every tenth does. The host launches at 210 and, as the second wait takes 2 µs, at 307. The
    # kernels end at 120, 320 and, after a gap of 1.5 µs, 421.5. So two iterations take 301.5 µs.
    assert predict(analysis, ["sync"]).iteration_ns == 150_750
    twice = next(item for item in result.predictions if item.change.startswith("faster"))
    # Each kernel is 50 µs shorter, and all later work starts 50 µs earlier.
    assert twice.iteration_ns == 150_000


def test_path_adds_up_to_the_prediction() -> None:
    result = whatif(analyzed(sample("trainer/serial.sqlite"), costs=None))
    assert isinstance(result, WhatIf)
    for item in (*result.predictions, *result.together):
        assert item.low_ns <= item.iteration_ns <= item.high_ns
        assert abs(sum(item.path.values()) - item.iteration_ns) < 10
    times = [item.iteration_ns for item in result.together]
    assert times == sorted(times, reverse=True)
    assert result.together[0].change == "pin"
    assert {item.change for item in result.together} >= {"sync", "compile"}
    missing = {"prefetch", "output", "allocate", "fuse", "staged", "overlap", "pad"}
    assert {item.change for item in result.left_out} >= missing
    starts = [span.start_ns for span in result.spans]
    assert starts == sorted(starts)
    covered = sum(span.end_ns - span.start_ns for span in result.spans)
    assert covered == pytest.approx(result.replayed_ns * result.modelled, rel=1e-6)
