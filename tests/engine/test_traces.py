"""A window that is read from parts of an export gives the figures of the same window of the complete trace."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from polars.testing import assert_frame_equal

from tests.captures import SAMPLES
from traceview.engine.traces import PartSource
from traceview.model.trace import Trace, Window
from traceview.pipeline import analyze, open_trace
from traceview.report.analysis import document

EXPORTS = ["ddp2", "cudagraph", "scenarios/many_streams"]  # two processes, CUDA graphs, many streams
STORED = "ddp2"  # read from a compact copy
PAGES_PER_PART = 4
OTHERWISE = ("steady", "kernels")  # the steady part needs all iterations; kernels with equal times have any order
WHOLE = ("devices", "streams", "threads", "ranges", "scopes", "memory", "gpu_metrics")


@pytest.fixture(scope="module", params=EXPORTS)
def export(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, PartSource]:
    path = SAMPLES / f"{request.param}.sqlite"
    store = tmp_path_factory.mktemp("store") if request.param == STORED else None
    return open_trace(path), PartSource.open(path, PAGES_PER_PART, store)


def figures(trace: Trace) -> dict[str, Any]:
    values: dict[str, Any] = document(analyze(trace, skip=0))
    kernels = [sorted(map(str, device["kernels"])) for device in values["devices"]]
    devices = [{name: value for name, value in device.items() if name not in OTHERWISE} for device in values["devices"]]
    return {"devices": devices, "kernels": kernels, "host": values["host"], "nvtx": values["nvtx"]}


def windows(source: PartSource, count: int) -> list[Window]:
    """Return windows of the GPU's time, which begin and end anywhere."""
    devices, _, _ = source.extents
    start, end = min(extent.start for extent in devices.values()), max(extent.end for extent in devices.values())
    return [Window(*pair) for pair in pairwise(start + (end - start) * part // count for part in range(count + 1))]


def test_figures_of_windows(export: tuple[Trace, PartSource]) -> None:
    whole, source = export
    for window in windows(source, 2):
        assert figures(source.trace(window)) == figures(whole.with_window(window))


def test_shared_frames(export: tuple[Trace, PartSource]) -> None:
    whole, source = export
    for name in WHOLE:
        assert_frame_equal(getattr(source.resident, name), getattr(whole, name))
    assert source.resident.program == whole.program
    assert source.resident.info.tables == whole.info.tables
    unchecked = ("lost_launches", "lost_graph_replays", "cuda_ends_early", "unknown_messages")
    assert source.resident.info.health == tuple(note for note in whole.info.health if note.id not in unchecked)
    assert set(source.resident.info.passed) <= set(whole.info.passed)
    by_device = whole.operations.group_by("device").agg(start="start", end="end").sort("device")
    devices, streams, events = source.extents
    assert devices == {row: Window(min(start), max(end)) for row, start, end in by_device.iter_rows()}
    assert set(streams) == set(range(len(whole.streams)))
    assert events == whole.span
