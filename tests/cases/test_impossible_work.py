"""Durations that cannot be, and rows that are there twice: figures are those of the capture without them."""

from __future__ import annotations

import pytest

from tests.cases.made import analyzed_case, compute_percent, iterations, step_ms
from traceview.model.analysis import Analysis
from traceview.report.analysis.terminal import render_brief


def _figures(analysis: Analysis) -> tuple[object, ...]:
    (device,) = analysis.devices
    copies = sum(row.count for row in device.tables["copies"].rows if row.kind == "h2d")
    first = analysis.findings[0]
    found = first.id, round(100 * first.gain.fraction)
    return (
        iterations(analysis).counted,
        step_ms(analysis),
        compute_percent(analysis),
        device.kernel_count,
        copies,
        found,
    )


@pytest.mark.parametrize(
    ("kind", "name", "base", "mended"),
    [
        ("torch", "dur_overflow", "base_copy", "3 of 3,210 GPU operations (0.1%) end long after the next operation"),
        ("torch", "dur_overflow_one_s", "base_copy", "1 of 3,210 GPU operations (<0.1%) ends long after"),
        ("torch", "dur_overflow_nosync", "base_nosync", "3 of 3,210 GPU operations (0.1%) end long after"),
        ("torch", "duplicates", "base_copy", "642 rows of GPU work are in the capture twice"),
        ("nsys", "dur_overflow", "base_serial", "end long after the next operation of the stream begins"),
    ],
)
def test_figures_are_those_of_the_base_with_a_note(kind: str, name: str, base: str, mended: str) -> None:
    """The steps, compute, kernels, copies and the first gain; the summary says what was mended."""
    made, intact = analyzed_case(kind, name), analyzed_case(kind, base)
    assert _figures(made) == _figures(intact)
    (note,) = [note for note in made.notes if note.id in ("cut_work", "doubled_work")]
    assert mended in note.text
    assert " ".join(render_brief(made).split()).count(mended) == 1
    assert not any(note.id == "clocks_disagree" for note in made.notes)


def test_base_figures() -> None:
    """The figures that the cases must have."""
    torch, nsys = analyzed_case("torch", "base_copy"), analyzed_case("nsys", "base_serial")
    assert _figures(torch) == (10, 29.6, 33.7, 2790, 20, ("pageable_copies", 50))
    assert (step_ms(nsys), compute_percent(nsys)) == (26.2, 37.5)
