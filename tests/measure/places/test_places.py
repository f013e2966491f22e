"""The kernels of each place: their totals add up, and each kernel belongs to its innermost range."""

from __future__ import annotations

import pytest

from tests.captures import ALL, analyzed, sample, shared
from tests.pages import inputs_of
from traceview.measure.charts.trees import MAX_NODES
from traceview.pipeline import analyze


@pytest.mark.parametrize("name", ALL)
def test_totals_equal_those_of_kernels(name: str) -> None:
    for device in analyzed(shared(name)).devices:
        kernels, places = (device.tables[table].rows for table in ("kernels", "kernel_places"))
        for figure in ("count", "total_ns"):
            assert sum(getattr(row, figure) for row in places) == sum(getattr(row, figure) for row in kernels)
        by_name = {row.kernel for row in places}
        assert by_name == {row.label for row in kernels}


@pytest.mark.parametrize("name", ["dual.sqlite", "torch_profiler/serial.json.gz"])
def test_tree_adds_up(name: str) -> None:
    analysis = analyzed(sample(name))
    (device,) = analysis.devices
    nodes = inputs_of(analysis).charts.devices[0].places
    kernels = sum(row.total_ns for row in device.steady.tables["kernel_places"].rows)
    assert len(nodes) < MAX_NODES and max(node.parent for node in nodes) > 0
    assert sum(node.total_ns for node in nodes if node.parent < 0) == kernels
    for at, node in enumerate(nodes):
        parts = [part.total_ns for part in nodes if part.parent == at]
        assert node.parent < at and sum(parts) in (0, node.total_ns)


def test_tree_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceview.measure.charts.trees.MAX_NODES", 4)
    monkeypatch.setattr("traceview.measure.charts.trees.MAX_DEPTH", 2)
    analysis = analyze(sample("torch_profiler/serial.json.gz"))
    nodes = inputs_of(analysis).charts.devices[0].places
    assert len(nodes) == 4 and all(node.parent < 0 or nodes[node.parent].parent < 0 for node in nodes)
    for at, node in enumerate(nodes):
        assert sum(part.total_ns for part in nodes if part.parent == at) <= node.total_ns


def test_table_of_modules_adds_up() -> None:
    (device,) = analyzed(sample("torch_profiler/serial.json.gz")).devices
    modules, kernels = (device.tables[name].rows for name in ("modules", "kernels"))
    assert sum(row.total_ns for row in modules) == sum(row.total_ns for row in kernels)
    assert modules[0].place == "aten::linear" and modules[0].direction == "backward"
    assert not analyzed(sample("dual.sqlite")).devices[0].tables["modules"].rows, "it has ranges alone"


def test_rest_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceview.measure.kernels.MAX_PLACES", 3)
    (device,) = analyze(sample("torch_profiler/serial.json.gz")).devices
    *rows, rest = device.tables["modules"].rows
    assert len(rows) == 3 and rest.place.endswith(" others)") and rest.direction is None
    assert sum(row.total_ns for row in (*rows, rest)) == sum(row.total_ns for row in device.tables["kernels"].rows)


def test_rest_of_places(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("traceview.measure.kernels.MAX_PLACES", 3)
    (device,) = analyze(sample("dual.sqlite")).devices
    *rows, rest = device.tables["kernel_places"].rows
    assert len(rows) == 3 and rest.kernel.endswith("other places)") and rest.range is None
    assert sum(row.total_ns for row in (*rows, rest)) == sum(row.total_ns for row in device.tables["kernels"].rows)
