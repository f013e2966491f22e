"""The tables of kernels against SQL on real captures, and shapes that a capture does not have."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from tests.captures import ALL, analyzed, shared
from tests.made_trace import made_trace
from traceview import analyze
from traceview.measure.kernels import MAX_KERNELS

SHAPE = "demangledName, gridX, gridY, gridZ, blockX, blockY, blockZ, registersPerThread"
TOTALS = f"""
    SELECT count(*), sum(end - start), min(end - start), max(end - start)
    FROM CUPTI_ACTIVITY_KIND_KERNEL GROUP BY deviceId, {SHAPE}, staticSharedMemory + dynamicSharedMemory
"""


@pytest.mark.parametrize("name", ALL)
def test_totals_equal_sql(name: str) -> None:
    path = shared(name)
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        has_kernels = connection.execute(
            "SELECT count(*) FROM sqlite_master WHERE name = 'CUPTI_ACTIVITY_KIND_KERNEL'"
        ).fetchone()[0]
        expected = sorted(connection.execute(TOTALS).fetchall()) if has_kernels else []
    devices = [device.tables for device in analyzed(path).devices] if expected else []
    rows = [row for tables in devices for row in tables["kernels"].rows]
    assert len(expected) <= MAX_KERNELS * max(len(devices), 1)
    assert sorted((row.count, row.total_ns, row.min_ns, row.max_ns) for row in rows) == expected
    for tables in devices:
        kernels, families = tables["kernels"].rows, tables["kernel_families"].rows
        assert [row.total_ns for row in kernels] == sorted((row.total_ns for row in kernels), reverse=True)
        assert sum(row.total_ns for row in kernels) == sum(row.total_ns for row in families)
        assert abs(sum(row.share for row in kernels) - 1) < 1e-3
        assert all(row.busy_ns <= row.total_ns for row in families)


def test_launch_without_a_shape_in_the_capture() -> None:
    (device,) = analyze(made_trace([(0, 10, "compute", 0, None), (20, 50, "compute", 0, None)])).devices
    (row,) = device.tables["kernels"].rows
    assert (row.name, row.count, row.total_ns, row.mean_ns, row.share) == ("compute", 2, 40, 20, 1.0)
    assert (row.blocks_per_sm, row.waves, row.occupancy) == (None, None, None)


def test_small_grid_fills_few_sms() -> None:
    (device,) = analyzed(shared("h200_dual.sqlite")).devices
    row = next(row for row in device.tables["kernels"].rows if row.grid == (1, 1, 1))
    assert row.blocks_per_sm == round(1 / 132, 6)
    assert 0 < row.waves < row.blocks_per_sm
