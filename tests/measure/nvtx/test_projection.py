"""Tests of projected ranges against the figures of range names."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.captures import analyzed, sample
from tests.pages import inputs_of
from traceview.measure.nvtx import project_ranges
from traceview.model.analysis import NotMeasured
from traceview.model.trace import Window


@pytest.mark.parametrize("name", ["serial", "dual", "quad"])
def test_spans_and_operations_add_up_by_name(name: str) -> None:
    analysis = analyzed(sample(f"{name}.sqlite"))
    assert not isinstance(analysis.nvtx, NotMeasured)
    names = analysis.trace.ranges["name"].cast(str).to_list()
    spans: dict[str, int] = defaultdict(int)
    operations: dict[str, int] = defaultdict(int)
    for row in inputs_of(analysis).projected.iter_rows(named=True):
        spans[names[row["range"]]] += row["end"] - row["start"]
        operations[names[row["range"]]] += row["operations"]
    measured = {use.name: use for use in analysis.nvtx if use.operation_count}
    assert set(spans) == set(measured)
    assert all(spans[name] == use.gpu_span_each_ns for name, use in measured.items())
    assert all(operations[name] == use.operation_count for name, use in measured.items())


def test_rows_are_sorted() -> None:
    frame = project_ranges(analyzed(sample("ddp2.sqlite")).trace)
    assert frame["device"].n_unique() == 2
    assert frame.equals(frame.sort("device", "start", "end", "range", descending=[False, False, True, False]))


def test_window_keeps_overlapping_work() -> None:
    trace = analyzed(sample("dual.sqlite")).trace
    whole = project_ranges(trace)
    start, end = int(whole["start"][20]), int(whole["end"][40])
    narrowed = project_ranges(trace.with_window(Window(start, end)))
    assert 0 < len(narrowed) < len(whole)
    assert ((narrowed["end"] >= start) & (narrowed["start"] < end)).all()
    empty = project_ranges(trace.with_window(Window(end + 10**12, end + 10**12 + 1)))
    assert empty.is_empty() and empty.schema == whole.schema
