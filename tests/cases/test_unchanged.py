"""Cases that look damaged and are not: their figures are those of the capture that they are made from."""

from __future__ import annotations

import pytest

from tests.cases.made import analyzed_case, compute_percent, iterations, step_ms


@pytest.mark.parametrize(
    ("kind", "name", "base"),
    [
        ("nsys", "launch_blocking", "base_serial"),
        ("nsys", "unknown_copy_kinds", "base_dual"),
        ("nsys", "nvtx_null_end", "base_dual"),
        ("nsys", "nvtx_heavy", "base_dual"),
        ("torch", "ts_strings", "base_copy"),
        ("torch", "ts_microsecond_abs_2026", "base_copy"),
        ("torch", "ns_display", "base_copy"),
        ("torch", "gpu_pid_not_number", "base_copy"),
        ("torch", "launch_names", "base_copy"),
        ("torch", "graph_annotations", "base_copy"),
    ],
)
def test_figures_are_those_of_the_base(kind: str, name: str, base: str) -> None:
    """The iterations, their time, and the share of compute."""
    made, intact = analyzed_case(kind, name), analyzed_case(kind, base)
    assert iterations(made).range == iterations(intact).range
    assert iterations(made).counted == iterations(intact).counted
    assert (step_ms(made), compute_percent(made)) == (step_ms(intact), compute_percent(intact))
    if iterations(made).unprofiled == iterations(intact).unprofiled:  # gains are of it
        assert [finding.id for finding in made.findings[:1]] == [finding.id for finding in intact.findings[:1]]
    else:
        assert name in ("nvtx_heavy", "launch_blocking")


def test_kernels_that_overlap_by_programmatic_dependent_launch_are_whole() -> None:
    """Each begins up to 3 us before the previous one of its stream ends."""
    made, intact = analyzed_case("nsys", "pdl"), analyzed_case("nsys", "base_dual")
    assert step_ms(made) == step_ms(intact)
    assert compute_percent(made) == pytest.approx(compute_percent(intact), abs=2)  # gaps before kernels close
