"""Borders of parts, against a slow search through all events."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import polars as pl
import pytest

from tests.build_export import Kernel, build_export
from tests.captures import SAMPLES
from traceview.engine.limited import (
    KEPT_SHARE,
    _quiet_moment,
    fitting_processes,
    keepable_bytes,
    part_count,
    plan_parts,
    quiet_moments,
)
from traceview.engine.part import FIRST, LAST
from traceview.engine.traces import PartSource
from traceview.measure.sync import number_waits
from traceview.model.trace import Trace, Window
from traceview.pipeline import open_trace

EXPORTS = ["ddp2", "dual", "scenarios/many_streams"]


Waits = list[list[tuple[int, int]]]


def waits_of(trace: Trace) -> Waits:
    """Return start and end of the calls of each wait."""
    blocking = np.flatnonzero(((trace.api["role"].to_physical() == 0) | trace.api["implicit"]).to_numpy())
    calls, waits = trace.api[blocking].select("start", "end").rows(), dict[int, list[tuple[int, int]]]()
    for call, wait in zip(calls, number_waits(trace, blocking).tolist(), strict=True):
        waits.setdefault(wait, []).append(call)
    return list(waits.values())


def is_quiet(trace: Trace, waits: Waits, moment: int) -> bool:
    """Return whether nothing is in progress: no operation, no wait, and no restart gap of an idle device."""
    operations = trace.operations.select("start", "end", "device").rows()
    if any(start < moment < end for start, end, _ in operations):
        return False
    if any(min(calls)[0] < moment < max(end for _, end in calls) for calls in waits):
        return False
    for device in range(len(trace.devices)):
        before = [end for _, end, own in operations if own == device and end <= moment]
        after = [start for start, _, own in operations if own == device and start >= moment]
        is_idle = before and after and min(after) != moment
        if is_idle and any(max(before) <= end <= moment for calls in waits for _, end in calls):
            return False
    return True


@pytest.mark.parametrize("name", EXPORTS)
def test_borders_are_quiet(name: str) -> None:
    path = SAMPLES / f"{name}.sqlite"
    trace = open_trace(path)
    source = PartSource.open(path, 4)
    parts = plan_parts(source, 6)
    assert [window.start for window in parts] == [FIRST, *(window.end for window in parts[:-1])]
    assert parts[-1].end == LAST
    borders = [window.end for window in parts[:-1]]
    assert set(borders) <= set(quiet_moments(trace).tolist()) <= set(trace.operations["start"].to_list())
    waits = waits_of(trace)
    assert all(is_quiet(trace, waits, border) for border in borders)
    assert len(borders) > 1
    first = trace.operations["start"][0]
    assert _quiet_moment(source, (first, LAST)) in quiet_moments(trace)[1:]  # each part has GPU work


def test_quiet_moments() -> None:
    trace = open_trace(SAMPLES / "ddp2.sqlite")
    starts = trace.operations.filter(pl.col("end") > pl.col("start"))["start"].unique().sort().to_list()
    quiet = set(quiet_moments(trace).tolist())
    some, waits = starts[::301], waits_of(trace)
    assert {start for start in some if start in quiet} == {start for start in some if is_quiet(trace, waits, start)}
    part = Window(starts[len(starts) // 2], starts[-1])
    inside = set(quiet_moments(trace.with_window(part)).tolist())
    assert inside
    assert inside <= {moment for moment in quiet if part.start <= moment < part.end}


def test_border_lies_outside_loops_of_tiny_operations(tmp_path: Path) -> None:
    """A made export: the middle third of the kernels are a loop of one kernel."""
    starts = [10_000 * at for at in range(1, 601)]
    names = ["loop" if 200 <= at < 400 else f"kernel {at % 7}" for at in range(600)]
    kernels = [Kernel(start, start + 900, name, at) for at, (start, name) in enumerate(zip(starts, names, strict=True))]
    source = PartSource.open(build_export(tmp_path / "made.sqlite", kernels=kernels), 1)
    assert [window.start for window in plan_parts(source, 2)] == [FIRST, starts[400]]


def test_count_of_slices() -> None:
    source = PartSource.open(SAMPLES / "dual.sqlite")
    assert part_count(source, 1 << 30, 2) == 1
    assert 1 == part_count(source, 0, 2) <= part_count(source, 0, 400)  # less than MIN_EVENTS


def test_processes_and_slices_share_the_memory() -> None:
    source = cast(PartSource, SimpleNamespace(events=360_000_000, resident=SimpleNamespace(ranges=range(2_000_000))))
    counts = [fitting_processes(source, memory * 1_000_000_000, 16) for memory in (1, 4, 8, 60)]
    assert counts == sorted(counts)
    assert counts[0] == 1 < counts[1] < counts[2] <= counts[3] == 16
    few, many = part_count(source, 60_000_000_000, 16), part_count(source, 4_000_000_000, counts[1])
    assert few < many
    kept = keepable_bytes(source, few, 60_000_000_000, 16)
    assert 20_000_000_000 < kept < 60_000_000_000
    assert keepable_bytes(source, many, 4_000_000_000, counts[1]) >= 4_000_000_000 // KEPT_SHARE
