"""The registry of measures: every table declares its columns, and every report derives its form from them."""

from __future__ import annotations

import json
from dataclasses import dataclass

import polars as pl
import pytest

from tests.captures import sample
from traceview.measure import MEASURES
from traceview.measure import devices as devices_module
from traceview.measure.base import DeviceInput, DeviceMeasure
from traceview.model.columns import Table, column, columns, field_names
from traceview.pipeline import analyze
from traceview.report.analysis.document import to_json
from traceview.report.analysis.page import render
from traceview.report.analysis.terminal import render as summary


@pytest.mark.parametrize("measure", MEASURES, ids=lambda measure: measure.table.name)
def test_every_column_is_described(measure: DeviceMeasure) -> None:
    declared = columns(measure.table.row_type)
    assert field_names(measure.table.row_type)
    assert all(one.title and one.description.endswith(".") for one in declared)
    assert set(measure.table.shown) <= {one.name for one in declared}


@dataclass(frozen=True, slots=True)
class LongestKernel:
    """The longest kernel of one stream."""

    stream: str = column("text", "stream", "Name of the stream.")
    longest_ns: int = column("ns", "longest", "Length of its longest kernel.")


def longest_kernels(given: DeviceInput) -> tuple[LongestKernel, ...]:
    kernels = given.trace.operations.filter(source="kernel")
    lengths = kernels.group_by("stream").agg(length=(pl.col("end") - pl.col("start")).max())
    labels = given.trace.streams["label"]
    return tuple(LongestKernel(labels[stream], length) for stream, length in sorted(lengths.iter_rows()))


def test_a_new_measure_reaches_every_report(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(name="longest_kernels", title="Longest kernels", row_type=LongestKernel)
    monkeypatch.setattr(devices_module, "MEASURES", (*MEASURES, DeviceMeasure(table, longest_kernels)))
    analysis = analyze(sample("dual.sqlite"))
    written = json.loads(to_json(analysis))["devices"][0]["longest_kernels"]
    assert written and all(row["longest_ns"] > 0 for row in written)
    assert "Longest kernels on GPU 0" in summary(analysis)
    assert '"Longest kernels"' in render(analysis)
