"""Levels are as fine as the budget allows, GPU rows first; bins add up to their events."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.captures import analyzed, sample
from tests.pages import inputs_of
from traceview.report.assets import pack
from traceview.report.columns import Columns
from traceview.report.timeline.levels import Lane, Level, Widths, counts_by_shift, lanes_of_rows, levels, merged
from traceview.report.timeline.marks import Marks, Merge
from traceview.report.timeline.packing import MAX_UNPACKED, Chunks, PackedLane, pack_levels
from traceview.report.timeline.rows import TimelineRow, timeline_rows
from traceview.report.timeline.sums import device_sums

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
        counts = counts_by_shift(marks, 0)
        assert counts[widths.shifts[0]] <= most < counts[widths.shifts[0] - 1]
        assert sum(len(level.marks) for level in levels(marks, 0, widths.shifts)) <= widths.marks * 1.1


EVENTS = st.lists(st.tuples(*(st.integers(0, most) for most in (90, 40, 3, 2))), min_size=1, max_size=40)


@given(EVENTS, st.integers(0, 5), st.integers(0, 3))
def test_merging_twice_equals_merging_once(events: list[tuple[int, int, int, int]], shift: int, wider: int) -> None:
    start, length, name, look = (np.array(column, np.int64) for column in zip(*sorted(events), strict=True))
    marks = Marks(start, start + length, name, look, {"bytes": length}, {"correlation": start})
    again = merged(merged(marks, 7, shift), 7, shift + wider)
    assert columns_of(again) == columns_of(merged(marks, 7, shift + wider))
    assert counts_by_shift(marks, 7)[shift] == len(merged(marks, 7, shift))


def columns_of(marks: Marks) -> list[list[int]]:
    length = marks.end - marks.start
    shares = [np.where(marks.look == look, length, 0) for look in marks.looks] if len(marks.looks) > 1 else []
    single = Merge(marks.looks, np.ones(len(marks), np.int64), length, length, tuple(shares))
    return [column.tolist() for column in replace(marks, merge=marks.merge or single).columns()]


def test_gpu_rows_get_half_and_host_rows_the_rest() -> None:
    def finest(*kinds: str) -> list[int]:
        rows = [TimelineRow(kind, kind, "", "", (made(300_000),)) for kind in kinds]
        return [lane.levels[0].shift for [lane] in lanes_of_rows(rows, 0, SPAN, 200_000)]

    gpu, host = finest("stream", "call")
    [alone] = finest("call")
    assert alone <= host <= gpu


def test_wider_bins_above_the_budget() -> None:
    marks = made(100_000)
    wide, narrow = (Level(shift, merged(marks, 0, shift)) for shift in (22, 18))
    sizes = [size(level) for level in (wide, narrow, narrow.coarser(0))]
    for room, shifts in ((2 * sum(sizes), [22, 18]), (sizes[0] + 5 * sizes[2] // 4, [22, 19]), (sizes[0], [22])):
        lane = PackedLane(Lane(marks, False, None, [narrow, wide]), [narrow, wide])
        pack_levels([lane], Chunks(0, room, room * MAX_UNPACKED))
        assert [one["shift"] for one in lane.packed] == shifts


def size(level: Level) -> int:
    columns = Columns()
    level.marks.write(columns, 0)
    return len(pack(columns.raw()))


@pytest.mark.parametrize("name", ["serial", "dual"])
def test_causes_of_merged_gaps_add_up(name: str) -> None:
    analysis = analyzed(sample(f"{name}.sqlite"))
    zero = analysis.trace.span.start
    inputs = inputs_of(analysis)
    _, groups = timeline_rows(inputs)
    lanes = {row.id: row.lanes for group in groups for row in group.rows}
    [device] = analysis.devices
    (idle,), streams = lanes[f"d:{device.id}"], [lanes[f"s:{use.stream}"][0] for use in device.streams]
    edges = zero + (np.arange(200) << 22)
    assert len(merged(idle, zero, 20)) < len(idle)
    work = inputs.work[device.device]
    exact, of_merged = (device_sums(work, gaps, streams, edges) for gaps in (idle, merged(idle, zero, 20)))
    causes = set(idle.sums)
    assert {key: exact[key].tolist() for key in causes} == {key: of_merged[key].tolist() for key in causes}
    start = idle.start
    for cause, column in idle.sums.items():
        inside = (start >= edges[0]) & (start < edges[-1])
        assert exact[cause].sum() == column[inside].sum() > 0
