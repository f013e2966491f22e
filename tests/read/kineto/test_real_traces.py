"""Real traces of torch.profiler: every event, and the same program as nsys saw it in another run."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import polars as pl
import pytest

from tests.captures import sample
from tests.read.kineto.plainly import read_plainly
from traceview.errors import TraceviewError
from traceview.model.analysis import Analysis, Iterations
from traceview.model.trace import Trace
from traceview.normalise.api import without_suffix
from traceview.pipeline import analyze, open_trace

SERIAL, GRAPH = "torch_profiler/serial.json.gz", "torch_profiler/graph.json.gz"
# Traces that are nobody's to copy here (those of Holistic Trace Analysis, say) are tested where they lie.
ELSEWHERE = sorted(Path(folder).glob("*.json*")) if (folder := os.environ.get("TRACEVIEW_TRACES")) else []


def check(path: Path) -> Trace:
    trace, plain = open_trace(path), read_plainly(path)
    for sort, expected in plain.gpu.items():
        found = trace.operations.filter(pl.col("source").cast(pl.String) == sort).select("start", "end")
        assert sorted(found.rows()) == expected, sort
    calls = trace.api.select("start", "end", pl.col("name").cast(pl.String)).rows()
    assert sorted(calls) == sorted((start, end, without_suffix(name)) for start, end, name in plain.calls)
    assert sorted(trace.ranges.select("start", "end", pl.col("name").cast(pl.String)).rows()) == plain.ranges
    copies = trace.operations.filter(pl.col("source").cast(pl.String) == "memcpy")
    assert sum(size * count for (size, _), count in plain.copies.items()) == copies["bytes"].sum()
    return trace


@pytest.mark.parametrize("name", [SERIAL, GRAPH])
def test_every_event_of_a_trace_is_read(name: str) -> None:
    trace = check(sample(name))
    assert trace.operations["launch"].null_count() == 0, "every operation has its launch"


@pytest.mark.parametrize("path", ELSEWHERE, ids=lambda path: path.name)
def test_every_event_of_traces_elsewhere_is_read(path: Path) -> None:
    try:
        check(path)
    except TraceviewError as error:
        assert "no list of events" in str(error)


def names(analysis: Analysis) -> Counter[str]:
    return Counter(analysis.trace.operations["name"].cast(pl.String).to_list())


def test_two_profilers_see_the_same_program() -> None:
    by_torch, by_nsys = analyze(sample(SERIAL)), analyze(sample("trainer/serial.sqlite"))
    assert names(by_torch) == names(by_nsys), "each kernel has the same name, and ran as often"
    (torch_gpu,), (nsys_gpu,) = by_torch.devices, by_nsys.devices
    assert torch_gpu.name == nsys_gpu.name
    assert [(one.kind, one.memory, one.count, one.bytes) for one in torch_gpu.copies] == [
        (one.kind, one.memory, one.count, one.bytes) for one in nsys_gpu.copies
    ]
    # Two runs: the GPU's work takes the same within 1%, the host's does not, for torch.profiler slows it.
    assert abs(torch_gpu.compute_ns - nsys_gpu.compute_ns) < 0.01 * nsys_gpu.compute_ns
    assert isinstance(by_torch.iterations, Iterations) and isinstance(by_nsys.iterations, Iterations)
    assert [(one.name, one.kernel_count) for one in by_torch.iterations.per_iteration] == [
        (one.name, one.kernel_count) for one in by_nsys.iterations.per_iteration
    ]


def test_a_graph_shows_its_kernels_and_one_launch() -> None:
    analysis = analyze(sample(GRAPH))
    launches = analysis.trace.operations.filter(pl.col("source").cast(pl.String) == "kernel")["launch"].n_unique()
    assert analysis.devices[0].kernel_count == 2780 and launches < 100
