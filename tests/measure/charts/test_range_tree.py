"""The tree of ranges, against the open ranges of each launch."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.captures import sample
from traceview.measure.charts import trees
from traceview.measure.charts.trees import place_trees
from traceview.measure.nvtx import project_operations
from traceview.measure.places import locate_operations
from traceview.model.trace import Window
from traceview.pipeline import open_trace


def test_ranges_have_the_kernels_launched_inside_them(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = open_trace(sample("dual.sqlite"))
    work = trace.operations.with_row_index("index").filter(trace.operations["class"] == "compute")
    located = locate_operations(trace, project_operations(trace))
    window = Window(int(work["start"][0]), int(work["end"].max()))  # type: ignore[arg-type]
    _, tree = place_trees(trace, 0, window, located)
    # The backward pass runs on a thread without ranges, so it gets the ranges of the annotating thread.
    api, ranges = trace.api, trace.ranges.sort("start", "end", descending=[False, True])
    total: Counter[tuple[str, ...]] = Counter()
    own: Counter[tuple[str, ...]] = Counter()
    opened = list(ranges.select("start", "end", "name").iter_rows())
    for start, end, launch in work.select("start", "end", "launch").iter_rows():
        at = api["start"][launch]
        path = tuple(
            "iteration #" if "iteration" in name else name for first, last, name in opened if first <= at < last
        )
        own[path] += end - start
        for depth in range(1, len(path) + 1):
            total[path[:depth]] += end - start
    paths: list[tuple[str, ...]] = []
    for node in tree:
        paths.append((*(paths[node.parent] if node.parent >= 0 else ()), node.name))
    assert {path: (node.total_ns, node.own_ns) for path, node in zip(paths, tree, strict=True)} == {
        path: (total[path], own[path]) for path in total
    }
    monkeypatch.setattr(trees, "MAX_NODES", 2)
    _, cut = place_trees(trace, 0, window, located)
    assert [(node.name, node.own_ns) for node in cut] == [(node.name, node.own_ns) for node in tree[:2]]
