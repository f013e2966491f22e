"""Groups of kernels against plain loops, and against the table of kernels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from tests.measured import charts_of, measured
from traceview import Analysis
from traceview.measure.charts import kernels as kernel_charts
from traceview.measure.charts.kernels import (
    IN_BOTH,
    IN_STEADY,
    IN_WINDOW,
    KernelSums,
    kernel_groupings,
    sum_kernels,
    with_at_most,
)
from traceview.measure.kernels.families import kernel_kind
from traceview.measure.nvtx import project_operations
from traceview.measure.places import PLACE, locate_operations
from traceview.model.charts import KernelGrouping, KernelInstance, SimilarKernels
from traceview.model.trace import SHAPES, Window

KERNELS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 40), st.integers(0, 2)), min_size=1, max_size=40)


def sums_of(kernels: list[tuple[int, int, int]]) -> KernelSums:
    """Return the sums of kernels (group, length, part); one starts every 50 ns."""
    start = np.arange(len(kernels)) * 50
    group, length, part = (np.array(column, np.int64) for column in zip(*kernels, strict=True))
    sums = pl.DataFrame(
        {
            "shape": pl.Series(group, dtype=pl.Int32),
            "place": pl.Series(np.zeros(len(group)), dtype=pl.Int32),
            "part": pl.Series(part, dtype=pl.Int8),
            "ns": length,
            "count": np.ones(len(group), np.int64),
            "total_ns": length,
            "start": start,
            "end": start + length,
            "stream": pl.Series(group, dtype=pl.Int16),
        }
    )
    of_length = sums.group_by("shape", "place", "part", "ns", maintain_order=True)
    first = pl.col("start", "end", "stream").first()
    sums = of_length.agg(pl.col("count", "total_ns").sum(), first).select(sums.columns)
    shapes = pl.DataFrame({name: [f"kernel {at}" if name == "name" else None for at in range(6)] for name in SHAPES})
    places = pl.DataFrame({name: [None] for name in PLACE}, schema=dict.fromkeys(PLACE, pl.String))
    return KernelSums(sums, shapes.cast(dict(SHAPES)), places)


@given(KERNELS, st.integers(1, 7), st.booleans())
def test_groups_match_a_plain_loop(kernels: list[tuple[int, int, int]], limit: int, steady: bool) -> None:
    members: dict[int, list[int]] = defaultdict(list)
    for row, (group, _, part) in enumerate(kernels):
        if part != (IN_WINDOW if steady else IN_STEADY):
            members[group].append(row)
    order = sorted(members, key=lambda group: (-sum(kernels[row][1] for row in members[group]), group))
    rest = sorted(row for group in order[limit:] for row in members[group])
    expected = [(f"kernel {group}", members[group]) for group in order[:limit]]
    expected += [(f"({len(order) - limit} others)", rest)] if rest else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernel_charts, "MAX_GROUPS", limit)
        groupings = {grouping.by: grouping.groups for grouping in kernel_groupings(sums_of(kernels), steady=steady)}
    assert set(groupings) == ({"shape", "kernel", "family"} if members else set())
    groups = groupings.get("kernel", ())
    assert [(group.name, group.count, group.total_ns) for group in groups] == [
        (name, len(rows), sum(kernels[row][1] for row in rows)) for name, rows in expected
    ]
    for group, (_, rows) in zip(groups, expected, strict=True):
        lengths = sorted(kernels[row][1] for row in rows)
        chosen = {"first": kernels[rows[0]][1], "longest": lengths[-1], "median": lengths[(len(lengths) - 1) // 2]}
        for name, length in chosen.items():
            row = next(row for row in rows if kernels[row][1] == length)
            assert getattr(group, name) == KernelInstance(row * 50, row * 50 + length, kernels[row][0])


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=60), st.integers(1, 40))
def test_rounded_lengths_keep_sums_longest_and_first(lengths: list[int], limit: int) -> None:
    exact = sums_of([(length % 2, length, IN_BOTH) for length in lengths])
    rounded = exact._replace(sums=with_at_most(exact.sums, limit))
    # A shape has rows for its first kernel, and for at most 9 digits at 9 powers of ten.
    assert len(rounded.sums) <= max(limit, 2 * (1 + 90)) and len(rounded.sums) <= len(exact.sums)
    for group, other in zip(
        *(kernel_groupings(kernels, steady=True)[0].groups for kernels in (exact, rounded)), strict=True
    ):
        assert (group.count, group.total_ns, group.first) == (other.count, other.total_ns, other.first)
        assert group.longest.end - group.longest.start == other.longest.end - other.longest.start


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analyzed(sample("ddp2.sqlite"))


@pytest.fixture(scope="module")
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
def test_groupings_of_a_capture(
    analysis: Analysis, names: Mapping[str, Callable[[Mapping[str, Any]], str | None]], whole: bool
) -> None:
    charts = charts_of(replace(analysis, whole=whole))
    for device, chart in zip(analysis.devices, charts.devices, strict=True):
        part = device if whole else device.steady
        groupings = {grouping.by: grouping.groups for grouping in chart.kernels}
        assert {"shape", "kernel", "family", "range"} <= set(groupings)
        uses = part.tables["kernels"].rows
        assert [(use.count, use.total_ns) for use in uses] == [
            (group.count, group.total_ns) for group in groupings["shape"]
        ]
        families = part.tables["kernel_families"].rows
        assert {(row.family, row.count, row.total_ns) for row in families} == {
            (group.name, group.count, group.total_ns) for group in groupings["family"]
        }
        for by, name_of in names.items():
            check(analysis, device.device, part.window, name_of, groupings[by])


def check(
    analysis: Analysis,
    device: int,
    window: Window,
    name_of: Callable[[Mapping[str, Any]], str | None],
    groups: tuple[SimilarKernels, ...],
) -> None:
    members: dict[str | None, list[Mapping[str, Any]]] = defaultdict(list)
    operations = analysis.trace.operations.with_row_index()
    columns = ("index", "source", "device", "start", "end", "stream", "shape")
    for row in operations.select(columns).iter_rows(named=True):
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
    device = measured(trace).devices[0]
    places = locate_operations(trace, project_operations(trace))

    def groupings(window: Window, steady: Window) -> tuple[KernelGrouping, ...]:
        part = replace(device, window=window, steady=replace(device.steady, window=steady))
        return kernel_groupings(sum_kernels(trace, part, places), steady=True)

    assert groupings(Window(0, 15), Window(0, 15)) == groupings(Window(0, 40), Window(25, 25)) == ()
    (shape, *_) = groupings(Window(0, 40), Window(25, 40))
    (group,) = shape.groups
    assert (group.count, group.total_ns) == (1, 5)
    assert group.first == group.median == group.longest == KernelInstance(20, 30, 0)
