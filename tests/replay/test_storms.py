"""Storms in hand-made sequences of operations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from traceview.errors import RequestError
from traceview.pipeline import analyze
from traceview.replay.build import build
from traceview.replay.changes.kernels import shorter_host_gaps
from traceview.replay.graph import GAP, DependencyGraph
from traceview.replay.prediction import predict
from traceview.replay.select import Selection, select
from traceview.replay.storms import Storm, find_storms

STEP, TINY = 20_000, 2_000  # ns: between launches, and of a small operation


def graph_of(names: Sequence[str], *, thread: Sequence[int] | None = None, length: int = TINY) -> DependencyGraph:
    """Return the graph of three iterations that launch these operations, STEP apart."""
    span = (len(names) + 2) * STEP
    threads = thread or [0] * len(names)
    operations, api = [], []
    for index in range(3):
        for place, name in enumerate(names):
            at = index * span + place * STEP
            kind = "copy" if name.startswith("memcpy") else "compute"
            operations.append((at + 8_000, at + 8_000 + length, kind, 0, len(api)))
            api.append((at, at + 5_000, "api", threads[place]))
    trace = made_trace(
        operations=operations,
        api=api,
        ranges=[(index * span, (index + 1) * span, f"iteration {index}", 0) for index in range(3)],
    )
    named = pl.Series("name", [*names] * 3, pl.Enum(distinct := sorted({*names})))
    shape = pl.Series("shape", [distinct.index(name) + 1 for name in names] * 3, trace.operations.schema["shape"])
    shapes = trace.shapes[[0, *[1] * len(distinct)]].with_columns(
        pl.Series(column, ["", *distinct], trace.shapes.schema[column]) for column in ("name", "demangled")
    )
    trace = replace(trace, operations=trace.operations.with_columns(named, shape), shapes=shapes)
    chosen = select(analyze(trace))
    assert isinstance(chosen, Selection)
    return build(trace, chosen)


def sizes(graph: DependencyGraph) -> list[tuple[int, int]]:
    """Return the operations of each storm, and how many of them are kept."""
    return [(len(storm.members), int(np.count_nonzero(storm.kept))) for storm in find_storms(graph)]


def test_loop_keeps_one_round() -> None:
    names = ["gemm", *["index", "copy_", "add"] * 30, "gemm"]
    assert sizes(graph_of(names)) == [(90, 3)] * 3


def test_host_time_before_a_loop_is_shorter_for_each_round() -> None:
    # 32 products in a loop on an H200: 90 µs of views before the first, 16 µs after they are one product.
    graph = graph_of(["norm", *["gemm"] * 12, "gelu"])
    loop = Storm(np.arange(1, 13), np.arange(12) == 0)
    before = (graph.edges.kind == GAP) & (graph.edges.target // 2 == graph.operations.call[1])
    graph = graph.with_edges(graph.edges.with_weight(np.where(before, 90_000, graph.edges.weight)))
    for element, left in ((0, 90_000), (1_500, 90_000 - 12 * 1_500), (50_000, STEP - 5_000)):
        weight = shorter_host_gaps(graph, [loop], element)
        assert weight[before].tolist() == [left]
        assert (weight[~before] == graph.edges.weight[~before]).all()


def test_partial_rounds_belong_to_the_storm() -> None:
    names = ["gemm", "add", *["index", "copy_", "add"] * 30, "index", "gemm"]
    assert sizes(graph_of(names)) == [(92, 3)] * 3


def test_small_layers_are_not_a_storm() -> None:
    layer = ["layer_norm", "nvjet_tst_gemm", "gelu", "nvjet_tst_gemm", "add"]
    assert sizes(graph_of(layer * 40)) == []
    assert sizes(graph_of(["multi_tensor_apply_kernel"] * 60)) == []
    assert sizes(graph_of(["flash_fwd_kernel", "add"] * 40)) == []


def test_long_kernels_few_rounds_and_copies_are_not_a_storm() -> None:
    assert sizes(graph_of(["index", "add"] * 40, length=12_000)) == []
    assert sizes(graph_of(["index", "add"] * 9)) == []
    assert sizes(graph_of(["memcpy d2h"] * 40)) == []


def test_variants_of_a_kernel_without_order() -> None:
    chance = np.random.default_rng(5)
    names = chance.choice(["vectorized_elementwise_kernel", "unrolled_elementwise_kernel"], 128).tolist()
    # Elementwise operations share these two names, so a round may hold four of them.
    assert sizes(graph_of(["gemm", *names, "gemm"])) == [(128, 4)] * 3


def test_threads_have_separate_storms() -> None:
    names = [name for _ in range(40) for name in ("index", "scatter")]
    assert sizes(graph_of(names, thread=[0, 1] * 40)) == [(40, 1)] * 6


def test_rounds() -> None:
    names = ["gemm", *["index"] * 64, "gemm"]
    graph = graph_of(names)
    storm = find_storms(graph)[0]
    assert (len(storm.members), storm.rounds) == (64, 64)


@pytest.mark.parametrize("name", ["serial", "prefetch", "staged", "ddp"])
def test_samples_have_no_storm(name: str) -> None:
    analysis = analyzed(sample(f"trainer/{name}.sqlite"))
    with pytest.raises(RequestError, match="no loop launches"):
        predict(analysis, ["fuse"])


@settings(max_examples=20, deadline=None)
@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=18), st.integers(1, 30), st.booleans()),
        min_size=1,
        max_size=4,
    )
)
def test_storms_are_disjoint_and_keep_one_round(parts: list[tuple[list[str], int, bool]]) -> None:
    names = [name for pattern, rounds, long in parts for name in (*pattern * rounds, *(["gemm"] if long else []))][:200]
    graph = graph_of(names)
    seen = np.zeros(len(graph.operations.row), np.int64)
    for storm in find_storms(graph):
        seen[storm.members] += 1
        kinds = set(graph.operations.name[storm.members].tolist())
        assert set(graph.operations.name[storm.members[storm.kept]].tolist()) == kinds
        assert not storm.kept.all() and (np.diff(storm.members) > 0).all()
    assert seen.max(initial=0) <= 1
