"""Tests of OpenACC: a program on an H200 (samples/openacc), exported by two versions of nsys, and OpenACC events.

The events are hand-made, because nsys records them only for programs of NVIDIA's compilers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.build_export import Call, Kernel, Nvtx, build_export
from tests.captures import sample
from tests.read.test_formats import figures
from tests.test_against_oracle import compare
from tests.test_samples import texts
from traceview.captures.info import describe
from traceview.captures.redact import redact
from traceview.read import raw

NAMES = ["openacc/heat_as_2023.4.sqlite", "openacc/heat_as_2024.2.sqlite"]
STEPS, SWEEPS, PLATE = 12, 10, 4 << 20  # of heat.c; the plate in bytes


def test_export_versions_have_the_same_figures() -> None:
    older, newer = (figures(sample(name)) for name in NAMES)
    assert older.pop("report")["schema_version"] == "3.7.2"
    assert newer.pop("report")["schema_version"] == "3.11.1"
    # The versions differ in the drivers that they support, and a note names them.
    ids = [note["id"] for note in newer["notes"]]
    assert ids.count("driver_too_new") == 1
    del newer["notes"][ids.index("driver_too_new")]
    assert older == newer


@pytest.mark.parametrize("name", NAMES)
def test_figures_equal_the_oracle(name: str) -> None:
    compare(sample(name))


def test_constructs_belong_to_enclosing_ranges() -> None:
    found = figures(sample(NAMES[0]))
    kernels = {one["name"]: one["kernel_count"] for one in found["nvtx"]}
    assert kernels == {"step": STEPS * (SWEEPS + 2), "load": 0, "sweeps": STEPS * (SWEEPS + 1), "sum": STEPS}
    (device,) = found["devices"]
    copied = {(one["kind"], one["memory"]): one["bytes"] for one in device["copies"]}
    # Two plates at the start and the source of each step; kernels' arguments are copied too.
    assert (STEPS + 2) * PLATE <= copied["h2d", "pageable"] < (STEPS + 2) * PLATE + (1 << 16)
    assert found["iterations"]["range"] == "step"


@pytest.mark.parametrize("name", NAMES)
def test_samples_name_no_paths(name: str) -> None:
    assert not [text for text in texts(sample(name)) if text.startswith("/") or "/tmp" in text or "=" in text]


LAUNCH, DATA = raw.OPENACC[:2]
THREAD = 10 << 24 | 11
EVENTS = (
    (LAUNCH, 100, 200, "Compute Construct"),
    (LAUNCH, 110, 190, "Enqueue Launch"),
    (LAUNCH, 300, 400, "Compute Construct"),
    (LAUNCH, 500, 600, "Compute Construct"),
    (DATA, 20, 90, "Enter Data"),
    (DATA, 30, 30, "Alloc"),
)


def with_events(path: Path, **more: Any) -> Path:
    made = [
        f'CREATE TABLE {table} ("start" INTEGER, "end" INTEGER, nameId INTEGER, globalTid INTEGER, srcFile INTEGER)'
        for table in (LAUNCH, DATA)
    ]
    named = dict.fromkeys(name for *_, name in EVENTS)
    texts = [f"INSERT INTO StringIds VALUES ({900 + at}, '{name}')" for at, name in enumerate((*named, "/home/me/x.c"))]
    rows = [
        f"INSERT INTO {table} VALUES ({start}, {end}, {900 + list(named).index(name)}, {THREAD}, {900 + len(named)})"
        for table, start, end, name in EVENTS
    ]
    starts = more.pop("kernels", [250, 420])
    kernels = [Kernel(start=start, end=start + 30, correlation=at) for at, start in enumerate(starts, 1)]
    calls = [Call(start=200 * at - 80, end=200 * at - 70, correlation=at) for at in range(1, len(starts) + 1)]
    return build_export(path, kernels=kernels, api=calls, statements=[*made, *texts, *rows], **more)


def test_openacc_events_are_ranges_with_gpu_work(tmp_path: Path) -> None:
    path = with_events(tmp_path / "report.sqlite")
    found = {one["name"]: one for one in figures(path)["nvtx"]}
    assert {one["domain"] for one in found.values()} == {"OpenACC"}
    assert {name: (one["count"], one["host_ns"], one["gpu_busy_ns"]) for name, one in found.items()} == {
        "Compute Construct": (3, 300, 60),
        "Enqueue Launch": (1, 80, 30),
        "Enter Data": (1, 70, 0),
    }
    assert dict(describe(path).ranges) == {"Compute Construct": 3, "Enqueue Launch": 1, "Enter Data": 1}


def test_openacc_ranges_are_never_iterations(tmp_path: Path) -> None:
    assert figures(with_events(tmp_path / "report.sqlite"))["iterations"]["range"] is None
    steps = [Nvtx(start=start, end=start + 150, text="step") for start in (90, 290, 490)]
    path = with_events(tmp_path / "report.sqlite", kernels=[250, 420, 620], nvtx=steps)
    assert figures(path)["iterations"]["range"] == "step"


def test_redacted_copy_has_events_without_paths(tmp_path: Path) -> None:
    path, copy = with_events(tmp_path / "report.sqlite"), tmp_path / "copy.sqlite"
    redact(path, copy)
    assert figures(copy)["nvtx"] == figures(path)["nvtx"]
    assert not [text for text in texts(copy) if "/home" in text]
