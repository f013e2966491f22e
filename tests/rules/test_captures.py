"""The finding that each real capture is known for comes out on top, and no ns is paid for twice."""

from __future__ import annotations

from functools import cache

import pytest

from tests.captures import ALL, H200, shared
from traceview.errors import NoGpuWorkError
from traceview.model.analysis import SEVERITIES, Analysis, Finding
from traceview.pipeline import analyze

TOP = {
    "h200_serial.sqlite": "pageable_copies",
    "h200_dual.sqlite": "launch_bound",
    "h200_quad.sqlite": "idle_stream",
    "h200_ddp2.sqlite": "communication_wait",
    "h200_cudagraph.sqlite": "whole_graphs",
}


@cache
def analyzed(name: str) -> Analysis:
    return analyze(shared(name))


def measured(name: str) -> Analysis:
    try:
        return analyzed(name)
    except NoGpuWorkError:
        pytest.skip(f"{name} holds no GPU work")


def only(name: str, finding: str) -> Finding:
    return next(one for one in measured(name).findings if one.id == finding)


@pytest.mark.parametrize("name", H200)
def test_what_the_capture_is_known_for_is_on_top(name: str) -> None:
    assert measured(name).findings[0].id == TOP[name]


@pytest.mark.parametrize("name", ALL)
def test_a_device_never_pays_more_than_it_lost(name: str) -> None:
    analysis = measured(name)
    for device in analysis.devices:
        paid = sum(one.cost_ns for one in analysis.findings if one.device == device.id)
        assert 0 < paid <= device.idle_ns + device.busy_ns - device.compute_ns


@pytest.mark.parametrize("name", ALL)
def test_every_finding_can_be_read_followed_and_looked_at(name: str) -> None:
    analysis = measured(name)
    order = [SEVERITIES.index(one.severity) for one in analysis.findings]
    assert order == sorted(order)
    windows = {device.id: device.window for device in analysis.devices}
    for one in analysis.findings:
        assert one.title and len(one.advice) > 40
        assert "{" not in one.title
        assert one.evidence or one.cost_ns == 0
        for place in one.evidence:
            window = windows[place.device or ""]
            assert window.start <= place.start_ns <= place.end_ns <= window.end


def test_pageable_copies_take_the_blame_from_the_synchronize_after_them() -> None:
    found = only("h200_serial.sqlite", "pageable_copies")
    assert found.severity == "high"
    assert 331_000_000 < found.cost_ns < 336_000_000
    assert "block the host for 334 ms" in found.title
    assert "cudaDeviceSynchronize looks guilty, but held the host for only 418 µs" in found.advice
    assert only("h200_serial.sqlite", "synchronize").cost_ns < found.cost_ns / 30


def test_the_backward_stream_is_empty_and_the_capture_shows_why() -> None:
    found = only("h200_quad.sqlite", "idle_stream")
    assert "stream 21 does next to nothing: 20 of 6,000 kernels" in found.title
    assert "3,580 of the 3,580 kernels that thread pt_autograd_0 launched ran on stream 17" in found.advice
    assert "idle_stream" not in [one.id for one in measured("h200_dual.sqlite").findings]


def test_one_rank_waits_for_the_other_and_start_up_copies_are_told_apart() -> None:
    waits = [one for one in measured("h200_ddp2.sqlite").findings if one.id == "communication_wait"]
    assert [one.device for one in waits] == ["GPU 1"]
    assert waits[0].title.startswith("GPU 1 waits for GPU 0 in NCCL: 282 ms of its 290 ms")
    copies = only("h200_ddp2.sqlite", "pageable_copies")
    assert copies.severity == "low"
    assert "outside the counted iterations" in copies.title


def test_whole_graphs_say_what_cannot_be_seen() -> None:
    found = only("h200_cudagraph.sqlite", "whole_graphs")
    assert "there is no kernel table" in found.title
    assert "--cuda-graph-trace=node" in found.code
    assert measured("h200_cudagraph.sqlite").findings[1].id == "exposed_h2d"


def test_a_slice_says_what_was_cut() -> None:
    found = only("public/nsys2026.2_2gpu_nccl.sqlite", "cut_capture")
    assert "31 GPU operations" in found.title
    assert found.cost_ns == 0


@pytest.mark.parametrize(
    "name", ["public/nsys2021.2_no_metadata.sqlite", "public/nsys2024.5_hpc_node.sqlite"]
)
def test_a_capture_without_ranges_says_so(name: str) -> None:
    assert "no_ranges" in [one.id for one in measured(name).findings]
    assert only(name, "no_ranges").severity == "info"
