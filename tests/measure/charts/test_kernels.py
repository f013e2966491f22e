"""Groups of kernels against plain loops, and against the table of kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from traceview import Analysis, analyze
from traceview.measure.charts.kernels import _groups, _Kernels, kernel_groupings
from traceview.measure.kernels.families import kernel_kind
from traceview.measure.nvtx.projection import project_operations
from traceview.measure.places.locate import locate_operations
from traceview.model.charts import KernelGroup, KernelInstance
from traceview.model.trace import Window


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40)), min_size=1, max_size=40), st.integers(1, 7))
def test_groups_match_a_plain_loop(kernels: list[tuple[int, int]], limit: int) -> None:
    code, length = (np.array(column, np.int64) for column in zip(*kernels, strict=True))
    start = np.arange(len(kernels)) * 50
    members: dict[int, list[int]] = defaultdict(list)
    for row, (group, _) in enumerate(kernels):
        members[group].append(row)
    order = sorted(members, key=lambda group: (-sum(kernels[row][1] for row in members[group]), group))
    rest = sorted(row for group in order[limit:] for row in members[group])
    expected = [(str(group), members[group]) for group in order[:limit]]
    expected += [(f"({len(order) - limit} others)", rest)] if rest else []
    groups = _groups(_Kernels(start, start + length, length, code), code, [str(number) for number in range(6)], limit)
    assert [(group.name, group.count, group.total_ns) for group in groups] == [
        (name, len(rows), sum(kernels[row][1] for row in rows)) for name, rows in expected
    ]
    for group, (_, rows) in zip(groups, expected, strict=True):
        lengths = sorted(kernels[row][1] for row in rows)
        assert group.first.start == start[rows[0]]
        assert group.longest.end - group.longest.start == lengths[-1]
        assert group.median.end - group.median.start == lengths[(len(lengths) - 1) // 2]
        assert all(each.start // 50 in rows for each in (group.median, group.longest, group.first))


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyzed(sample("ddp2.sqlite"))


def names(analysis: Analysis) -> Mapping[str, Callable[[Mapping[str, Any]], str | None]]:
    """Return a function from an operation to its group, for each grouping."""
    kinds = [
        kernel_kind(row["name"] or "", row["demangled"] or "") for row in analysis.trace.shapes.iter_rows(named=True)
    ]
    places = locate_operations(analysis.trace, project_operations(analysis.trace))
    return {
        "kernel": lambda row: kinds[row["shape"]].label,
        "family": lambda row: kinds[row["shape"]].family,
        "range": lambda row: places.table["range"][int(places.code[row["index"]])],
    }


@pytest.mark.parametrize("whole", [False, True])
def test_groupings_of_a_capture(analysis: Analysis, whole: bool) -> None:
    assert analysis.charts is not None
    charts = analyze(analysis.trace, whole=True).charts if whole else analysis.charts
    assert charts is not None
    for device, measured in zip(analysis.devices, charts().devices, strict=True):
        part = device if whole else device.steady
        groupings = {grouping.by: grouping.groups for grouping in measured.kernels}
        assert {"shape", "kernel", "family", "range"} <= set(groupings)
        uses = part.tables["kernels"].rows
        assert [(use.count, use.total_ns) for use in uses] == [
            (group.count, group.total_ns) for group in groupings["shape"]
        ]
        families = part.tables["kernel_families"].rows
        assert {(row.family, row.count, row.total_ns) for row in families} == {
            (group.name, group.count, group.total_ns) for group in groupings["family"]
        }
        for by, name_of in names(analysis).items():
            check(analysis, device.device, part.window, name_of, groupings[by])


def check(
    analysis: Analysis,
    device: int,
    window: Window,
    name_of: Callable[[Mapping[str, Any]], str | None],
    groups: tuple[KernelGroup, ...],
) -> None:
    members: dict[str | None, list[Mapping[str, Any]]] = defaultdict(list)
    for row in analysis.trace.operations.with_row_index().iter_rows(named=True):
        inside = row["start"] < window.end and row["end"] > window.start
        if row["source"] == "kernel" and row["device"] == device and inside:
            members[name_of(row)].append(row)
    assert len(groups) == len(members)
    for group in groups:
        rows = members[group.name]
        assert group.count == len(rows)
        assert group.first == KernelInstance(rows[0]["start"], rows[0]["end"], rows[0]["stream"])


def test_window_without_kernels_has_no_groups() -> None:
    trace = made_trace([(0, 10, "copy", 0, None), (20, 30, "compute", 0, None)])
    places = locate_operations(trace, project_operations(trace))
    assert kernel_groupings(trace, 0, Window(0, 15), places) == ()
    (shape, *_) = kernel_groupings(trace, 0, Window(25, 40), places)
    (group,) = shape.groups
    assert (group.count, group.total_ns) == (1, 5)
    assert group.first == group.median == group.longest == KernelInstance(20, 30, 0)
