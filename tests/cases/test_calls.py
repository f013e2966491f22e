"""Calls that block in the middle of a loop."""

from __future__ import annotations

from tests.cases.made import analyzed_case


def test_allocation_of_another_thread_is_the_cause_of_a_late_launch() -> None:
    analysis = analyzed_case("nsys", "host_alloc_blocks_launch")
    base = analyzed_case("nsys", "base_dual")
    more = analysis.devices[0].gaps.causes["memory"] - base.devices[0].gaps.causes["memory"]
    assert round(more / 1e6) == 100
    (finding,) = (each for each in analysis.findings if each.id == "allocation")
    assert "1 cudaHostAlloc of another thread" in finding.title and round(finding.cost_ns / 1e6) == 100
    assert all(each.cost_ns < 1e6 for each in analysis.findings if each.id == "start_up")
