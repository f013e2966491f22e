"""Tests of all rules on real captures: expected top findings, texts and total costs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tests.captures import ALL, H200, analyzed, shared
from traceview.errors import NoGpuWorkError
from traceview.model.analysis import Analysis
from traceview.model.findings import Finding
from traceview.model.trace import Note

TOP = {
    "h200_serial.sqlite": "pageable_copies",
    "h200_dual.sqlite": "launch_bound",
    "h200_quad.sqlite": "launch_bound",
    "h200_ddp2.sqlite": "launch_bound",
    "h200_cudagraph.sqlite": "costliest_kernel",
}


def measured(name: str) -> Analysis:
    try:
        return analyzed(shared(name))
    except NoGpuWorkError:
        pytest.skip(f"{name} holds no GPU work")


def note(name: str, wanted: str) -> Note:
    return next(row for row in measured(name).notes if row.id == wanted)


def only(name: str, finding: str) -> Finding:
    return next(row for row in measured(name).findings if row.id == finding)


@pytest.mark.parametrize("name", H200)
def test_top_finding(name: str) -> None:
    assert measured(name).findings[0].id == TOP[name]


@pytest.mark.parametrize("name", ALL)
def test_every_finding_has_title_advice_and_evidence(name: str) -> None:
    analysis = measured(name)
    assert all(finding.cost_ns for finding in analysis.findings)
    gaining = [finding for finding in analysis.findings if finding.gain.source != "none" and not finding.once]
    likely = [finding.gain.fraction * finding.gain.gaining_part for finding in gaining]
    assert all(first > second - 0.02 for first, second in pairwise(likely))  # those that gain alike are by effort
    windows = {device.id: device.steady.window for device in analysis.devices}
    if analysis.covers_run:
        windows = dict.fromkeys(windows, analysis.run)
    for finding in analysis.findings:
        assert finding.title and len(finding.advice) > 40
        assert "{" not in finding.title
        assert finding.evidence
        for place in finding.evidence:
            window = analysis.run if finding.once else windows[place.device or ""]
            assert window.start <= place.start_ns <= place.end_ns <= window.end


def test_pageable_copies_acquit_the_synchronize_call() -> None:
    finding = only("h200_serial.sqlite", "pageable_copies")
    assert finding.severity == "high"
    assert 331_000_000 < finding.cost_ns < 343_000_000  # the copies and the restart gaps after them
    assert "block the host for 334 ms" in finding.title
    assert "cudaDeviceSynchronize looks like the cause, but blocks the host for only 418 µs" in finding.advice
    assert "synchronize" not in [row.id for row in measured("h200_serial.sqlite").findings]


def test_idle_backward_stream() -> None:
    text = note("h200_quad.sqlite", "idle_stream").text
    assert "stream 21 is almost unused: 20 of 6,000 kernels" in text
    assert "3,580 of the 3,580 kernels that thread pt_autograd_0 launched ran on stream 17" in text
    dual = measured("h200_dual.sqlite")
    assert "idle_stream" not in [row.id for row in (*dual.findings, *dual.notes)]


def test_waiting_rank_and_start_up_copies() -> None:
    waits = [row for row in measured("h200_ddp2.sqlite").findings if row.id == "communication_wait"]
    assert [row.device for row in waits] == ["GPU 1"]
    # Both ranks run equal kernels; the host of GPU 0 launches them late.
    assert waits[0].title == "GPU 1 waits 185 ms in collectives for GPU 0, whose host launches late"
    assert (waits[0].change, waits[0].remedy[:34]) == ("graph", "Launch a step as one CUDA graph: t")
    assert waits[0].severity == "high"
    steady = [row for row in measured("h200_ddp2.sqlite").findings if row.id == "pageable_copies"]
    assert all("3 copies" in row.title and row.severity == "low" for row in steady)
    whole = analyzed(shared("h200_ddp2.sqlite"), whole=True)
    copies = next(row for row in whole.findings if row.id == "pageable_copies")
    assert copies.title.startswith("205 copies of pageable memory")
    assert whole.findings[0].id == "before_loop"


def test_whole_graphs() -> None:
    graphs = note("h200_cudagraph.sqlite", "whole_graphs")
    assert "the kernel table is missing" in graphs.text and "--cuda-graph-trace=node" in graphs.text
    assert "idle" in graphs.affects


def test_cut_capture() -> None:
    assert "31 GPU operations" in note("public/nsys2026.2_2gpu_nccl.sqlite", "cut_capture").text


@pytest.mark.parametrize("name", ["public/nsys2021.2_no_metadata.sqlite", "public/nsys2024.5_hpc_node.sqlite"])
def test_no_ranges(name: str) -> None:
    assert "no NVTX ranges in the capture" in note(name, "no_nvtx").text
