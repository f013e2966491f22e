"""Tests of iterations without ranges: made launch sequences with a known period, and captures without their ranges."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.captures import H200, PUBLIC, SAMPLES, analyzed, sample, shared
from tests.made_trace import made_trace
from tests.measure.iterations.whole_trace import measure_iterations
from traceview.measure.iterations.launches import LaunchSequence, launch_sequence
from traceview.measure.iterations.periods import Period, _content, find_loops, find_periods
from traceview.model.analysis import Iterations, NotMeasured
from traceview.model.trace import Trace
from traceview.pipeline import open_trace
from traceview.report.screen import confidence_word

US = 1000
LONG_PAUSE = 50 * US


def made_sequence(symbols: list[int] | NDArray[np.int64], starts: list[int] | None = None) -> LaunchSequence:
    """Return a sequence of kernels of 5 µs, a launch every 10 µs and a pause before each of `starts`."""
    count = len(symbols)
    pauses = np.zeros(count, np.int64)
    pauses[starts or []] = LONG_PAUSE
    begin = np.arange(count, dtype=np.int64) * 10 * US + np.cumsum(pauses)
    none = np.zeros(count, np.bool_)
    return LaunchSequence(
        symbol=np.array(symbols, np.int64),
        begin=begin,
        end=begin + 2 * US,
        gpu_ns=np.full(count, 5 * US),
        computes=np.ones(count, np.bool_),
        graph=none,
        talks=none,
        name=np.zeros(count, np.int64),
        stream=np.zeros(count, np.int16),
        thread=np.zeros(count, np.int16),
        names=("kernel",),
    )


def period_of(symbols: list[int], starts: list[int] | None = None) -> Period | None:
    return find_periods(made_sequence(symbols, starts))[0]


def layered_step(layers: int) -> list[int]:
    """Return the launches of a step: embedding, layers, loss, layers backward, optimizer."""
    forward, backward = [1, 2, 3, 4, 5, 6], [11, 12, 13, 14, 15, 16, 17, 18]
    return [20, 21, *forward * layers, 30, 31, *backward * layers, *range(40, 52)]


@settings(max_examples=30, deadline=None)
@given(st.integers(12, 40), st.integers(4, 24), st.integers(0, 2**32 - 1))
def test_steps_of_padded_batches_are_found(steps: int, layers: int, seed: int) -> None:
    """With the padded length of a batch, other variants of some kernels run in all layers."""
    random = np.random.default_rng(seed)
    symbols, starts = [], []
    for _ in range(steps):
        variant = {place: place + 100 * int(random.integers(3)) for place in (2, 12, 15)}
        starts.append(len(symbols))
        symbols += [variant.get(place, place) for place in layered_step(layers)]
    period = period_of(symbols, starts)
    assert period is not None
    assert period.first.tolist() == starts


@settings(max_examples=80, deadline=None)
@given(
    st.integers(5, 40),
    st.integers(1, 12),
    st.integers(0, 60),
    st.lists(st.tuples(st.integers(1, 3), st.integers(0, 300)), max_size=4),
)
def test_steps_are_found_after_warm_up_and_around_evaluation(
    steps: int, layers: int, warm_up: int, evaluations: list[tuple[int, int]]
) -> None:
    step, forward = layered_step(layers), [20, 21, *[1, 2, 3, 4, 5, 6] * layers, 30, 99]
    after = {place % (steps - 1): batches for batches, place in evaluations[: steps // 5]}
    symbols, starts = [200 + at for at in range(warm_up)], []
    for index in range(steps):
        starts.append(len(symbols))
        symbols += [*step, *forward * after.get(index, 0)]
    period = period_of(symbols, starts)
    assert period is not None
    assert period.first.tolist() == starts


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 40), st.integers(2, 8), st.integers(0, 2**32 - 1))
def test_steps_of_varying_length_are_found(steps: int, layers: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    symbols: list[int] = []
    starts = []
    for _ in range(steps):
        starts.append(len(symbols))
        step = layered_step(layers)
        for place in sorted(random.integers(1, len(step), int(random.integers(0, 4))).tolist(), reverse=True):
            step[place:place] = [int(random.integers(300, 310))]
        symbols += step
    period = period_of(symbols, starts)
    assert period is not None
    assert len(period.first) == len(starts)
    # An inserted launch may hide where a step begins.
    assert np.mean(np.abs(period.first - starts) <= 3) >= 0.8


@pytest.mark.parametrize("launches", [1, 2, 5, 48])
def test_time_steps_are_found(launches: int) -> None:
    period = period_of(list(range(launches)) * 100)
    assert period is not None
    assert len(period.first) == 100
    assert set(np.diff(period.first)) == {launches}


@pytest.mark.parametrize(("own", "steps"), [([200], 320), ([200, 201, 202, 203], 40)])
def test_long_layers_do_not_win_over_a_step_with_few_launches_of_its_own(own: list[int], steps: int) -> None:
    layer = [1, *[2] * 32, 3, *[4] * 32, 5]
    period = period_of([*own[:1], *layer * 8, *own[1:]] * 40)
    assert period is not None and len(period.first) == steps


@pytest.mark.parametrize("layers", [4, 12, 32, 80])
def test_layers_do_not_win_over_tokens(layers: int) -> None:
    layer, head = [1, 2, 3, 4, 5, 2, 3, 6, 7, 8], [20, 21, 22, 23, 24]
    period = period_of([*layer * layers, *head] * 24)
    assert period is not None
    assert len(period.first) == 24


@pytest.mark.parametrize("head", [[1, 2, 3, 30, 31], [1, 2, 3, 4, 5, 6, 7, 8, 30]])
def test_head_that_looks_like_a_shorter_layer_does_not_hide_the_token(head: list[int]) -> None:
    period = period_of([*list(range(1, 18)) * 24, *head] * 30)
    assert period is not None
    assert len(period.first) == 30


def test_halves_of_a_step_do_not_win_over_the_step() -> None:
    products = [1, 2] * 40
    period = period_of([20, *products, 21, 22, 20, *products, 23, 24, 25, 26, 27, 28] * 30)
    assert period is not None
    assert len(period.first) == 30


def test_equal_halves_are_iterations() -> None:
    period = period_of([20, *[1, 2] * 40, 21, 22] * 60)
    assert period is not None
    assert len(period.first) == 60


def test_epochs_do_not_win_over_steps_that_talk_to_the_host() -> None:
    step = layered_step(2)
    epoch = [*step * 20, *[1, 2, 3, 4, 5, 6] * 5]
    sequence = made_sequence(epoch * 4)
    sequence.talks[np.flatnonzero(sequence.symbol == 20)] = True
    period, levels = find_periods(sequence)
    assert period is not None
    assert len(period.first) == 80
    assert len(epoch) in {level.length for level in levels}


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 8), st.integers(12, 60), st.integers(3, 20), st.booleans())
def test_steps_win_over_groups_of_steps_between_outputs(launches: int, steps: int, outputs: int, talks: bool) -> None:
    """Steps win if each talks to the host, or if what runs between them takes little time; layers do neither."""
    step, own = list(range(1, launches + 1)), [20, 21, 22, 23]
    sequence = made_sequence([*step * steps, *own] * outputs)
    output = sequence.symbol >= 20
    sequence.talks[output] = True
    layers, _ = find_periods(sequence)
    assert layers is not None and len(layers.first) == outputs
    if talks:
        sequence.talks[sequence.symbol == 1] = True
    else:
        sequence.gpu_ns[output] = 100
    period, _ = find_periods(sequence)
    assert period is not None and abs(len(period.first) - steps * outputs) <= 1


@pytest.mark.parametrize("every", [50, 100])
def test_outputs_of_a_second_loop_are_none_of_the_first(every: int) -> None:
    """Equilibration and production of 300 steps: outputs of the second launch what each step of the first does."""
    step, own, production = [1, 2, 1], [3, 3, 4, 5], [1, 2, 1]
    output = [*production, 3, 3, 4, 3, 3, 4]
    first, second = [*step, *own] * 300, [*output, *production * (every - 1)] * (300 // every)
    sequence = made_sequence([8, 2, *first, *second])
    sequence.talks[np.isin(sequence.symbol, [1, 2, 4])] = True
    period, _ = find_loops(sequence)
    assert period is not None and period.first_loop is not None
    assert abs(period.first_loop - 300) <= 1 and abs(len(period.first) - 600) <= 2 * 300 // every
    assert (np.diff(period.first) <= len(output) + len(own)).all()


def test_micro_batches_are_part_of_a_step() -> None:
    micro, optimizer = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], list(range(20, 28))
    period = period_of([*micro * 4, *optimizer] * 12)
    assert period is not None
    assert len(period.first) == 12


def test_interleaved_threads_do_not_hide_the_steps() -> None:
    random = np.random.default_rng(1)
    symbols: list[int] = []
    for _ in range(20):
        step = layered_step(6)
        for place in random.choice(len(step), 3, replace=False).tolist():
            step.insert(place, 500)  # another thread copies three batches at any moment
        symbols += step
    period = period_of(symbols)
    assert period is not None
    assert len(period.first) in (19, 20)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4000), st.integers(3, 200), st.integers(0, 2**32 - 1))
def test_random_launches_have_no_certain_period(count: int, kinds: int, seed: int) -> None:
    period = period_of(np.random.default_rng(seed).integers(0, kinds, count).tolist())
    assert period is None or confidence_word(period.confidence) == "low"


@pytest.mark.parametrize("symbols", [[], [1], [1, 2], list(range(500)), [1] * 2, [*range(100), *range(100)]])
def test_program_that_runs_once_has_no_period(symbols: list[int]) -> None:
    assert period_of(symbols) is None


def test_copies_alone_are_no_iterations() -> None:
    sequence = made_sequence([1] * 50)
    assert find_periods(replace(sequence, computes=np.zeros(50, np.bool_)))[0] is None


def test_copies_that_begin_as_steps_do_are_not_typical() -> None:
    """Ten uploads of weights, and four steps that upload their input and compute (`ddim` of round 16)."""
    step = [0, 1, 2, 3, 4]
    sequence = made_sequence([0] * 10 + step * 4)
    sequence = replace(sequence, computes=sequence.symbol != 0)
    first = np.array([*range(10), *range(10, 30, 5)])
    content = _content(sequence, first, np.append(first[1:], 30), len(step))
    assert content.tolist() == [0.2] * 10 + [1.0] * 4


def test_long_run_is_searched_from_its_middle() -> None:
    step = layered_step(12)
    period = period_of(step * 1200)
    assert period is not None
    assert len(period.first) in (1199, 1200)


def test_periods_are_iterations_of_the_capture() -> None:
    calls = [(100 * at, 100 * at + 10, "api", 0) for at in range(12)]
    work = [(100 * at + 20, 100 * at + 60, ("copy", "compute", "compute")[at % 3], 0, at) for at in range(12)]
    result = measure_iterations(made_trace(work, calls))
    assert isinstance(result, Iterations)
    assert (result.source, result.count, result.thread, result.process_id) == ("period", 4, 0, 1)
    assert result.time_ns == 300
    assert result.range == "period of 3 launches (compute)"
    assert [row.name for row in result.per_iteration] == ["iteration 0", "iteration 1", "iteration 2", "iteration 3"]
    assert all(row.end_ns == after.start_ns for row, after in pairwise(result.per_iteration))


def test_operations_without_launches_have_periods_too() -> None:
    work = [(100 * at, 100 * at + 60, ("copy", "compute", "compute")[at % 3], 0, None) for at in range(30)]
    result = measure_iterations(made_trace(work))
    assert isinstance(result, Iterations)
    assert (result.source, result.count, result.time_ns) == ("period", 10, 300)


def stripped(trace: Trace, process: int) -> Trace:
    own = trace.operations.filter(trace.operations["process"] == process)
    return replace(trace, ranges=trace.ranges.clear(), operations=own)


WITH_RANGES = [
    *("trainer/serial.sqlite", "trainer/pinned.sqlite", "trainer/prefetch.sqlite", "trainer/staged.sqlite"),
    *("trainer/ddp.sqlite", "trainer/graph.sqlite", "torch_profiler/serial.json.gz", "torch_profiler/graph.json.gz"),
    *("scenarios/p2p.sqlite", "scenarios/contexts.sqlite", "scenarios/graph_whole.sqlite", "mpi/heat.sqlite"),
    *("scenarios/graph_nodes.sqlite", "openacc/heat_as_2024.2.sqlite", "ranks/slowgpu_rank2.sqlite.xz"),
    "scenarios/green.sqlite",
]


def assert_agree(path: Path) -> None:
    trace = open_trace(path)
    by_range = measure_iterations(trace)
    assert isinstance(by_range, Iterations) and by_range.source == "range"
    by_launch = measure_iterations(stripped(trace, by_range.process_id))
    assert isinstance(by_launch, Iterations) and by_launch.source == "period"
    assert abs(by_launch.count - by_range.count) <= 1
    assert by_launch.time_ns == pytest.approx(by_range.time_ns, rel=0.02)


@pytest.mark.parametrize("name", WITH_RANGES)
def test_launches_give_the_iterations_of_the_ranges(name: str) -> None:
    assert_agree(sample(name))


@pytest.mark.parametrize("name", H200)
def test_launches_give_the_iterations_of_the_h200_ranges(name: str) -> None:
    assert_agree(shared(name))


def test_solver_without_ranges() -> None:
    found = analyzed(shared(PUBLIC[3])).iterations
    assert isinstance(found, Iterations)
    assert (found.source, found.count) == ("period", 1000)


def test_streams_show_the_rounds_of_a_loop_over_streams() -> None:
    trace = open_trace(SAMPLES / "scenarios" / "many_streams.sqlite")
    by_range = measure_iterations(trace)
    assert isinstance(by_range, Iterations)
    by_launch = measure_iterations(stripped(trace, by_range.process_id))
    assert isinstance(by_launch, Iterations)
    assert any(abs(other.time_ns / by_range.time_ns - 1) < 0.02 for other in by_launch.candidates)


def test_iteration_ends_where_the_next_begins() -> None:
    period, _ = find_periods(launch_sequence(open_trace(sample("dual.sqlite")), 1531))
    assert period is not None
    assert (period.end[:-1] == period.start[1:]).all()
    assert period.end[-1] > period.start[-1]


def test_occasional_check_is_part_of_an_iteration() -> None:
    period = period_of([*[1, 2] * 100, 3] * 12)
    assert period is not None
    assert len(period.first) in (1199, 1200)


@settings(max_examples=30, deadline=None)
@given(st.integers(5, 60), st.integers(2, 40), st.integers(0, 2**32 - 1))
def test_equal_launches_are_grouped_by_longer_pauses(groups: int, size: int, seed: int) -> None:
    sequence = made_sequence([1] * (groups * size), list(range(0, groups * size, size)))
    jitter = np.cumsum(np.random.default_rng(seed).integers(0, 5 * US, groups * size))
    period, _ = find_periods(replace(sequence, begin=sequence.begin + jitter, end=sequence.end + jitter))
    assert period is not None
    assert period.first.tolist() == list(range(0, groups * size, size))


@settings(max_examples=30, deadline=None)
@given(st.integers(30, 300), st.integers(0, 2**32 - 1))
def test_pauses_at_irregular_places_make_no_groups(count: int, seed: int) -> None:
    starts = np.flatnonzero(np.random.default_rng(seed).random(count) < 0.3).tolist()
    period = period_of([1] * count, starts)
    assert period is not None
    assert len(period.first) == count


@pytest.mark.parametrize(("training", "expected"), [(False, None), (None, 12), (True, 12)])
def test_layers_of_one_pass_are_no_iterations(training: bool | None, expected: int | None) -> None:
    sequence = made_sequence([50, 51, 52, *[1, 2, 3, 4, 2, 5] * 12, 53, 54])
    period, _ = find_periods(sequence, training)
    assert (None if period is None else len(period.first)) == expected


@pytest.mark.parametrize(("training", "expected"), [(True, None), (None, 24)])
def test_layers_of_a_training_step_are_no_iterations(training: bool | None, expected: int | None) -> None:
    """The layers of a backward repeat like those of the forward before it, with other kernels between the same ones."""
    forward, backward = [1, 2, 3, 4, 2, 5], [1, 2, 3, 14, 2, 15]
    period, _ = find_periods(made_sequence([*forward * 12, *backward * 12]), training)
    assert (None if period is None else len(period.first)) == expected


def test_kernels_of_one_loop_alone_are_no_step_of_a_training() -> None:
    forward, backward = [1, 2, 3, 4, 2, 5], [11, 12, 13, 14, 12, 15, 12]
    sequence = made_sequence([*forward * 12, *backward * 12])
    assert find_periods(sequence, training=True)[0] is None
    assert find_periods(sequence)[0] is not None


@pytest.mark.parametrize("copies", [True, False])
def test_passes_over_a_small_model_are_iterations(copies: bool) -> None:
    sequence = made_sequence([1, 2, 3, 4, 2, 5] * 12)
    sequence.talks[::6] = copies
    period, _ = find_periods(sequence, training=False)
    assert period is not None
    assert len(period.first) == 12


def test_passes_between_copies_of_input_and_result_are_iterations() -> None:
    """Each pass over a generator of images uploads one and reads one; its layers are equal."""
    one = [1, *[2, 3, 4] * 20, 5, 6]
    sequence = made_sequence(one * 8)
    sequence.talks[::] = np.arange(len(sequence.talks)) % len(one) == 0
    period, _ = find_periods(sequence, training=False)
    assert period is not None and len(period.first) == 8


def test_forward_pass_of_a_training_has_no_steps() -> None:
    sequence = made_sequence([1, 2, 3] * 17)
    for names, count in ((("flash_fwd_kernel", "gemm", "norm", "copy"), 0), (("flash_bwd_kernel", *"abc"), 17)):
        period, _ = find_loops(replace(sequence, names=names), training=True)
        assert (0 if period is None else len(period.first)) == count


def test_kernels_that_are_tried_before_the_loop_do_not_hide_it() -> None:
    random = np.random.default_rng(3)
    tried = [
        symbol for _ in range(60) for symbol in (1, 2, 3, *random.integers(10, 14, random.integers(1, 12)).tolist())
    ]
    period = period_of([*tried, *[1, 2, 3, 20, 21, 2, 3] * 40])
    assert period is not None
    assert len(period.first) == 40


def test_few_equal_launches_are_not_iterations() -> None:
    assert period_of([10, 11, 12, 13, 1, 1, 1, 1, 1, 1]) is None


def test_few_calls_in_a_small_part_of_the_run_are_no_iterations() -> None:
    """Calls of unit tests (`tinydl_tests` of round 12)."""

    def repeated(start: int, count: int) -> Trace:
        calls = [
            (0, 10, "memory", 0),
            *((start + 100 * at, start + 100 * at + 10, "api", 0) for at in range(3 * count)),
        ]
        work = [
            (start + 100 * at + 20, start + 100 * at + 60, ("copy", "compute", "compute")[at % 3], 0, at + 1)
            for at in range(3 * count)
        ]
        return made_trace(work, calls)

    assert isinstance(measure_iterations(repeated(100_000, 6)), NotMeasured)
    for start, count in ((1_000, 6), (100_000, 30)):
        assert isinstance(measure_iterations(repeated(start, count)), Iterations)


def test_another_kernel_in_each_repetition_is_no_loop() -> None:
    """Kernels of one template, each measured alone: all are called `Kernel` (`cutlass_large` of round 12)."""
    calls = [(100 * at, 100 * at + 10, "api", 0) for at in range(12)]
    work = [(100 * at + 20, 100 * at + 60, ("copy", "compute", "compute")[at % 3], 0, at) for at in range(12)]
    trace = made_trace(work, calls)
    kernel = trace.shapes[-1:]
    for full in ((0, 0, 0, 0), (0, 1, 2, 3)):
        shapes = pl.concat([trace.shapes[:1], *(kernel.with_columns(demangled=pl.lit(f"Kernel<{at}>")) for at in full)])
        shape = pl.Series("shape", [0 if at % 3 == 0 else at // 3 + 1 for at in range(12)], dtype=pl.UInt32)
        found = measure_iterations(replace(trace, shapes=shapes, operations=trace.operations.with_columns(shape)))
        assert isinstance(found, Iterations) == (len(set(full)) == 1)
