"""Concurrent micro-batches, data parallelism and power, compared with measurements."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.captures import analyzed, sample
from traceview.errors import RequestError
from traceview.model.analysis import Analysis
from traceview.model.whatif import Prediction
from traceview.replay.build import build
from traceview.replay.changes import ranks as data_parallel
from traceview.replay.constants import power_limits, reduce_rate
from traceview.replay.graph import RUN
from traceview.replay.outcome import with_clock
from traceview.replay.prediction import Changes, changes_of_run, measured, predict
from traceview.replay.select import Selection, select

# Runs under the profiler, so that predictions are exact.


def prefetch() -> Analysis:
    return analyzed(sample("trainer/prefetch.sqlite"), costs=None)


def test_data_parallel_on_two_gpus() -> None:
    prediction = predict(prefetch(), [], more=[data_parallel(2, 253_000_000)])
    # benchmarks/results/h200_ddp.json: 11.2 ms a step without a profiler, and 10.65 in this capture for 10.38 without.
    assert prediction.low_ns < 11_200_000 * 10.65 / 10.38 < prediction.high_ns
    assert prediction.iteration_ns == pytest.approx(11_200_000 * 10.65 / 10.38, rel=0.05)
    assert prediction.note.startswith("2 batches a step: 1.8")


@pytest.mark.parametrize(("name", "limited"), [("dual", False), ("trainer/prefetch", True)])
def test_kernels_that_do_not_limit_a_change_are_stated(name: str, limited: bool) -> None:
    prediction = predict(analyzed(sample(f"{name}.sqlite"), costs=None), ["compile"])
    assert prediction.note.startswith("kernels do not limit it: they take ") is not limited


def test_larger_gradients_take_longer() -> None:
    times = [
        predict(prefetch(), [], more=[data_parallel(count, size)]).iteration_ns
        for count, size in ((2, 1_000_000), (2, 253_000_000), (8, 253_000_000), (2, 4_000_000_000))
    ]
    assert measured(prefetch()) * 0.99 < times[0] and times == sorted(times)
    # An all-reduce of 4 GB at 190 GB/s takes at least 21 ms.
    assert times[-1] > 4_000_000_000 / reduce_rate("NVIDIA H200") > times[-2]


def test_reasons_against_concurrency() -> None:
    with pytest.raises(RequestError, match="one batch a step"):
        predict(prefetch(), ["staged"])
    with pytest.raises(RequestError, match="several streams already"):
        predict(analyzed(sample("trainer/staged.sqlite"), costs=None), ["staged"])
    with pytest.raises(RequestError, match="several ranks already"):
        predict(analyzed(sample("trainer/ddp.sqlite"), costs=None), [], more=[data_parallel(4, 253_000_000)])
    with pytest.raises(RequestError, match="no backward pass"):
        predict(analyzed(sample("cudagraph.sqlite"), costs=None), [], more=[data_parallel(2, 253_000_000)])


def test_matrix_products_slow_down_at_the_power_cap() -> None:
    analysis = prefetch()
    chosen = select(analysis)
    assert isinstance(chosen, Selection)
    graph = build(analysis.trace, chosen)
    now = chosen.measured_ns
    run = graph.edges.kind == RUN
    work = int(graph.edges.weight[run].sum())
    assert with_clock(graph, now, graph, now) is graph
    graphs = [with_clock(graph, now, graph, time) for time in (now // 2, now // 3)]
    slower = [slowed.edges.weight[run].sum() for slowed in graphs]
    assert work < slower[0] < slower[1] < 1.25 * work
    unknown = graph._replace(facts=graph.facts._replace(gpu="another"))
    assert with_clock(unknown, now, unknown, now // 2) is unknown


def test_constants_by_gpu_name() -> None:
    assert power_limits("NVIDIA H200") is not None
    assert power_limits("NVIDIA GH200 480GB") is None and power_limits("NVIDIA A100-SXM4-80GB") is None
    assert reduce_rate("NVIDIA H200") > reduce_rate("Tesla T4")


@pytest.mark.parametrize("name", ["trainer/ddp.sqlite", "ddp2.sqlite"])
def test_communication_hides_behind_the_compute_that_there_is(name: str) -> None:
    analysis = analyzed(sample(name), costs=None)
    chosen = select(analysis)
    assert isinstance(chosen, Selection)
    most = max(use.steady.compute_ns for use in analysis.devices) / chosen.steady
    # Modelled iterations differ from the mean.
    assert measured(analysis) - predict(analysis, ["overlap"]).iteration_ns <= 1.25 * most


def test_overlapped_communication_keeps_the_order_of_other_work() -> None:
    # Two GPUs with a batch each are never faster than one GPU with one batch.
    ddp = analyzed(sample("trainer/ddp.sqlite"), costs=None)
    assert measured(prefetch()) * 0.98 < predict(ddp, ["overlap"]).iteration_ns <= measured(ddp)


def test_no_prediction_is_below_the_mean_compute_of_all_iterations() -> None:
    analysis = analyzed(sample("dual.sqlite"))
    usual = changes_of_run(analysis)
    assert usual is not None and usual.model.compute_ratio == pytest.approx(1, abs=0.01)
    # Iterations that the model does not hold compute so much longer that the mean is 1.5 times that of the modelled.
    changes = Changes(analysis, replace(usual.model, compute_ratio=1.5))
    compute = max(use.steady.compute_ns for use in analysis.devices) // usual.model.selection.steady
    before, after = usual.prediction("graph"), changes.prediction("graph")
    assert isinstance(before, Prediction) and isinstance(after, Prediction)
    assert before.low_ns < 1.4 * compute < after.low_ns <= after.iteration_ns
