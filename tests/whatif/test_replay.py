"""Replays: hand-worked answers, and what holds for every graph."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import sample
from tests.made_trace import made_trace
from traceview.model.trace import Trace
from traceview.model.whatif import WhatIf
from traceview.pipeline import analyze
from traceview.whatif import predict, whatif
from traceview.whatif.build import build
from traceview.whatif.graph import RUN, STREAM, Calls, Edges, Facts, Graph, Operations
from traceview.whatif.replay import CircleError, made_of, replay
from traceview.whatif.select import Selection, select


def chain(lengths: list[int], gaps: list[int]) -> Graph:
    """One stream's operations, each a gap after the one before; made by hand."""
    count, none, no = len(lengths), np.zeros(0, np.int64), np.zeros(0, np.bool_)
    rows = np.arange(count)
    zero, ones = np.zeros(count, np.int64), np.ones(count, np.int64)
    of = Operations(rows, zero, zero, -ones, zero, zero, zero, zero, -ones, -ones, zero, zero, zero)
    edges = Edges(none, none, none, none)
    edges = edges.plus(2 * rows, 2 * rows + 1, np.array(lengths, np.int64), RUN)
    edges = edges.plus(2 * rows[:-1] + 1, 2 * rows[1:], np.array(gaps[: count - 1], np.int64), STREAM)
    calls = Calls(none, none, none, none, none, no, no, none, no)
    return Graph(calls, of, edges, np.zeros(2 * count, np.int64), 0, 1, Facts(0, 0, 1.0, False, 1.0))


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1, max_size=30))
def test_a_chain_takes_the_sum(parts: list[tuple[int, int]]) -> None:
    lengths, gaps = [one[0] for one in parts], [one[1] for one in parts]
    graph = chain(lengths, gaps)
    found = replay(graph)
    assert found.per_iteration == sum(lengths) + sum(gaps[:-1])
    path = made_of(graph, found)
    assert sum(path.values()) == found.per_iteration
    assert path["compute"] == sum(lengths)


def test_edges_in_a_circle_are_refused() -> None:
    graph = chain([1, 1], [1])
    back = graph.edges.plus(np.array([3]), np.array([0]), 1, STREAM)
    with pytest.raises(CircleError, match="circle"):
        replay(graph.with_edges(back))


@cache
def serial() -> tuple[Selection, Graph]:
    analysis = analyze(sample("trainer/serial.sqlite"))
    chosen = select(analysis)
    assert isinstance(chosen, Selection)
    return chosen, build(analysis.trace, chosen)


def test_an_unchanged_graph_starts_and_ends_everything_when_it_did() -> None:
    _, graph = serial()
    first, again = replay(graph), replay(graph)
    rows = np.arange(len(graph.operations.row))
    np.testing.assert_array_equal(first.time, again.time)
    np.testing.assert_array_equal(first.time[graph.starts(rows)], graph.operations.start)
    np.testing.assert_array_equal(first.time[graph.ends(rows)], graph.operations.end)
    calls = np.arange(len(graph.calls.row))
    np.testing.assert_array_equal(first.time[graph.begins(calls)], graph.calls.start)
    np.testing.assert_array_equal(first.time[graph.returns(calls)], graph.calls.end)


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 1))
def test_less_work_is_never_later(seed: int, share: float) -> None:
    _, graph = serial()
    chance = np.random.default_rng(seed)
    edges = graph.edges
    cut = np.where(chance.random(len(edges.weight)) < share, chance.random(len(edges.weight)), 1.0)
    less = np.where(edges.weight > 0, edges.weight * cut, edges.weight).astype(np.int64)
    kept = chance.random(len(less)) < 1 - share / 10
    # A moment is also no sooner than its release, so what loses all its edges is released at the start.
    after = replay(graph.with_edges(edges.weighing(less).keep(kept)))
    assert (after.time <= replay(graph).time).all()


def synchronized() -> Trace:
    """Three iterations 200 µs apart: launch at 10, kernel 20 to 120, the host waits until 125; made by hand."""
    at = [200_000 * index for index in range(3)]
    return made_trace(
        operations=[(t + 20_000, t + 120_000, "compute", 0, 2 * index) for index, t in enumerate(at)],
        api=[call for t in at for call in ((t + 10_000, t + 15_000, "api", 0), (t + 20_000, t + 125_000, "sync", 0))],
        ranges=[(t, t + 200_000, f"iteration {index}", 0) for index, t in enumerate(at)],
    )


def test_a_synchronization_in_every_iteration() -> None:
    analysis = analyze(synchronized())
    found = whatif(analysis)
    assert isinstance(found, WhatIf)
    assert found.measured_ns == found.replayed_ns == 500_000 // 3
    # Without the waits (2 µs each) the host launches at 10, 107 and 204. The first kernel ends at 120, the others
    # follow with gaps of 1.5 µs: 121.5 to 221.5 and 223 to 323. From 20 to 323 there are 303 µs, for three iterations.
    assert predict(analysis, ["sync"]).iteration_ns == 101_000
    twice = next(one for one in found.predictions if one.change.startswith("faster"))
    # Each kernel is 50 µs shorter, and all that waits for it that much sooner.
    assert twice.iteration_ns == (500_000 - 3 * 50_000) // 3


def test_predictions_say_what_they_are_made_of() -> None:
    found = whatif(analyze(sample("trainer/serial.sqlite")))
    assert isinstance(found, WhatIf)
    for one in (*found.predictions, *found.together):
        assert one.low_ns <= one.iteration_ns <= one.high_ns
        assert abs(sum(one.path.values()) - one.iteration_ns) < 10
    times = [one.iteration_ns for one in found.together]
    assert times == sorted(times, reverse=True)
    assert [one.change for one in found.together] == ["pin", "prefetch", "sync", "graph"]
    assert {one.change for one in found.left_out} == {"prefetch", "fuse", "staged", "overlap"}
    starts = [span.start_ns for span in found.spans]
    assert starts == sorted(starts)
    covered = sum(span.end_ns - span.start_ns for span in found.spans)
    assert covered == pytest.approx(found.replayed_ns * found.modelled, rel=1e-6)
