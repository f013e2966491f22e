"""Findings that differ in the device alone are one; a device that loses far more keeps its own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from tests.build_export import Call, Gpu, Kernel, Nvtx, build_export
from tests.captures import analyzed, sample
from traceview import analyze
from traceview.pricing.describe import PricedFinding, join_devices
from traceview.report.analysis import document
from traceview.report.analysis.terminal import render


def test_same_finding_on_two_devices_is_one() -> None:
    analysis = analyzed(sample("trainer/ddp.sqlite"))
    first = next(finding for finding in analysis.findings if finding.id == "unfused_chains")
    assert (first.device, first.device_words) == ("GPU 1", "2 GPUs")
    assert [other.device for other in first.others] == ["GPU 0"]
    assert first.cost_ns >= first.others[0].cost_ns > 0.9 * first.cost_ns
    assert "[2 GPUs]" in render(analysis)
    processes = replace(first, device="GPU 0 (process 2)", others=(replace(first, device="GPU 0 (process 1)"),))
    assert processes.device_words == "2 processes"
    (other,) = json.loads(json.dumps(document(analysis)))["findings"][analysis.findings.index(first)]["others"]
    assert (other["device"], other["cost_ns"]) == ("GPU 0", first.others[0].cost_ns)
    assert other["evidence"] and all(place["device"] == "GPU 0" for place in other["evidence"])


def test_device_that_loses_far_more_keeps_its_own_finding() -> None:
    launch = [finding for finding in analyzed(sample("ddp2.sqlite")).findings if finding.id == "launch_bound"]
    assert [finding.device for finding in launch] == ["GPU 0", "GPU 1"]
    assert launch[0].cost_ns > 2 * launch[1].cost_ns
    assert not any(finding.others for finding in launch)


def test_places_stay_apart_unless_the_remedy_is_the_same_everywhere() -> None:
    (finding, *_) = analyzed(sample("ddp2.sqlite")).findings
    pair = [replace(finding, device=f"GPU {at}", title=f"1 ms lost at line {name}()") for at, name in enumerate("ab")]
    assert len(list(join_devices([PricedFinding(one, False) for one in pair]))) == 2
    (joined,) = join_devices([PricedFinding(one, True) for one in pair])
    assert [joined.device, *(other.device for other in joined.others)] == ["GPU 0", "GPU 1"]


def test_run_starts_and_ends_once_whatever_it_costs_on_each_gpu() -> None:
    (finding, *_) = analyzed(sample("ddp2.sqlite")).findings
    words = ("Start-up takes 5.2 s: 4.9 s in host code", "Start-up takes 1.1 s: 1.1 s in cudaFree")
    costs = (5_200_000_000, 1_100_000_000)
    starts = [
        replace(finding, id="start_up", device=f"GPU {at}", title=text, remedy=text, cost_ns=cost, once=True)
        for at, (text, cost) in enumerate(zip(words, costs, strict=True))
    ]
    (joined,) = join_devices([PricedFinding(one, False) for one in starts])
    assert (joined.title, joined.device_words) == (words[0], "2 GPUs")
    outside = [each for each in analyze(sample("scenarios/p2p.sqlite"), whole=True).findings if "loop" in each.id]
    assert [(each.id, each.device_words) for each in outside] == [("before_loop", "2 GPUs"), ("after_loop", "2 GPUs")]


def test_gpu_without_work_in_the_iterations_has_no_finding_per_iteration(tmp_path: Path) -> None:
    """The worker of a service computes before and after the loop of the main process (`streamer` of round 16)."""
    ms = 1_000_000
    steps, others = range(10 * ms, 210 * ms, 10 * ms), (ms, 300 * ms)
    starts = [*((at, 10) for at in steps), *((at, 11) for at in others)]
    kernels = [Kernel(at, at + 3 * ms, correlation=row, process=process) for row, (at, process) in enumerate(starts, 1)]
    calls = [Call(at - 1000, at - 10, correlation=row, process=process) for row, (at, process) in enumerate(starts, 1)]
    ranges = [Nvtx(at - 2000, at + 9 * ms, f"step {number}") for number, at in enumerate(steps)]
    gpus = [Gpu(), Gpu(1, device=1)]
    analysis = analyze(build_export(tmp_path / "made.sqlite", kernels=kernels, api=calls, nvtx=ranges, gpus=gpus))
    assert [device.id for device in analysis.devices] == ["GPU 0 (process 10)", "GPU 0 (process 11)"]
    assert {finding.device for finding in analysis.findings if not finding.once} == {"GPU 0 (process 10)"}


def test_bound_is_the_share_of_the_bar_where_the_last_iteration_has_no_pause(tmp_path: Path) -> None:
    """A made loop of 1 ms of work and 19 ms of the host; the work of the last iteration ends the GPU's time."""
    ms = 1_000_000
    starts = range(20 * ms, 300 * ms, 20 * ms)
    kernels = [Kernel(at, at + ms, correlation=row) for row, at in enumerate(starts, 1)]
    calls = [Call(at - 2000, at - 1000, correlation=row) for row, at in enumerate(starts, 1)]
    ranges = [Nvtx(at - 3000, at - 3000 + 20 * ms, f"step {number}") for number, at in enumerate(starts)]
    analysis = analyze(build_export(tmp_path / "made.sqlite", kernels=kernels, api=calls, nvtx=ranges))
    (device,), first = analysis.devices, analysis.findings[0]
    idle = device.steady.window.length - device.steady.busy_ns
    assert (analysis.iterations.counted, first.id, first.gain.source) == (14, "host_bound", "bound")
    assert abs(first.gain.fraction - idle / device.steady.window.length) < 0.001
