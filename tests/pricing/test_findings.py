"""Findings that differ in the device alone are one; a device that loses far more keeps its own."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.captures import analyzed, sample
from traceview.pricing.describe import PricedFinding, join_devices
from traceview.report.analysis import document
from traceview.report.analysis.terminal import render


def test_same_finding_on_two_devices_is_one() -> None:
    analysis = analyzed(sample("trainer/ddp.sqlite"))
    first = analysis.findings[0]
    assert (first.id, first.device, first.device_words) == ("unfused_chains", "GPU 1", "2 GPUs")
    assert [other.device for other in first.others] == ["GPU 0"]
    assert first.cost_ns >= first.others[0].cost_ns > 0.9 * first.cost_ns
    assert "[2 GPUs]" in render(analysis)
    (other,) = json.loads(json.dumps(document(analysis)))["findings"][0]["others"]
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
    assert len(list(join_devices([PricedFinding(one, "1 ms lost", False) for one in pair]))) == 2
    (joined,) = join_devices([PricedFinding(one, "1 ms lost", True) for one in pair])
    assert [joined.device, *(other.device for other in joined.others)] == ["GPU 0", "GPU 1"]
