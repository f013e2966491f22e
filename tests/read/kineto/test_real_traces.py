"""Real traces of torch.profiler: every event, and the same program captured by nsys in another run."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from tests.captures import analyzed, sample
from tests.read.kineto.plain_reader import read_plainly
from traceview.errors import TraceviewError
from traceview.model.analysis import Analysis, Iterations
from traceview.model.trace import Trace
from traceview.normalise.api import without_suffix
from traceview.pipeline import open_trace
from traceview.read.formats import read_capture
from traceview.read.raw import STRINGS

SERIAL, GRAPH = "torch_profiler/serial.json.gz", "torch_profiler/graph.json.gz"
# Traces that cannot be copied here (for example those of Holistic Trace Analysis) are tested in their own folder.
ELSEWHERE = sorted(Path(folder).glob("*.json*")) if (folder := os.environ.get("TRACEVIEW_TRACES")) else []


def check(path: Path) -> Trace:
    trace, plain = open_trace(path), read_plainly(path)
    for sort, expected in plain.gpu.items():
        actual = trace.operations.filter(pl.col("source").cast(pl.String) == sort).select("start", "end")
        assert sorted(actual.rows()) == expected, sort
    calls = trace.api.select("start", "end", pl.col("name").cast(pl.String)).rows()
    assert sorted(calls) == sorted((start, end, without_suffix(name)) for start, end, name in plain.calls)
    assert sorted(trace.ranges.select("start", "end", pl.col("name").cast(pl.String)).rows()) == plain.ranges
    copies = trace.operations.filter(pl.col("source").cast(pl.String) == "memcpy")
    assert sum(size * count for (size, _), count in plain.copies.items()) == copies["bytes"].sum()
    return trace


@pytest.mark.parametrize("name", [SERIAL, GRAPH])
def test_every_read_numbers_names_alike(name: str) -> None:
    assert read_capture(sample(name)).tables[STRINGS].equals(read_capture(sample(name)).tables[STRINGS])


@pytest.mark.parametrize("name", [SERIAL, GRAPH])
def test_every_event_is_read(name: str) -> None:
    trace = check(sample(name))
    assert trace.operations["launch"].null_count() == 0, "every operation has a launch"


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: path.name)
def test_every_event_of_external_traces_is_read(path: Path) -> None:
    try:
        check(path)
    except TraceviewError as error:
        assert "no list of events" in str(error)


def names(analysis: Analysis) -> Counter[str]:
    return Counter(analysis.trace.operations["name"].cast(pl.String).to_list())


def test_same_program_in_both_profilers() -> None:
    by_torch, by_nsys = analyzed(sample(SERIAL)), analyzed(sample("trainer/serial.sqlite"))
    assert names(by_torch) == names(by_nsys), "each kernel has the same name, and ran as often"
    (torch_gpu,), (nsys_gpu,) = by_torch.devices, by_nsys.devices
    assert torch_gpu.name == nsys_gpu.name
    assert [(item.kind, item.memory, item.count, item.bytes) for item in torch_gpu.copies] == [
        (item.kind, item.memory, item.count, item.bytes) for item in nsys_gpu.copies
    ]
    # Two runs: the GPU's work takes the same within 1%, the host's does not, for torch.profiler slows it.
    assert abs(torch_gpu.compute_ns - nsys_gpu.compute_ns) < 0.01 * nsys_gpu.compute_ns
    assert isinstance(by_torch.iterations, Iterations) and isinstance(by_nsys.iterations, Iterations)
    assert [(item.name, item.kernel_count) for item in by_torch.iterations.per_iteration] == [
        (item.name, item.kernel_count) for item in by_nsys.iterations.per_iteration
    ]


def test_graph_kernels_share_a_launch() -> None:
    analysis = analyzed(sample(GRAPH))
    launches = analysis.trace.operations.filter(pl.col("source").cast(pl.String) == "kernel")["launch"].n_unique()
    assert analysis.devices[0].kernel_count == 2780 and launches < 100
