"""Findings of slices have the ids, costs and order of those of the complete capture."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from tests.captures import sample
from tests.slices.windows import quiet_slices
from traceview.model.analysis import Analysis
from traceview.model.devices import DeviceUse
from traceview.model.findings import Finding
from traceview.model.trace import Note, Trace
from traceview.pipeline import analyze, open_trace
from traceview.rules import with_findings
from traceview.slices.claims import claims_of_slice, collect_sums, with_sums
from traceview.slices.facts import SliceContext
from traceview.slices.findings import findings_of_slices
from traceview.slices.measure import EVERYTHING
from traceview.slices.slice import Slice


@cache
def analyzed(name: str) -> tuple[Trace, Analysis]:
    trace = open_trace(sample(name))
    return trace, analyze(trace)


def found_in_slices(name: str, count: int) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    trace, analysis = analyzed(name)
    parts = quiet_slices(trace, count)
    resident = replace(trace, operations=trace.operations.clear(), api=trace.api.clear())
    small = [_without_frame(device) for device in analysis.devices]
    notes = tuple(note for note in analysis.notes if note not in with_findings(replace(analysis, notes=())).notes)
    merged = replace(analysis, trace=resident, devices=tuple(small), host_time=None, findings=(), notes=notes)
    return findings_of_slices(
        merged, lambda function: map(function, parts), lambda number, function: function(parts[number])
    )


def _without_frame(device: DeviceUse) -> DeviceUse:
    """Return a device as slices are merged: without the frames of its gaps."""
    none = device.gaps.frame.clear()
    steady = replace(device.steady, gaps=replace(device.steady.gaps, frame=none))
    return replace(device, gaps=replace(device.gaps, frame=none), steady=steady)


def figures(findings: Sequence[Finding]) -> list[tuple[Any, ...]]:
    """Return what must be equal, finding by finding on each device, in order."""
    names = ("id", "device", "severity", "cost_ns", "cost_fraction", "change", "claims", "unsure_because")
    names += ("cost_per_iteration_ns", "unprofiled_cost_ns", "unprofiled_cost_per_iteration_ns")
    return [tuple(getattr(each, name) for name in names) for first in findings for each in first.by_device]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("dual.sqlite", (2, 7, 50)),
        ("ddp2.sqlite", (7,)),
        ("cudagraph.sqlite", (50,)),
        ("scenarios/graph_nodes.sqlite", (50,)),
        ("openacc/heat_as_2024.2.sqlite", (7,)),
        ("fsdp_tp/rank0.json.gz", (7,)),
    ],
)
def test_findings_of_slices_equal_those_in_memory(name: str, counts: tuple[int, ...]) -> None:
    whole = analyzed(name)[1].findings
    for count in counts:
        assert figures(found_in_slices(name, count)[0]) == figures(whole)


def test_findings_of_one_slice_have_the_same_texts_and_places() -> None:
    findings, notes = found_in_slices("dual.sqlite", 1)
    alone = with_findings(replace(analyzed("dual.sqlite")[1], notes=()))
    assert [(each.title, each.advice, each.evidence, each.host) for each in findings] == [
        (each.title, each.advice, each.evidence, each.host) for each in alone.findings
    ]
    assert notes == alone.notes


def test_findings_state_the_part_that_their_details_describe() -> None:
    found = found_in_slices("dual.sqlite", 7)[0]
    by_id = {finding.id: finding for finding in found}
    assert " Details are of the part from " in by_id["launch_bound"].advice  # a median
    assert "Details are of" not in by_id["host_bound"].advice  # all of its figures are sums


def test_slices_send_what_can_be_pickled() -> None:
    trace, analysis = analyzed("dual.sqlite")
    only = Slice(trace.with_window(EVERYTHING))
    context = pickle.loads(pickle.dumps(SliceContext.from_analysis(analysis)))
    context = with_sums(context, [pickle.loads(pickle.dumps(collect_sums(only, context)))])
    claims = pickle.dumps(claims_of_slice(only, context))
    assert len(claims) < 500_000


def test_notes_of_slices_are_those_of_the_capture() -> None:
    assert found_in_slices("dual.sqlite", 7)[1] == found_in_slices("dual.sqlite", 1)[1]
