"""Predictions from captures without NVTX ranges: the main thread, loaders, reads of values, and the mean time.

Hand-made traces, and samples whose ranges are removed while their iterations stay.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import polars as pl
import pytest

from tests.captures import analyzed, sample
from tests.made_trace import made_trace
from traceview.errors import RequestError
from traceview.model.analysis import Analysis, Iterations
from traceview.model.trace import KINDS, MEMORIES, Trace
from traceview.model.whatif import Prediction, WhatIf
from traceview.pipeline import analyze as analyze_capture
from traceview.replay.build import build
from traceview.replay.changes.base import launching_calls
from traceview.replay.changes.copies import pin
from traceview.replay.changes.kernels import shorter_compute
from traceview.replay.graph import WAIT, DependencyGraph
from traceview.replay.prediction import changes_of_run, predict, whatif
from traceview.replay.select import Selection, select

# Runs under the profiler, so that predictions are exact.
analyze = partial(analyze_capture, costs=None)

US = 1000


def without_ranges(analysis: Analysis) -> Analysis:
    """Return the analysis as if its iterations were periods: no range, and the busiest thread as theirs."""
    iterations, trace = analysis.iterations, analysis.trace
    assert isinstance(iterations, Iterations)
    own = trace.operations.filter((pl.col("process") == iterations.process_id) & pl.col("launch").is_not_null())
    busiest = trace.api["thread"].gather(own["launch"]).mode()[0]
    period = replace(iterations, source="period", confidence=0.9, range="period", thread=int(busiest))
    return replace(analysis, trace=replace(trace, ranges=trace.ranges.head(0)), iterations=period)


@pytest.mark.parametrize("name", ["trainer/serial", "trainer/prefetch", "trainer/ddp", "dual"])
def test_predictions_do_not_need_ranges(name: str) -> None:
    analysis = analyzed(sample(f"{name}.sqlite"), costs=None)
    named, bare = whatif(analysis), whatif(without_ranges(analysis))
    assert isinstance(named, WhatIf) and isinstance(bare, WhatIf)
    assert (bare.iterations.source, bare.measured_ns) == ("period", named.measured_ns)
    times = {item.change: item.iteration_ns for item in named.predictions}
    for item in bare.predictions:
        assert item.iteration_ns == pytest.approx(times[item.change], rel=0.01), item.change
    # The loop of these samples has its batches ready: without a range, nothing shows a loader.
    assert times.keys() - {item.change for item in bare.predictions} <= {"load"}
    assert {item.change for item in bare.left_out} - {item.change for item in named.left_out} <= {"load"}


def loop(
    pause: int, *, kind: str = "h2d", memory: str = "pinned", size: int = 1 << 20, rest: int = 205, copy: int = 14 * US
) -> Trace:
    """Hand-made: each step pauses, copies for `copy` ns, launches two kernels of 100 µs and takes `rest` µs more.

    All work is on one stream, and starts 5 µs after its launch or when the work before it ends. A copy of pageable
    memory blocks its call.
    """
    operations, api, ranges, at, free = [], [], [], 0, 0
    for step in range(12):
        begin = at
        at += pause
        for name, length in (("copy", copy), ("compute", 100 * US), ("compute", 100 * US)):
            start = max(at + 5 * US, free)
            free = start + length
            operations.append((start, free, name, 0, len(api)))
            blocks = name == "copy" and memory == "pageable"
            returned = free + US if blocks else at + 5 * US
            api.append((at, returned, "blocking_copy" if blocks else "api", 0))
            at = returned + 5 * US
        at += rest * US
        ranges.append((begin, at, f"step {step}", 0))
    trace = made_trace(operations, api, ranges)
    is_copy = pl.col("class") == "copy"
    return replace(
        trace,
        operations=trace.operations.with_columns(
            pl.when(is_copy).then(pl.lit(size)).otherwise(0).cast(pl.Int64).alias("bytes"),
            pl.when(is_copy).then(pl.lit(kind)).cast(pl.Enum(KINDS)).alias("kind"),
            pl.when(is_copy).then(pl.lit(memory)).cast(pl.Enum(MEMORIES)).alias("memory"),
        ),
    )


def test_pause_before_a_batch_is_loading() -> None:
    """Hand-made: without the pause of 5 ms, the GPU limits a step: 14 µs of copy, 200 µs of kernels."""
    analysis = without_ranges(analyze(loop(5000 * US)))
    prediction = predict(analysis, ["load"])
    # 3% of the pause stay, in which the host could have been ahead.
    assert 214 * US <= prediction.iteration_ns <= 214 * US + 150 * US + 250 * US
    assert prediction.low_ns <= prediction.iteration_ns < prediction.high_ns
    chosen = select(analysis)
    assert isinstance(chosen, Selection)
    assert (build(analysis.trace, chosen).calls.loading > 4900 * US).sum() == chosen.last - chosen.begin - 1
    with pytest.raises(RequestError, match="does not pause before it copies a batch"):
        predict(without_ranges(analyze(loop(5 * US, rest=0))), ["load"])


def test_loop_that_prepares_its_batches_pins_them_there() -> None:
    """Hand-made: a batch takes 14 µs to fill, as its copy does. A pause of 5 ms can hold that, one of 10 µs cannot."""
    slow = analyze(loop(5000 * US, memory="pageable"))
    ready = analyze(loop(5 * US, memory="pageable", rest=0))
    prepared, pinned = predict(slow, ["pin"]), predict(ready, ["pin"])
    assert "may prepare and pin it there" in prepared.note and "prepare" not in pinned.note
    assert prepared.iteration_ns > predict(ready, ["pin"]).iteration_ns
    assert predict(slow, ["pin-here"]).iteration_ns == prepared.iteration_ns
    assert prepared.low_ns < prepared.iteration_ns < prepared.high_ns


def test_reads_of_values_are_removed_with_their_waits() -> None:
    """A blocking copy of 4 bytes to the host in each step is a wait, as `loss.item()` is."""
    reads = analyze(loop(50 * US, kind="d2h", memory="pageable", size=4))
    prediction = predict(reads, ["sync"])
    assert prediction.iteration_ns < 0.9 * whatif_time(reads)
    with pytest.raises(RequestError, match="does not wait for the GPU in most iterations"):
        predict(analyze(loop(50 * US, kind="d2h", memory="pinned", size=4)), ["sync"])


def whatif_time(analysis: Analysis) -> int:
    assert isinstance(analysis.iterations, Iterations)
    return analysis.iterations.time_ns


def test_host_time_of_other_iterations_stays_as_the_host_does() -> None:
    """Hand-made: the mean is 10% above the modelled time, as with a checkpoint in a later iteration."""
    analysis = analyzed(sample("dual.sqlite"), costs=None)
    assert isinstance(analysis.iterations, Iterations)
    longer = replace(analysis, iterations=replace(analysis.iterations, time_ns=analysis.iterations.time_ns * 11 // 10))
    # The launches of a graph leave the host little time on the critical path; without loading, it stays.
    assert predict(longer, ["graph"]).iteration_ns < 1.02 * predict(analysis, ["graph"]).iteration_ns
    before, after = (predict(each, ["load"]).iteration_ns for each in (analysis, longer))
    assert after == pytest.approx(1.1 * before, rel=0.01)


def test_changes_fit_the_program() -> None:
    """A program without PyTorch gets no advice on autograd or DataLoader."""
    result = whatif(analyze(loop(5000 * US, memory="pageable")))
    assert isinstance(result, WhatIf)
    texts = " ".join([*(item.rests_on for item in result.predictions), *(item.reason for item in result.left_out)])
    assert "staged" not in {item.change for item in (*result.predictions, *result.left_out)}
    assert not any(word in texts for word in ("DataLoader", "non_blocking", "num_workers", "backward"))


def short_steps(pause: int, kernels: int = 1, role: str = "api", call: int = 5 * US, steps: int = 60) -> Trace:
    """Hand-made: each step launches kernels of 2 µs 10 µs apart, makes one more call, and pauses."""
    operations, api, ranges, at = [], [], [], 0
    for step in range(steps):
        begin = at
        for _ in range(kernels):
            api.append((at, at + 5 * US, "api", 0))
            operations.append((at + 8 * US, at + 10 * US, "compute", 0, len(api) - 1))
            at += 10 * US
        api.append((at, at + call, role, 0))
        at += call + pause
        ranges.append((begin, at, f"batch {step}", 0))
    return made_trace(operations, api, ranges)


def test_graph_keeps_pauses_of_the_host() -> None:
    """A pause of 5 ms in each step of 20 kernels is not launching code; the launches of 200 µs are."""
    prediction = predict(analyze(short_steps(5000 * US, kernels=20)), ["graph"])
    assert 5000 * US < prediction.iteration_ns < 5100 * US


def test_graph_of_several_short_iterations() -> None:
    """One kernel a step: a graph of ten steps launches in 13 µs what took 10 µs each."""
    prediction = predict(analyze(short_steps(0, call=0)), ["graph"])
    assert prediction.iteration_ns < 3 * US and "each graph holds 10" in prediction.note
    with pytest.raises(RequestError, match="few kernels are launched one by one"):
        predict(analyze(short_steps(0, role="sync")), ["graph"])


def test_allocations_take_no_time_when_memory_is_reused() -> None:
    analysis = analyze(short_steps(10 * US, role="memory", call=300 * US))
    assert whatif_time(analysis) == 320 * US
    assert predict(analysis, ["allocate"]).iteration_ns == 20 * US
    with pytest.raises(RequestError, match="no iteration allocates"):
        predict(analyze(short_steps(10 * US)), ["allocate"])


def test_results_are_copied_beside_the_kernels() -> None:
    """The host is ahead: 14 µs of copy and 200 µs of kernels limit a step. The copy then runs beside the kernels."""
    copied = analyze(loop(0, kind="d2h", rest=0))
    assert whatif_time(copied) == 214 * US
    assert predict(copied, ["output"]).iteration_ns == pytest.approx(200 * US, abs=3 * US)
    with pytest.raises(RequestError, match="pin that memory first"):
        predict(analyze(loop(0, kind="d2h", memory="pageable", rest=0)), ["output"])
    with pytest.raises(RequestError, match="no large copy to the host"):
        predict(analyze(loop(0)), ["output"])


def test_iterations_called_batch_are_not_loading() -> None:
    with pytest.raises(RequestError, match="no range is named after data"):
        predict(analyze(short_steps(5000 * US)), ["load"])


def test_model_that_does_not_stand_for_the_run_is_refused() -> None:
    analysis = analyzed(sample("dual.sqlite"), costs=None)
    assert isinstance(analysis.iterations, Iterations)
    longer = replace(analysis, iterations=replace(analysis.iterations, time_ns=2 * analysis.iterations.time_ns))
    with pytest.raises(RequestError, match=r"differ too much: those that fit a model take 13\.\d ms, the mean is 27"):
        predict(longer, ["graph"])


@pytest.mark.parametrize(("kind", "waits"), [("h2d", False), ("d2h", True)])
def test_host_still_waits_for_pinned_results(kind: str, waits: bool) -> None:
    """Hand-made: an n-body program integrates on the host what it reads back, and copies that to the GPU again."""
    chosen = select(analyze(loop(5 * US, kind=kind, memory="pageable", rest=0)))
    assert isinstance(chosen, Selection)
    graph = build(analyze(loop(5 * US, kind=kind, memory="pageable", rest=0)).trace, chosen)
    pinned = pin(graph)
    assert isinstance(pinned, DependencyGraph)
    blocking = launching_calls(graph, graph.operations.kind >= 0)
    assert graph.call_edges(WAIT, blocking).any()
    assert pinned.call_edges(WAIT, blocking).any() == waits


@pytest.mark.parametrize(("late", "saved"), [(50 * US, 3000 * US), (900 * US, 0)])
def test_host_that_polls_waits_for_kernels(late: int, saved: int) -> None:
    """Each step launches a kernel of 5 ms, and begins `late` after the end of the one before, without a call."""
    step = 5005 * US + late
    begins = [number * step for number in range(12)]
    work = [(at + 5 * US, at + 5005 * US, "compute", 0, number) for number, at in enumerate(begins)]
    calls = [(at, at + 5 * US, "api", 0) for at in begins]
    trace = made_trace(work, calls, [(at, at + step, f"step {number}", 0) for number, at in enumerate(begins)])
    prediction = predict(analyze(trace), [], more=[shorter_compute(3000 * US)])
    assert prediction.iteration_ns == pytest.approx(step - saved, abs=US)


@pytest.mark.parametrize(("size", "gains"), [(4, True), (1 << 16, False)])
def test_arrays_that_the_host_reads_are_awaited(size: int, gains: bool) -> None:
    """`kmeans` of round 15: the host computes the next centers from what it reads; a loss can be read later."""
    trace = loop(5 * US, kind="d2h", memory="pageable", size=size, rest=300)
    change = changes_of_run(analyze(trace))
    assert change is not None
    prediction = change.prediction("sync")
    assert isinstance(prediction, Prediction) == gains


def test_removed_wait_leaves_its_order_to_an_event() -> None:
    """Hand-made: a kernel of each of two streams in turn, each waited for: without waits, they still take turns."""
    operations, api, ranges, at = [], [], [], 0
    for step in range(40):
        begin = at
        for stream in (0, 1):
            operations.append((at + 5 * US, at + 105 * US, "compute", stream, len(api)))
            api += [(at, at + 5 * US, "api", 0), (at + 6 * US, at + 106 * US, "sync", 0)]
            at += 110 * US
        ranges.append((begin, at, f"step {step}", 0))
    prediction = predict(analyze(made_trace(operations, api, ranges)), ["sync"])
    assert 200 * US <= prediction.low_ns <= prediction.iteration_ns < 215 * US
