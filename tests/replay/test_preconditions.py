"""What a capture must show for a change to be offered: a CUDA graph, and copies and loading one by one or at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import polars as pl
import pytest

from tests.made_trace import made_trace
from tests.replay.test_without_ranges import US, loop
from traceview.errors import RequestError
from traceview.model.program import Program
from traceview.model.trace import Trace
from traceview.model.whatif import Prediction
from traceview.pipeline import analyze as analyze_capture
from traceview.replay.choices import choice_words
from traceview.replay.prediction import Changes, changes_of_run, predict
from traceview.rules.answer import with_answer

analyze = partial(analyze_capture, costs=None)


def steps(roles: Sequence[str] = (), kernels: Sequence[int] = (20,), call: int = 5) -> Trace:
    """Hand-made: steps launch kernels of 2 µs 10 µs apart; calls of these roles stand after every fifth kernel."""
    operations, api, ranges, at = [], [], [], 0
    for step in range(24):
        begin = at
        for kernel in range(kernels[step % len(kernels)]):
            api.append((at, at + 5 * US, "api", 0))
            operations.append((at + 8 * US, at + 10 * US, "compute", 0, len(api) - 1))
            at += 10 * US
            if kernel % 5 == 4 and kernel // 5 < len(roles):
                api.append((at, at + call * US, roles[kernel // 5], 0))
                at += (call + 5) * US
        ranges.append((begin, at, f"step {step}", 0))
    return made_trace(operations, api, ranges)


def test_graph_of_steps_that_nothing_interrupts() -> None:
    assert predict(analyze(steps()), ["graph"]).iteration_ns < 100 * US


@pytest.mark.parametrize("role", ["sync", "blocking_copy", "memory"])
def test_no_graph_where_the_host_waits_inside_a_step(role: str) -> None:
    """Synchronizations, copies of pageable memory and frees cannot be in a graph; a single one can end each graph."""
    assert predict(analyze(steps([role])), ["graph"]).change == "graph"
    with pytest.raises(RequestError, match=r"waits for the GPU inside each iteration \(3 waits between its kernels\)"):
        predict(analyze(steps([role] * 3)), ["graph"])


def test_no_graph_where_counts_or_shapes_of_launches_change() -> None:
    changing = steps()
    rows = np.arange(len(changing.operations))
    # Every third step has another grid.
    shape = pl.Series("shape", np.where(rows // 20 % 3 == 2, 2, 1), changing.operations["shape"].dtype)
    shapes = replace(changing, operations=changing.operations.with_columns(shape))
    for trace in (steps(kernels=(20, 21, 19)), shapes):
        with pytest.raises(RequestError, match="kernels or their grids change from iteration to iteration"):
            predict(analyze(trace), ["graph"])


def in_pytorch(trace: Trace) -> Trace:
    """Return the trace as that of a training."""
    return replace(trace, program=Program("pytorch", ("pytorch",), training=True, python=True))


def changes_of(trace: Trace) -> Changes:
    changes = changes_of_run(analyze(trace))
    assert changes is not None
    return changes


def alone(changes: Changes, name: str) -> Prediction:
    prediction = changes.prediction(name)
    assert isinstance(prediction, Prediction)
    return prediction


def test_copies_and_a_loader_in_balance_gain_at_once() -> None:
    """Hand-made: the host pauses for 400 µs before each batch, whose pageable copy holds it for 300 µs."""
    trace = in_pytorch(loop(400 * US, memory="pageable", rest=0, copy=300 * US))
    changes = changes_of(trace)
    both = changes.with_loader
    assert both is not None and both.change == "pin+load"
    assert both.title == "Pin host memory, and hide data loading"
    now = changes.model.measured
    for name in ("pin", "load"):
        assert both.iteration_ns < alone(changes, name).iteration_ns
        assert alone(changes, name).high_ns >= now
        assert "alone it may gain nothing" in alone(changes, name).note
    assert both.high_ns < now and "alone it" not in both.note
    assert changes.each_alone()[0][0] is both
    answer = analyze(trace).answer
    assert answer.change == both.change and answer.gain.ns == now - both.iteration_ns
    assert "Pinned host memory and batches prepared ahead would take" in answer.text


def test_copies_of_a_loop_that_does_not_wait_gain_alone() -> None:
    """Hand-made: without a pause there is no loader, and without pageable copies hidden loading gains by itself."""
    ready = changes_of(in_pytorch(loop(5 * US, memory="pageable", rest=0)))
    assert not ready.model.waits_for_loader and ready.with_loader is None
    assert alone(ready, "pin").high_ns < 1.2 * ready.model.measured and not alone(ready, "pin").note.count("loader")
    pinned = changes_of(in_pytorch(loop(400 * US)))
    assert pinned.model.waits_for_loader
    assert alone(pinned, "load").high_ns < pinned.model.measured


def made_prediction(name: str, part: float, effort: str, width: float = 0.1) -> Prediction:
    time = int(220 * US * part)
    low, high = int(time * (1 - width)), int(time * (1 + width))
    return Prediction(name, name, time, low, high, effort, "", "", {})


def test_of_two_changes_that_gain_alike_the_cheaper_or_the_surer_one_comes_first() -> None:
    made = changes_of(steps())
    measured = made.model.measured

    def order(*predictions: Prediction) -> list[str]:
        known = Changes(made.analysis, made.model, {each.change: each for each in predictions})
        return [each.change for each in known.alternatives(predictions[0].change)]

    assert measured == pytest.approx(200 * US, rel=0.1)
    half, cheap = made_prediction("bf16", 0.4, "a few lines"), made_prediction("tf32", 0.45, "one line")
    assert order(half, cheap) == order(cheap, half) == ["tf32", "bf16"]
    assert order(half, made_prediction("tf32", 0.7, "one line")) == []
    assert order(half, made_prediction("tf32", 0.45, "one line", width=1.2)) == []  # it may lose
    assert order(half) == order(half, made_prediction("compile", 0.4, "one line")) == []
    sure, wide = (made_prediction(name, 0.5, "one line", width) for name, width in (("graph", 0.1), ("compile", 0.4)))
    assert order(wide, sure) == ["graph", "compile"]
    assert choice_words(cheap, half) == ("TF32 or bfloat16", "TF32 first: one line")
    assert choice_words(sure, wide) == (
        "a CUDA graph or compiling",
        "a CUDA graph first: its range is narrower",
    )


def test_answer_names_both_alternatives_and_which_to_try_first() -> None:
    analysis = analyze(in_pytorch(loop(400 * US, memory="pageable", rest=0, copy=300 * US)))
    first = replace(
        analysis.findings[0], effect="TF32 or bfloat16", choice="TF32 first: one line", choice_ns=(200 * US, 300 * US)
    )
    text = with_answer(replace(analysis, findings=(first,))).answer.text
    assert text.endswith("TF32 or bfloat16 would take a step to 200 to 300 µs; try TF32 first: one line.")
