"""Findings of slices have the ids, costs and order of those of the complete capture."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import sample
from tests.slices.windows import quiet_slices
from traceview.measure.gaps.thread_states import ThreadStates
from traceview.measure.host import HostIdle
from traceview.model.analysis import Analysis
from traceview.model.devices import DeviceUse
from traceview.model.findings import Finding
from traceview.model.trace import Note, Trace
from traceview.pipeline import analyze, open_trace
from traceview.pricing.sums import MANY, Counts
from traceview.rules import with_findings
from traceview.slices.claims import claims_of_slice, collect_sums, with_sums
from traceview.slices.facts import SliceContext
from traceview.slices.findings import findings_of_slices
from traceview.slices.slice import EVERYTHING, Slice


@cache
def analyzed(name: str) -> tuple[Trace, Analysis]:
    trace = open_trace(sample(name))
    return trace, analyze(trace)


def notes_of_measures(name: str) -> tuple[Note, ...]:
    """Return the notes that are not from rules."""
    analysis = analyzed(name)[1]
    return tuple(note for note in analysis.notes if note not in with_findings(replace(analysis, notes=())).notes)


def found_in_slices(name: str, count: int) -> tuple[tuple[Finding, ...], tuple[Note, ...]]:
    trace, analysis = analyzed(name)
    parts = quiet_slices(trace, count)
    resident = replace(trace, operations=trace.operations.clear(), api=trace.api.clear())
    small = [_without_frame(device) for device in analysis.devices]
    threads = ThreadStates.from_trace(resident)
    merged = replace(
        analysis,
        trace=resident,
        devices=tuple(small),
        host_time=HostIdle.build(resident, threads),
        findings=(),
        notes=notes_of_measures(name),
    )
    return findings_of_slices(
        merged, lambda function: map(function, parts), lambda number, function: function(parts[number])
    )


def _without_frame(device: DeviceUse) -> DeviceUse:
    """Return a device as slices are merged: without the frames of its gaps."""
    none = device.gaps.frame.clear()
    steady = replace(device.steady, gaps=replace(device.steady.gaps, frame=none))
    return replace(device, gaps=replace(device.gaps, frame=none), steady=steady)


def by_device(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings of each device, in order, without their predictions."""
    return [replace(each, others=(), prediction=None) for first in findings for each in first.by_device]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("dual.sqlite", (2, 7, 50)),
        ("ddp2.sqlite", (7,)),
        ("cudagraph.sqlite", (50,)),
        ("scenarios/graph_nodes.sqlite", (50,)),
        ("scenarios/many_streams.sqlite", (7,)),
        ("openacc/heat_as_2024.2.sqlite", (7,)),
        ("fsdp_tp/rank0.json.gz", (7,)),
        ("trainer/staged.sqlite", (7,)),  # with stacks
    ],
)
def test_findings_of_slices_equal_those_in_memory(name: str, counts: tuple[int, ...]) -> None:
    known, whole = notes_of_measures(name), with_findings(replace(analyzed(name)[1], notes=notes_of_measures(name)))
    for count in counts:
        findings, notes = found_in_slices(name, count)
        assert by_device(findings) == by_device(whole.findings)
        assert (*known, *notes) == whole.notes


@given(parts=st.lists(st.lists(st.integers(-3, MANY + 3) | st.integers(0, 9)), min_size=1, max_size=3))
def test_counts_of_parts_have_the_median_of_all(parts: list[list[int]]) -> None:
    counts = reduce(Counts.plus, (Counts.from_values(np.array(part, np.int64)) for part in parts))
    every = np.concatenate([np.array(part, np.int64) for part in parts])
    values, times = np.unique(every, return_counts=True)
    assert counts.values.tolist() == values.tolist() and counts.counts.tolist() == times.tolist()
    assert counts.median == (np.median(every) if len(every) else 0)


def test_slices_send_what_can_be_pickled() -> None:
    trace, analysis = analyzed("dual.sqlite")
    only = Slice(trace.with_window(EVERYTHING))
    context = pickle.loads(pickle.dumps(SliceContext.from_analysis(analysis)))
    context = with_sums(context, [pickle.loads(pickle.dumps(collect_sums(only, context)))])
    claims = pickle.dumps(claims_of_slice(only, context))
    assert len(claims) < 500_000
