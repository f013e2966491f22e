"""Advice fits the program of the ranks, and names of ranks stay distinct."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.build_export import Call, Kernel, build_export
from tests.captures import sample
from tests.ranks.hand_made import MS, rank, report
from traceview.measure.iterations import IterationRanges
from traceview.model.analysis import CAUSES, Iterations
from traceview.model.fleet import Fleet, RankResult, Steps
from traceview.model.program import Program
from traceview.model.units import duration
from traceview.pipeline import analyze
from traceview.ranks.iterations import iteration_numbers
from traceview.ranks.measure_report import measure_report
from traceview.ranks.merge import merge
from traceview.ranks.rank_figures import build_advice, remedies
from traceview.report.fleet.terminal import headline, price, render

MPI_PROGRAM = Program("cuda", ("cuda", "mpi"))
CUDA, PYTORCH, MPI = map(remedies, (Program(), Program("pytorch"), MPI_PROGRAM))
PYTORCH_WORDS = ("DataLoader", ".item()", "pin_memory", "torch", "Python", "batch", "checkpoint")


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (Program("pytorch", ("pytorch",)), PYTORCH),
        (Program("pytorch", ("pytorch", "mpi")), PYTORCH),
        (Program("mpi", ("mpi",)), MPI),
        (Program("openacc", ("openacc", "mpi")), MPI),
        (Program("openacc", ("openacc",)), CUDA),
        (Program("julia", ("julia",)), CUDA),
        (Program(), CUDA),
    ],
)
def test_remedies_by_program(program: Program, expected: dict[str, str]) -> None:
    assert remedies(program) is expected


def test_only_pytorch_gets_advice_on_pytorch() -> None:
    for texts in (CUDA, MPI):
        assert [word for text in texts.values() for word in PYTORCH_WORDS if word in text] == []
    assert set(CUDA) == set(PYTORCH) == set(MPI) >= {*CAUSES, "compute", "copies"}


def idle_rank(own: int) -> RankResult:
    """A rank whose time is idle for the host."""
    ready = rank([], communicators=(), steps=range(5), own=own)
    assert isinstance(ready.steps, Steps)
    idle = np.zeros((len(CAUSES), 5), np.int64)
    idle[CAUSES.index("host")] = own
    return replace(ready, steps=replace(ready.steps, idle=idle, compute=np.zeros(5, np.int64)))


def fleet(program: Program) -> Fleet:
    names = [f"node{node}/weather_forecast_of_the_whole_continent_{node}_with_output.sqlite" for node in range(4)]
    owns = (10 * MS, 10 * MS, 20 * MS, 10 * MS)
    return merge(names, [report(idle_rank(own), program=program) for own in owns])


def test_mpi_ranks_get_mpi_advice() -> None:
    (advice,) = fleet(MPI_PROGRAM).advice
    assert advice.text == MPI["host"]
    assert any("collectives of MPI run on the host" in note.text for note in fleet(MPI_PROGRAM).notes)
    assert not any("MPI" in note.text for note in fleet(Program()).notes)


def test_host_that_launches_more_has_more_work() -> None:
    late = fleet(Program("pytorch"))
    (straggler,) = late.stragglers
    assert (straggler.part, straggler.share) == ("host", 1.0)  # 20 ms where the others take 10
    ranks = [replace(row, kernels=100 + (row.label == late.ranks[straggler.rank].label) * 60) for row in late.ranks]
    programs = [Program("pytorch")] * 4
    for more, expected in ((60, "more_kernels"), (50, "host"), (3, "host")):
        (advice,) = build_advice(ranks, [replace(straggler, more_kernels=more)], programs)
        assert advice.text.startswith(PYTORCH[expected])


def test_names_of_ranks_stay_distinct() -> None:
    lines = render(fleet(MPI_PROGRAM)).partition("slowest first")[2].splitlines()[2:6]
    assert len({line[2:24] for line in lines}) == 4


def test_price_for_one_rank_and_for_several() -> None:
    two = fleet(MPI_PROGRAM)
    (advice,) = two.advice
    grouped = replace(two, groups=(None,))  # type: ignore[arg-type]
    assert price(grouped, replace(advice, cost=0)) == "No other rank was seen to wait for it in a collective"
    advice = replace(advice, cost=6, each=2)
    assert price(grouped, replace(advice, waiting=1)).startswith("The other rank waits at least")
    assert price(grouped, replace(advice, waiting=3)).startswith("Each of 3 ranks waits at least")


def test_iteration_time_equals_that_of_analyze() -> None:
    path = sample("dual.sqlite")
    iterations = analyze(path).iterations
    result = measure_report(path, None, None)
    assert isinstance(iterations, Iterations)
    assert [found.steps.time for found in result.ranks if found.steps] == [iterations.time_ns]
    line = headline(merge(["dual.sqlite"], [result]))
    assert f"one takes {duration(iterations.time_ns)} on the slowest rank" in line


def test_notes_on_lost_work(tmp_path: Path) -> None:
    calls = [Call(100 * i, 100 * i + 9, correlation=i + 1) for i in range(8)]
    path = build_export(tmp_path / "made.sqlite", api=calls, kernels=[Kernel(10, 20)])
    assert any(text.startswith("7 of 8 kernel launches") for text in measure_report(path, None, None).notes)


def test_periods_are_counted() -> None:
    names = [f"period {number}" for number in range(3)]
    start = np.array([0, 10, 20])
    ranges = IterationRanges("iteration #", "range", 1.0, (), 0, 1, names, start, start + 10, 0, "none")
    assert iteration_numbers(ranges)[1]
    numbers, named = iteration_numbers(ranges._replace(source="period", names=[f"period {n}" for n in (4, 5, 6)]))
    assert (numbers.tolist(), named) == ([0, 1, 2], False)
