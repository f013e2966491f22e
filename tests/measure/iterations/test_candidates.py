"""Tests of the ranges that qualify as iterations, on made traces."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl
import pytest

from tests.made_trace import made_trace
from tests.measure.iterations.whole_trace import measure_iterations
from traceview.measure.iterations.candidates import repeating_ranges
from traceview.measure.nvtx import phase_names
from traceview.model.analysis import Iterations
from traceview.model.trace import Trace

Spans = Sequence[tuple[int, int, str]]


def made(ranges: Spans, launches: Sequence[int], length: int = 5) -> Trace:
    """Return a trace with these ranges on one thread, and a launch of a kernel of this length at each moment."""
    return made_trace(
        [(at + 1, at + 1 + length, "compute", 0, index) for index, at in enumerate(launches)],
        [(at, at + 1, "api", 0) for at in launches],
        [(*span, 0) for span in ranges],
    )


def name_of(trace: Trace) -> str | None:
    found = measure_iterations(trace)
    return found.range if isinstance(found, Iterations) and found.source == "range" else None


def spans(name: str, count: int, length: int = 90, start: int = 0) -> list[tuple[int, int, str]]:
    return [(start + 100 * at, start + 100 * at + length, name.replace("#", str(at))) for at in range(count)]


def test_ranges_that_launch_work_are_iterations() -> None:
    found = measure_iterations(made(spans("step #", 10), range(10, 1010, 100)))
    assert isinstance(found, Iterations)
    assert (found.range, found.source, found.count, found.confidence) == ("step #", "range", 10, 1.0)
    assert found.time_ns == 100


def test_longer_ranges_without_work_do_not_win() -> None:
    waits = [(start + 30, start + 99, "wait") for start in range(0, 1000, 100)]
    assert name_of(made([*spans("step #", 10, 20), *waits], range(10, 1010, 100))) == "step #"


@pytest.mark.parametrize(("idle", "name"), [(1, "step #"), (2, None)])
def test_nine_of_ten_ranges_must_launch_work(idle: int, name: str | None) -> None:
    assert name_of(made(spans("step #", 10), range(10, 1010 - 100 * idle, 100))) == name


@pytest.mark.parametrize(("outside", "name"), [(40, "step #"), (41, None)])
def test_ranges_must_launch_a_fifth_of_the_work(outside: int, name: str | None) -> None:
    launches = [*range(10, 1010, 100), *range(2000, 2000 + 10 * outside, 10)]
    assert name_of(made(spans("step #", 10), launches)) == name


@pytest.mark.parametrize(("steps", "name"), [(10, "step #"), (9, "step #")])
def test_epochs_contain_iterations(steps: int, name: str) -> None:
    ranges: list[tuple[int, int, str]] = []
    for epoch in range(3):
        ranges.append((2000 * epoch, 2000 * epoch + 1990, f"epoch {epoch}"))
        ranges += [(2000 * epoch + 100 * at, 2000 * epoch + 100 * at + 90, f"step {at}") for at in range(steps)]
    launches = [start + 10 for start, _, text in ranges if text.startswith("step")]
    trace = made(ranges, launches)
    assert name_of(trace) == name
    found = measure_iterations(trace)
    assert isinstance(found, Iterations)
    assert {"epoch #", "step #"} == {found.range, *(other.name for other in found.candidates)}


def test_validation_is_another_phase() -> None:
    trace = made([*spans("step #", 10), *spans("validate", 3, start=2000)], [*range(10, 1010, 100), 2010, 2110, 2210])
    found = measure_iterations(trace)
    assert isinstance(found, Iterations)
    assert found.range == "step #"
    assert [(other.name, other.count) for other in found.candidates] == [("validate", 3)]


@pytest.mark.parametrize(
    "name",
    [
        "aten::to, op_id = #",
        "MPI_Send",
        "ncclAllReduce",
        "Optimizer.step#AdamW.step",
        "gc generation #",
        "myelinGraphLoadPersistent",
        "enumerate(DataLoader)#_SingleProcess.__next__",
        "XlaModule:#hlo_module=jit_step,program_id=7#",
    ],
)
def test_ranges_of_libraries_are_no_iterations(name: str) -> None:
    assert name_of(made(spans(name, 10), range(10, 1010, 100))) is None


def test_compiled_graphs_are_no_iterations() -> None:
    ranges = [(start, end, "## Call CompiledFxGraph f4xq") for start, end, _ in spans("", 10)]
    assert name_of(made(ranges, range(10, 1010, 100))) is None


@pytest.mark.parametrize(
    ("names", "phases"),
    [
        (["iteration 7", "iteration 8", "iteration 9"], ["iteration #"] * 3),
        (["iteration -1", "iteration 0", "iteration 1"], ["iteration #"] * 3),
        (["layer 0", "layer 1", "layer 0", "layer 1"], ["layer 0", "layer 1", "layer 0", "layer 1"]),
        (["step 0", "step 1", "step 2"] * 4, ["step #"] * 12),
        (["epoch 0 step 1", "epoch 0 step 2", "epoch 1 step 1", "epoch 1 step 2"], ["epoch # step #"] * 4),
        (["2D_backbone"] * 3, ["2D_backbone"] * 3),
        (["h2d", "d2h", "h2d", "d2h"], ["h2d", "d2h", "h2d", "d2h"]),
    ],
)
def test_numbers_fold_where_they_count(names: list[str], phases: list[str]) -> None:
    column = pl.Series(names, dtype=pl.Enum(sorted(set(names))))
    assert phase_names(pl.DataFrame({"name": column, "thread": [0] * len(names)})).to_list() == phases


def test_work_launched_after_the_last_range_is_not_its_own() -> None:
    steps = spans("step #", 10)
    work = [(at + 1, at + 81, "compute", 0, index) for index, at in enumerate([*range(10, 1010, 100), 1500])]
    calls = [(at, at + 1, "api", 0) for at in [*range(10, 1010, 100), 1500]]
    found = measure_iterations(made_trace(work, calls, [(*span, 0) for span in steps]))
    assert isinstance(found, Iterations)
    assert (found.time_ns, found.steady.end, found.count) == (100, 990, 10)


def test_ranges_of_a_thread_that_launches_nothing_lose() -> None:
    """A data loader's thread has the most range time; the launches of autograd's thread have no range."""
    steps = [(*span, 0) for span in spans("step #", 10, 60)]
    loader = [(100 * at, 100 * at + 99, "run pipeline", 1) for at in range(10)]
    executor = [(start, end, "[DALI][Executor] RunCPU", thread) for start, end, _, thread in loader]
    calls = [
        (100 * at + 10 * (1 + thread), 100 * at + 10 * (1 + thread) + 1, "api", thread)
        for at in range(10)
        for thread in (0, 2)
    ]
    work = [(start + 1, start + 6, "compute", 0, index) for index, (start, *_) in enumerate(calls)]
    for others in (loader, executor):
        found = measure_iterations(made_trace(work, calls, [*steps, *others]))
        assert isinstance(found, Iterations) and found.range == "step #"


def test_two_steps_of_the_profiler_are_iterations() -> None:
    ranges = [(2000 * at, 2000 * at + 1990, f"ProfilerStep#{at + 3}") for at in range(2)]
    assert name_of(made(ranges, [500, 2500])) == "ProfilerStep#"


def test_steps_by_name_contain_layers() -> None:
    ranges = [(2000 * at, 2000 * at + 1990, f"ProfilerStep#{at}") for at in range(3)]
    ranges += [
        (2000 * at + 150 * layer, 2000 * at + 150 * layer + 140, "attn(B)") for at in range(3) for layer in range(12)
    ]
    launches = [start + 10 for start, _, name in ranges if name == "attn(B)"]
    assert name_of(made(ranges, launches)) == "ProfilerStep#"


@pytest.mark.parametrize(("names", "shape"), [(["3D_backbone"], "3D_backbone"), (["step1", "step2"], "step#")])
def test_number_that_is_the_same_everywhere_stays(names: list[str], shape: str) -> None:
    ranges = [(100 * at, 100 * at + 90, names[at % len(names)]) for at in range(8)]
    found = repeating_ranges(made(ranges, []).ranges.with_row_index("row"))
    assert found is not None and found.name == shape
