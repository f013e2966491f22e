"""Kernels of two captures, matched by name and launch shape: against plain loops and SQL."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.captures import sample
from tests.comparison.made_samples import Each, made_samples
from tests.comparison.test_captures import analyze_sample, compare_samples, only
from traceview.comparison.kernels import MAX_SHAPES, KernelShape, kernel_changes
from traceview.measure.kernels.families import kernel_kind
from traceview.model.analysis import Iterations
from traceview.model.comparison import STATUSES
from traceview.report.comparison.tables import kernel_counts, kernel_name, kernel_table

SHAPES = st.builds(
    KernelShape, st.sampled_from("ab"), st.sampled_from("xy"), st.tuples(st.integers(1, 3)), st.just((32,))
)
CALLS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=7, max_size=7).map(
    lambda each: [(count, count * ns) for count, ns in each]
)
CAPTURES = st.dictionaries(SHAPES, CALLS.filter(lambda each: any(count for count, _ in each)), max_size=6)


@settings(max_examples=60, deadline=None)
@given(CAPTURES, CAPTURES)
def test_matches_equal_a_plain_loop(before: dict[KernelShape, Each], after: dict[KernelShape, Each]) -> None:
    expected: dict[tuple[str, str, object], list[Each]] = defaultdict(lambda: [[], []])
    for side, (shapes, others) in enumerate(((before, after), (after, before))):
        for shape, each in shapes.items():
            shared = shape in others
            expected[shape.name, shape.label, shape.grid if shared else None][side] += each
    changes = kernel_changes(made_samples(before), made_samples(after), 0.01)
    assert len(changes) == len(expected)
    for kernel in changes:
        key = (kernel.name, kernel.label)
        old, new = expected.get((*key, kernel.grid)) or expected[(*key, None)]
        for side, count, time, each in (
            (old, kernel.count.mean_before, kernel.time.mean_before, kernel.per_call.mean_before),
            (new, kernel.count.mean_after, kernel.time.mean_after, kernel.per_call.mean_after),
        ):
            calls, ns = sum(call for call, _ in side), sum(ns for _, ns in side)
            assert (count, time) == (round(calls / 7, 3), ns // 7)
            assert each == ns // max(calls, 1)
        assert (kernel.status == "appeared") == (not old) and (kernel.status == "vanished") == (not new)
    costs = [abs(kernel.cost_ns) for kernel in changes]
    assert costs == sorted(costs, reverse=True)


def shape(grid: int, name: str = "k") -> KernelShape:
    return KernelShape(name, name, (grid, 1, 1), (128, 1, 1))


@pytest.mark.parametrize(
    ("before", "after", "status"),
    [
        ([(2, 200)] * 8, [(2, 240)] * 8, "slower"),
        ([(2, 200)] * 8, [(2, 160)] * 8, "faster"),
        ([(2, 200)] * 8, [(4, 400)] * 8, "changed"),
        ([(2, 200)] * 8, [(4, 480)] * 8, "slower"),
        ([(2, 2000)] * 8, [(2, 2002)] * 8, "same"),
        ([(2, 200)] * 3, [(2, 240)] * 3, "changed"),  # too few iterations to judge noise
        ([(2, 190), (2, 210)] * 4, [(2, 191), (2, 210)] * 4, "same"),
    ],
)
def test_status(before: Each, after: Each, status: str) -> None:
    (change,) = kernel_changes(made_samples({shape(1): before}), made_samples({shape(1): after}), 0.01)
    assert change.status == status


def test_names_with_many_shapes_are_compared_as_a_whole() -> None:
    each = [(1, 10)] * 8
    many = {shape(grid): each for grid in range(MAX_SHAPES + 1)}
    (change,) = kernel_changes(made_samples(many), made_samples(many), 0.01)
    assert change.grid is None and change.count.mean_before == MAX_SHAPES + 1
    few = {shape(grid): each for grid in range(MAX_SHAPES)}
    assert len(kernel_changes(made_samples(few), made_samples(few), 0.01)) == MAX_SHAPES


def test_figures_match_sql() -> None:
    against = only(compare_samples("serial", "dual"))
    with closing(sqlite3.connect(f"{sample('serial.sqlite').as_uri()}?mode=ro", uri=True)) as export:
        rows = export.execute(
            "select s.value, d.value, gridX, gridY, gridZ, blockX, blockY, blockZ, start, end "
            "from CUPTI_ACTIVITY_KIND_KERNEL join StringIds s on s.id = shortName "
            "join StringIds d on d.id = demangledName"
        ).fetchall()
    iterations = analyze_sample("serial").iterations
    assert isinstance(iterations, Iterations)
    edges = [row.start_ns for row in iterations.per_iteration if not row.skipped]
    edges.append(edges[0] + iterations.counted * iterations.time_ns)
    kind = cache(kernel_kind)  # a name occurs in hundreds of rows
    sums: dict[object, list[list[int]]] = defaultdict(lambda: [[0] * (len(edges) - 1), [0] * (len(edges) - 1)])
    for name, full, *sizes, start, end in rows:
        place = int(np.searchsorted(edges, start, side="right")) - 1
        if 0 <= place < len(edges) - 1:
            count, time = sums[name, kind(name, full).label, tuple(sizes[:3]), tuple(sizes[3:])]
            count[place] += 1
            time[place] += end - start
    shared = [kernel for kernel in against.kernels if kernel.grid is not None]
    assert len(shared) > 20
    for kernel in shared:
        count, time = sums[kernel.name, kernel.label, kernel.grid, kernel.block]
        assert kernel.per_call.mean_before == sum(time) // sum(count)
        assert kernel.count.mean_before == round(sum(count) / len(count), 3)
        assert kernel.time.before == int(np.median(time))
        each = sorted(ns // calls for ns, calls in zip(time, count, strict=True) if calls)
        assert kernel.per_call.before == (each[(len(each) - 1) // 2] + each[len(each) // 2]) // 2
        assert kernel.cost_ns == kernel.time.mean_after - kernel.time.mean_before


def test_texts() -> None:
    each = [(2, 200_000)] * 8
    before = {shape(1): each, shape(2, "gone"): each, shape(1, "steady"): each}
    after = {shape(1): [(3, 600_000)] * 8, shape(4, "came"): each, shape(1, "steady"): each}
    changes = kernel_changes(made_samples(before), made_samples(after), 0.01)
    against = replace(only(compare_samples("dual", "dual")), kernels=changes)
    assert {kernel.status for kernel in changes} < set(STATUSES)
    assert kernel_counts(against) == "1 appeared, 1 vanished, 1 slower per call, 1 unchanged"
    assert kernel_table(against, 10).rows == [
        ("k [1]", "slower", "2", "3", "100 µs", "200 µs", "+400 µs"),
        ("came [4]", "appeared", "0", "2", "-", "100 µs", "+200 µs"),
        ("gone [2]", "vanished", "2", "0", "100 µs", "-", "-200 µs"),
    ]
    assert kernel_name(replace(changes[0], grid=None)) == "k"
