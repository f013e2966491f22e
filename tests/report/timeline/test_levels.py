"""Levels are as fine as the budget allows, GPU rows first; bins add up to their events."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from traceview.intervals import EMPTY
from traceview.model.analysis import Analysis
from traceview.report.timeline.bands import bands
from traceview.report.timeline.build import origin, rows, works
from traceview.report.timeline.columns import Columns
from traceview.report.timeline.detail import ChunkBudget, PackedLane, pack_levels
from traceview.report.timeline.levels import Lane, Level, Widths, coarser, levels, merged, merged_count, merged_lanes
from traceview.report.timeline.marks import Marks, Names
from traceview.report.timeline.rows import TimelineRow
from traceview.report.timeline.summary import device_sums

SPAN = 1 << 34


def made(count: int, seed: int = 1) -> Marks:
    random = np.random.default_rng(seed)
    start = np.sort(random.integers(0, SPAN, count))
    end = start + random.integers(1, 20_000, count)
    return Marks(start, end, random.integers(0, 9, count), np.zeros(count, np.uint8))


def test_finest_width_fits_the_budget() -> None:
    marks = made(300_000)
    for most in (100_000, 20_000):
        widths = Widths.affordable([marks], 0, SPAN, most)
        left = merged_count(marks.start, marks.end, 0, widths.shifts[0])
        assert left <= most * 1.05
        assert merged_count(marks.start, marks.end, 0, widths.shifts[0] - 1) > most * 0.95
        assert sum(len(level.marks) for level in levels(marks, 0, widths.shifts)) <= widths.marks * 1.1


def test_gpu_rows_get_half_and_host_rows_the_rest() -> None:
    def finest(*kinds: str) -> list[int]:
        rows = [TimelineRow(kind, kind, "", "", (made(300_000),)) for kind in kinds]
        return [lane.levels[0].shift for [lane] in merged_lanes(rows, 0, SPAN, 200_000)]

    gpu, host = finest("stream", "call")
    [alone] = finest("call")
    assert alone <= host <= gpu


def test_wider_bins_above_the_budget() -> None:
    marks = made(100_000)
    wide, narrow = (Level(shift, merged(marks, 0, shift)) for shift in (22, 18))
    sizes = [size(level) for level in (wide, narrow, coarser(narrow, 0))]
    for room, shifts in ((2 * sum(sizes), [22, 18]), (sizes[0] + 5 * sizes[2] // 4, [22, 19]), (sizes[0], [22])):
        lane = PackedLane(Lane(marks, False, None, [narrow, wide], EMPTY.start), [narrow, wide])
        pack_levels([lane], ChunkBudget.from_bytes(0, room))
        assert [one["shift"] for one in lane.packed] == shifts


def size(level: Level) -> int:
    columns = Columns()
    level.marks.write(columns, 0)
    return len(columns.packed())


@pytest.mark.parametrize("name", ["serial", "dual"])
def test_causes_of_merged_gaps_add_up(analysis_of: Callable[[str], Analysis], name: str) -> None:
    analysis = analysis_of(name)
    zero = origin(analysis)
    groups = rows(analysis, Names(), bands(analysis))
    [idle] = [row.lanes[0] for group in groups for row in group.rows if row.kind == "idle"]
    [work] = works(groups)
    edges = zero + (np.arange(200) << 22)
    exact, of_merged = (
        device_sums(analysis, analysis.devices[0], work, marks, edges) for marks in (idle, merged(idle, zero, 20))
    )
    assert len(merged(idle, zero, 20)) < len(idle)
    assert {key: found.tolist() for key, found in exact.items()} == {
        key: found.tolist() for key, found in of_merged.items()
    }
    start = idle.start
    for cause, column in idle.sums.items():
        inside = (start >= edges[0]) & (start < edges[-1])
        assert exact[cause].sum() == column[inside].sum() > 0
