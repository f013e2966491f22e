"""Tests of stalls, on a finding of a real capture with made places."""

from __future__ import annotations

from dataclasses import replace

from tests.captures import analyzed, sample, shared
from traceview.model.analysis import Iterations
from traceview.model.findings import Place
from traceview.pricing.describe import with_stall

MS = 1_000_000


def test_one_iteration_with_a_tenth_of_the_cost_is_named() -> None:
    analysis = analyzed(sample("dual.sqlite"))
    iterations, finding = analysis.iterations, analysis.findings[0]
    assert isinstance(iterations, Iterations) and iterations.counted == 20
    start = iterations.per_iteration[7].start_ns
    cost = 100 * MS
    stalled = replace(
        finding,
        claims="waiting",
        cost_ns=cost,
        cost_per_iteration_ns=cost // 20,
        evidence=(Place("a wait", start + 10, start + 62 * MS, cost_ns=62 * MS),),
    )
    found = with_stall(stalled, iterations)
    assert found.title == f"{finding.title}; 62.0 ms in one iteration"
    assert found.advice.startswith("`iteration 7` stalls: the 19 other iterations cost 2.00 ms each. ")


def test_equal_iterations_are_no_stall() -> None:
    analysis = analyzed(sample("dual.sqlite"))
    assert not any("stalls" in finding.advice for finding in analysis.findings)


def test_pause_between_two_loops_is_no_stall() -> None:
    """Of 22.5 ms, which one pause takes, no iteration has any."""
    analysis = analyzed(shared("public/dbms2.sqlite.xz"))
    (wait,) = [finding for finding in analysis.findings if "between two loops" in finding.title]
    assert (wait.id, wait.loss) == ("host_bound", "the pause between two loops")
    assert wait.effect == "a shorter pause between the loops"
    assert "`iteration 9`" not in wait.title
