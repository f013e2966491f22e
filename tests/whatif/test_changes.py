"""Micro-batches side by side, data parallel and power: samples, held against what was measured or known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from tests.captures import sample
from traceview.errors import RequestError
from traceview.model.analysis import Analysis
from traceview.pipeline import analyze
from traceview.whatif import data_parallel, measured, predict
from traceview.whatif.build import build
from traceview.whatif.constants import HIGH, LOW, MIDDLE, power_of, reduce_rate
from traceview.whatif.graph import RUN
from traceview.whatif.power import clocked
from traceview.whatif.select import Selection, select


@cache
def prefetch() -> Analysis:
    return analyze(sample("trainer/prefetch.sqlite"))


def test_twice_the_batch_on_two_gpus() -> None:
    found = predict(prefetch(), [], more=[data_parallel(2, 253_000_000)])
    # benchmarks/results/h200_ddp.json: 11.2 ms a step without a profiler, and 10.65 in this capture for 10.38 without.
    assert found.low_ns < 11_200_000 * 10.65 / 10.38 < found.high_ns
    assert found.iteration_ns == pytest.approx(11_200_000 * 10.65 / 10.38, rel=0.05)
    assert found.note.startswith("2 batches a step: 1.8")


def test_more_to_average_takes_longer() -> None:
    times = [
        predict(prefetch(), [], more=[data_parallel(count, size)]).iteration_ns
        for count, size in ((2, 1_000_000), (2, 253_000_000), (8, 253_000_000), (2, 4_000_000_000))
    ]
    assert measured(prefetch()) * 0.99 < times[0] and times == sorted(times)
    # 4 GB at 190 GB/s, all of it behind the step at worst and 21 ms at least.
    assert times[-1] > 4_000_000_000 / reduce_rate("NVIDIA H200") > times[-2]


def test_what_cannot_run_beside_is_said() -> None:
    with pytest.raises(RequestError, match="one batch a step"):
        predict(prefetch(), ["staged"])
    with pytest.raises(RequestError, match="several streams already"):
        predict(analyze(sample("trainer/staged.sqlite")), ["staged"])
    with pytest.raises(RequestError, match="several ranks already"):
        predict(analyze(sample("trainer/ddp.sqlite")), [], more=[data_parallel(4, 253_000_000)])
    with pytest.raises(RequestError, match="no backward pass"):
        predict(analyze(sample("cudagraph.sqlite")), [], more=[data_parallel(2, 253_000_000)])


def test_products_take_longer_only_where_the_gpu_comes_to_its_cap() -> None:
    analysis = prefetch()
    chosen = select(analysis)
    assert isinstance(chosen, Selection)
    graph = build(analysis.trace, chosen)
    now = chosen.measured_ns
    run = graph.edges.kind == RUN
    work = int(graph.edges.weight[run].sum())
    assert clocked(graph, now, graph, now, MIDDLE) is graph
    assert clocked(graph, now, graph, now // 2, LOW) is graph
    slower = [clocked(graph, now, graph, now // 2, one).edges.weight[run].sum() for one in (MIDDLE, HIGH)]
    assert work < slower[0] < slower[1] < 1.25 * work
    unknown = replace(graph, facts=replace(graph.facts, gpu="another"))
    assert clocked(unknown, now, unknown, now // 2, HIGH) is unknown


def test_constants_are_of_the_gpu_that_was_measured() -> None:
    assert power_of("NVIDIA H200") is not None
    assert power_of("NVIDIA GH200 480GB") is None and power_of("NVIDIA A100-SXM4-80GB") is None
    assert reduce_rate("NVIDIA H200") > reduce_rate("Tesla T4")


def test_work_behind_communication_keeps_its_order() -> None:
    # Nothing hidden makes two GPUs faster at their two batches than one at its own.
    ddp = analyze(sample("trainer/ddp.sqlite"))
    assert measured(prefetch()) * 0.98 < predict(ddp, ["overlap"]).iteration_ns <= measured(ddp)
