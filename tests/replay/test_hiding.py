"""Changes that hide collectives, against what two H200s took after them, and the price that they pay."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from traceview.model.analysis import Analysis
from traceview.replay.build import build
from traceview.replay.changes.base import COMMUNICATION, COMPUTE, GraphChange
from traceview.replay.changes.communication import OVERLAP
from traceview.replay.changes.hiding import (
    CONNECTIONS,
    PREFETCH_COLLECTIVE,
    REORDER,
    SEPARATE_STREAM,
    price_shares,
)
from traceview.replay.constants import REDUCE_SLOW
from traceview.replay.graph import RUN, DependencyGraph, replay
from traceview.replay.prediction import predict
from traceview.replay.select import Selection, select

TIMES = json.loads((Path(__file__).parents[2] / "benchmarks/results/h200_hiding_pairs.json").read_text())["ms"]


def capture(name: str) -> Analysis:
    return analyzed(sample(name), costs=None)


def graph_of(analysis: Analysis) -> DependencyGraph:
    chosen = select(analysis)
    assert isinstance(chosen, Selection)
    return build(analysis.trace, chosen)


@pytest.mark.parametrize(
    ("name", "change"),
    [("hiding/sums_after.sqlite.xz", REORDER), ("hiding/sums_in_stream.sqlite.xz", SEPARATE_STREAM)],
)
def test_remedy_says_how_sums_are_hidden(name: str, change: GraphChange) -> None:
    finding = next(each for each in analyzed(sample(name)).findings if each.id == "exposed_communication")
    assert (finding.change, finding.remedy, finding.gain.source) == (change.name, f"{change.title}.", "predicted")


@pytest.mark.parametrize(
    ("name", "change", "before", "after"),
    [
        ("hiding/sums_after.sqlite.xz", "reorder", "vgg_after", "vgg_ddp"),
        ("hiding/sums_in_stream.sqlite.xz", "separate-stream", "vgg_hooks_sync", "vgg_hooks_async"),
    ],
)
def test_hidden_sums_take_what_was_measured(name: str, change: str, before: str, after: str) -> None:
    prediction = predict(capture(name), [change])
    low, high = min(TIMES[after]) * 1e6, max(TIMES[after]) * 1e6
    assert prediction.low_ns < low and high < prediction.high_ns
    assert prediction.iteration_ns == pytest.approx(low, rel=0.03)
    assert prediction.iteration_ns < 0.97 * min(TIMES[before]) * 1e6


CASES = (
    ("hiding/sums_after.sqlite.xz", REORDER),
    ("hiding/sums_in_stream.sqlite.xz", SEPARATE_STREAM),
    ("exposure/two_gather_at_once.sqlite.xz", PREFETCH_COLLECTIVE),
    ("exposure/two_gather_at_once_async.sqlite.xz", PREFETCH_COLLECTIVE),
    ("exposure/two_tensor_parallel.sqlite.xz", OVERLAP),
)


@pytest.mark.parametrize(("name", "change"), CASES)
def test_hiding_gains_at_most_the_collectives_and_pays_a_price(name: str, change: GraphChange) -> None:
    graph = graph_of(capture(name))
    changed = change.apply(graph)
    assert isinstance(changed, DependencyGraph)
    collectives = graph.is_counted & (graph.operations.code == COMMUNICATION)
    kernels = graph.is_counted & (graph.operations.code == COMPUTE)
    before, after = replay(graph).per_iteration, replay(changed).per_iteration
    gain, most = before - after, int(graph.run_times[collectives].sum()) // graph.counted
    price = int((changed.run_times - graph.run_times)[kernels].sum()) // graph.counted
    assert 0 < gain <= most
    assert 0 < price <= most
    # What is hidden is paid for: no gain is larger than what the price leaves.
    assert gain <= most - price + 0.02 * before


@pytest.mark.parametrize(("name", "change"), CASES)
def test_each_collective_has_one_change(name: str, change: GraphChange) -> None:
    graph = graph_of(capture(name))
    others = [each.apply(graph) for each in (REORDER, SEPARATE_STREAM, PREFETCH_COLLECTIVE, OVERLAP) if each != change]
    times = [replay(each).per_iteration for each in others if isinstance(each, DependencyGraph)]
    # The sum of the first layer's gradient follows the backward pass in each of them.
    assert all(time > 0.99 * replay(graph).per_iteration for time in times)


def test_work_in_a_hardware_queue_starts_earlier() -> None:
    graph = graph_of(capture("exposure/one_connections_memset.sqlite.xz"))
    changed = CONNECTIONS.apply(graph)
    assert isinstance(changed, DependencyGraph)
    copies = graph.is_counted & (graph.operations.kind >= 0)
    assert (graph.operations.queued > 0).any()
    assert replay(changed).per_iteration < 0.8 * replay(graph).per_iteration
    # The copies take their time, so that the run gains nothing by it.
    assert predict(capture("exposure/one_connections_memset.sqlite.xz"), ["connections"]).iteration_ns >= (
        int(graph.run_times[copies].sum()) // graph.counted * 0.99
    )


def test_work_that_an_event_holds_waits_for_no_hardware_queue() -> None:
    for name in ("one_needed_at_once", "two_tensor_parallel"):
        result = CONNECTIONS.apply(graph_of(capture(f"exposure/{name}.sqlite.xz")))
        assert isinstance(result, str) and result.startswith("no launched work waits"), name


@given(st.floats(0.01, 40), st.integers(1, 131))
def test_price_of_a_kernel(waves: float, blocks: int) -> None:
    graph = graph_of(capture("hiding/sums_after.sqlite.xz"))
    count = len(graph.operations.row)
    operations = graph.operations._replace(waves=np.full(count, waves), code=np.full(count, COMPUTE))
    share = float(price_shares(graph._replace(operations=operations), blocks)[0])
    free = 1 - blocks / graph.facts.sms
    assert 0 <= share <= 1
    assert (share == 0) == (waves <= free)
    if waves > 1:
        assert share == pytest.approx(min(1 / free - 1, 1))


def test_price_without_launch_shapes_is_that_of_all_reduces() -> None:
    graph = graph_of(capture("hiding/sums_after.sqlite.xz"))
    unknown = graph._replace(facts=graph.facts._replace(sms=0))
    shares = price_shares(unknown, 24)
    assert set(shares[graph.operations.code == COMPUTE]) == {REDUCE_SLOW}
    assert not shares[graph.operations.code != COMPUTE].any()


def test_sums_during_the_backward_pass_keep_their_kernels() -> None:
    graph = graph_of(capture("hiding/sums_after.sqlite.xz"))
    changed = REORDER.apply(graph)
    assert isinstance(changed, DependencyGraph)
    assert np.count_nonzero(changed.edges.kind == RUN) == np.count_nonzero(graph.edges.kind == RUN)
