"""Time by stack as a tree, against a walk over every stack; hand-made stacks."""

from __future__ import annotations

from collections import Counter

import numpy as np
import polars as pl
import pytest

from tests.measure.host.test_host_time import OWN_LINE, random_trace, slow_host_time
from tests.pages import inputs_of
from traceview.measure.charts import trees
from traceview.measure.charts.trees import stack_tree
from traceview.measure.host.lines import FIGURES, StackTimes
from traceview.model.charts import StackNode
from traceview.model.stacks import FRAMES, STACKS, HostEvidence
from traceview.pipeline import analyze

Path = tuple[tuple[str, str], ...]
FRAME_ROWS = [
    *(("main", "train.py", line, False) for line in (1, 2)),
    *(("run", "lib/a.py", line, True) for line in (5, 6)),
    *(("call", "lib/b.py", 9, True), ("step", "train.py", 30, False), ("run", "lib/c.py", 5, True)),
]


def random_stacks(seed: int) -> tuple[HostEvidence, StackTimes]:
    rng = np.random.default_rng(seed)
    count = 40
    parent = [int(rng.integers(-1, at)) for at in range(count)]
    rows = list(zip(parent, rng.integers(0, len(FRAME_ROWS), count).tolist(), strict=True))
    evidence = HostEvidence(
        pl.DataFrame(FRAME_ROWS, schema=dict(FRAMES), orient="row"),
        pl.DataFrame(rows, schema=dict(STACKS), orient="row"),
    )
    seen = np.sort(rng.choice(count, 15, replace=False))
    times = {name: rng.integers(0, 50, 15) for name in FIGURES}
    return evidence, StackTimes(pl.DataFrame({"stack": seen.astype(np.int32), **times}), exact=False)


def slow_totals(evidence: HostEvidence, times: StackTimes) -> dict[Path, np.ndarray]:
    """Return the figures of every path of lines of the program and functions of libraries."""
    totals: dict[Path, np.ndarray] = {}
    for stack, *figures in times.frame.rows():
        path: list[tuple[str, str]] = []
        node = stack
        while node >= 0:
            node, frame = evidence.stacks.row(node)
            function, file, line, library = evidence.frames.row(frame)
            path.insert(0, (function, file if library else f"{file}:{line}"))
        for depth in range(1, len(path) + 1):
            key = tuple(path[:depth])
            totals[key] = totals.get(key, np.zeros(4, np.int64)) + figures
    return {path: figures for path, figures in totals.items() if figures.any()}


def paths(nodes: tuple[StackNode, ...]) -> dict[Path, list[int]]:
    by_path: dict[Path, list[int]] = {}
    known: list[Path] = []
    for node in nodes:
        outer = known[node.parent] if node.parent >= 0 else ()
        known.append((*outer, (node.function, node.place)))
        by_path[known[-1]] = [getattr(node, name) for name in FIGURES]
    assert len(by_path) == len(nodes)
    return by_path


@pytest.mark.parametrize("seed", range(8))
def test_totals_of_every_path(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MERGED_SHARE", 2)
    evidence, times = random_stacks(seed)
    tree = stack_tree(evidence, times)
    assert not tree.exact
    assert {path: list(figures) for path, figures in slow_totals(evidence, times).items()} == paths(tree.nodes)


@pytest.mark.parametrize("seed", range(8))
def test_runs_of_library_calls_are_one_node(seed: int) -> None:
    evidence, times = random_stacks(seed)
    whole = slow_totals(evidence, times)
    nodes = stack_tree(evidence, times).nodes
    assert sum(node.calls for node in nodes) == len(whole) and len(nodes) <= len(whole)
    for node in nodes:
        assert (node.calls == 1) == (node.inner == "") and (node.library or node.calls == 1)
        assert node.parent < 0 or nodes[node.parent].idle_ns >= node.idle_ns
    roots = [node for node in nodes if node.parent < 0]
    assert tuple(sum(getattr(node, name) for node in roots) for name in FIGURES) == times.frame.select(
        FIGURES
    ).sum().row(0)


@pytest.mark.parametrize("most", [1, 5, 12])
def test_bounded_tree_has_the_most_time(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MAX_STACK_NODES", most)
    evidence, times = random_stacks(3)
    whole = slow_totals(evidence, times)
    tree = stack_tree(evidence, times)
    assert sum(node.calls for node in tree.nodes) == most < len(whole)
    assert all(node.parent < at for at, node in enumerate(tree.nodes))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_times_of_a_trace_against_a_slow_count(seed: int, exact: bool) -> None:
    trace = random_trace(seed, exact, complete=True)
    analysis = analyze(trace, whole=True)
    tree = inputs_of(analysis).charts.stacks
    idle = slow_host_time(trace)[2]
    own: Counter[int] = Counter()
    for node in tree.nodes:
        children = sum(other.idle_ns for other in tree.nodes if other.parent >= 0 and tree.nodes[other.parent] is node)
        if node.idle_ns > children:
            own[int(node.place.partition(":")[2] or OWN_LINE[2])] += node.idle_ns - children
    assert own == idle and tree.exact == exact


def test_no_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = pl.DataFrame(schema={"stack": pl.Int32, **dict.fromkeys(FIGURES, pl.Int64)})
    assert stack_tree(random_stacks(0)[0], StackTimes(empty, exact=True)).nodes == ()
