"""An OpenACC program on an H200 (samples/openacc), one report in the exports of two versions of nsys."""

from __future__ import annotations

import pytest

from tests.captures import sample
from tests.read.test_formats import figures
from tests.test_against_oracle import compare
from tests.test_samples import texts

NAMES = ["openacc/heat_as_2023.4.sqlite", "openacc/heat_as_2024.2.sqlite"]
STEPS, SWEEPS, PLATE = 12, 10, 4 << 20  # of heat.c; the plate in bytes


def test_the_same_report_in_two_versions_of_the_export_has_the_same_figures() -> None:
    older, newer = (figures(sample(name)) for name in NAMES)
    assert older.pop("report")["schema_version"] == "3.7.2"
    assert newer.pop("report")["schema_version"] == "3.11.1"
    assert older == newer


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_equals_the_independent_computation(name: str) -> None:
    compare(sample(name))


def test_constructs_are_kernels_and_copies_in_the_ranges_around_them() -> None:
    found = figures(sample(NAMES[0]))
    kernels = {one["name"]: one["kernel_count"] for one in found["nvtx"]}
    assert kernels == {"step": STEPS * (SWEEPS + 2), "load": 0, "sweeps": STEPS * (SWEEPS + 1), "sum": STEPS}
    (device,) = found["devices"]
    copied = {(one["kind"], one["memory"]): one["bytes"] for one in device["copies"]}
    # Two plates at the start and the source of each step; kernels' arguments are copied too.
    assert (STEPS + 2) * PLATE <= copied["h2d", "pageable"] < (STEPS + 2) * PLATE + (1 << 16)
    assert found["iterations"]["range"] == "step"


@pytest.mark.parametrize("name", NAMES)
def test_the_samples_say_nothing_of_the_machine_that_made_them(name: str) -> None:
    assert not [text for text in texts(sample(name)) if text.startswith("/") or "/tmp" in text or "=" in text]
