"""Tests of all rules on real captures: expected top findings, texts and total costs."""

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
    return next(row for row in measured(name).findings if row.id == finding)


@pytest.mark.parametrize("name", H200)
def test_top_finding(name: str) -> None:
    assert measured(name).findings[0].id == TOP[name]


@pytest.mark.parametrize("name", ALL)
def test_costs_do_not_exceed_lost_time(name: str) -> None:
    analysis = measured(name)
    for device in analysis.devices:
        cost = sum(finding.cost_ns for finding in analysis.findings if finding.device == device.id)
        assert 0 < cost <= device.idle_ns + device.busy_ns - device.compute_ns


@pytest.mark.parametrize("name", ALL)
def test_every_finding_has_title_advice_and_evidence(name: str) -> None:
    analysis = measured(name)
    order = [SEVERITIES.index(finding.severity) for finding in analysis.findings]
    assert order == sorted(order)
    windows = {device.id: device.window for device in analysis.devices}
    for finding in analysis.findings:
        assert finding.title and len(finding.advice) > 40
        assert "{" not in finding.title
        assert finding.evidence or finding.cost_ns == 0
        for place in finding.evidence:
            window = windows[place.device or ""]
            assert window.start <= place.start_ns <= place.end_ns <= window.end


def test_pageable_copies_acquit_the_synchronize_call() -> None:
    finding = only("h200_serial.sqlite", "pageable_copies")
    assert finding.severity == "high"
    assert 331_000_000 < finding.cost_ns < 336_000_000
    assert "block the host for 334 ms" in finding.title
    assert "cudaDeviceSynchronize looks like the cause, but blocks the host for only 418 µs" in finding.advice
    assert only("h200_serial.sqlite", "synchronize").cost_ns < finding.cost_ns / 30


def test_idle_backward_stream() -> None:
    finding = only("h200_quad.sqlite", "idle_stream")
    assert "stream 21 is almost unused: 20 of 6,000 kernels" in finding.title
    assert "3,580 of the 3,580 kernels that thread pt_autograd_0 launched ran on stream 17" in finding.advice
    assert "idle_stream" not in [row.id for row in measured("h200_dual.sqlite").findings]


def test_waiting_rank_and_start_up_copies() -> None:
    waits = [row for row in measured("h200_ddp2.sqlite").findings if row.id == "communication_wait"]
    assert [row.device for row in waits] == ["GPU 1"]
    assert waits[0].title.startswith("GPU 1 waits for GPU 0 in NCCL for 282 ms of its 290 ms")
    copies = only("h200_ddp2.sqlite", "pageable_copies")
    assert copies.severity == "low"
    assert "outside the counted iterations" in copies.title


def test_whole_graphs() -> None:
    finding = only("h200_cudagraph.sqlite", "whole_graphs")
    assert "the kernel table is missing" in finding.title
    assert "--cuda-graph-trace=node" in finding.code
    assert measured("h200_cudagraph.sqlite").findings[1].id == "exposed_h2d"


def test_cut_capture() -> None:
    finding = only("public/nsys2026.2_2gpu_nccl.sqlite", "cut_capture")
    assert "31 GPU operations" in finding.title
    assert finding.cost_ns == 0


@pytest.mark.parametrize(
    "name", ["public/nsys2021.2_no_metadata.sqlite", "public/nsys2024.5_hpc_node.sqlite"]
)
def test_no_ranges(name: str) -> None:
    assert "no_ranges" in [row.id for row in measured(name).findings]
    assert only(name, "no_ranges").severity == "info"
