"""Clocks of GPUs that differ from the host's are estimated and corrected (docs/definitions.md "Clocks of a device")."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.build_export import Call, Kernel, Sync, build_export
from tests.captures import ALL, analyzed, sample, shared
from traceview.model.analysis import CAUSES, Analysis
from traceview.pipeline import analyze
from traceview.report.analysis import document

GPU_TABLES = [f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")]
API_TABLES = ["CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "PROFILER_OVERHEAD"]
MS = 1_000_000


def shifted(folder: Path, name: str, tables: list[str], ns: int, where: str = "") -> Path:
    """Return a copy of a capture with the times of some tables moved."""
    path = folder / name
    shutil.copy(sample(name), path)
    path.chmod(0o644)
    with sqlite3.connect(path) as connection:
        present = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in present & set(tables):
            connection.execute(f'UPDATE {table} SET start = start + {ns}, "end" = "end" + {ns} {where}')
    return path


def clocks(analysis: Analysis) -> list[dict[str, Any]]:
    devices: Any = document(analysis)["devices"]
    return [device["clock"] for device in devices]


def part_times(analysis: Analysis) -> Iterator[tuple[int, dict[str, int]]]:
    """Yield for each device the gaps and the times that depend on its clock."""
    for device in analysis.devices:
        yield (
            device.gaps.count,
            {
                **device.gaps.causes,
                "busy": device.busy_ns,
                "compute": device.compute_ns,
                "communication": device.communication_ns,
                "window": device.window.length,
            },
        )


SHIFTS = [-1000 * MS, -MS, 30 * MS]


@pytest.mark.parametrize("ns", SHIFTS)
@pytest.mark.parametrize(
    ("name", "moved", "where"),
    [
        ("serial.sqlite", "gpu", ""),
        ("dual.sqlite", "gpu", ""),
        ("cudagraph.sqlite", "gpu", ""),
        ("ddp2.sqlite", "gpu", "WHERE deviceId = 1"),
        ("serial.sqlite", "api", ""),
    ],
)
def test_figures_of_shifted_clocks(tmp_path: Path, name: str, moved: str, where: str, ns: int) -> None:
    whole = analyzed(sample(name))
    path = shifted(tmp_path, name, GPU_TABLES if moved == "gpu" else API_TABLES, ns, where)
    analysis = analyze(path)
    ahead = ns if moved == "gpu" else -ns
    for number, clock in enumerate(clocks(analysis)):
        expected = ahead if number == len(whole.devices) - 1 else 0
        assert clock["low_ns"] <= expected <= clock["high_ns"]
        assert clock["low_ns"] <= clock["offset_ns"] <= clock["high_ns"]
        assert clock["high_ns"] - clock["low_ns"] < 20_000
    error = max(clock["high_ns"] - clock["low_ns"] for clock in clocks(analysis))
    for (count, before), (same, after) in zip(part_times(whole), part_times(analysis), strict=True):
        assert count == same
        for figure in before:
            # Each gap gives at most the error of the offset from one cause to another; no other time changes.
            bound = error * count if figure in CAUSES else 0
            assert abs(before[figure] - after[figure]) <= bound, figure
    assert sorted(finding.id for finding in analysis.findings) == sorted(finding.id for finding in whole.findings)
    assert "clock_corrected" in [note.id for note in analysis.notes]


@pytest.mark.parametrize("name", ALL)
def test_clocks_of_real_captures_agree(name: str) -> None:
    analysis = analyzed(shared(name))
    for clock in clocks(analysis):
        assert clock["offset_ns"] == 0
        assert clock["low_ns"] is None or clock["low_ns"] <= 0
        assert clock["high_ns"] >= 0
    assert not {"clock_corrected", "clocks_disagree", "impossible_times"} & {note.id for note in analysis.notes}


def made(path: Path, latencies: list[int], returned: list[int]) -> Analysis:
    """Analyze kernels of 1 ms, one in 10 ms, by launch latency, each with a wait that returns so much after its end."""
    kernels, calls, waits = [], [], []
    for number, (latency, after) in enumerate(zip(latencies, returned, strict=True)):
        at, launch, wait = 10 * MS * (number + 1), 2 * number + 1, 2 * number + 2
        end = at + latency + MS
        kernels.append(Kernel(at + latency, end, correlation=launch))
        calls.append(Call(at, at + 2_000, correlation=launch))
        calls.append(Call(at + 3_000, max(end + after, at + 3_001), "cudaStreamSynchronize_v3020", correlation=wait))
        waits.append(Sync(correlation=wait))
    build_export(path, kernels=kernels, api=calls, syncs=waits)
    return analyze(path)


def test_no_offset_fits_contradicting_times(tmp_path: Path) -> None:
    analysis = made(tmp_path / "made.sqlite", [-5 * MS] * 3 + [5 * MS] * 3, [-3 * MS] * 6)
    (clock,) = clocks(analysis)
    assert clock["offset_ns"] is None
    causes = analysis.devices[0].gaps.causes
    assert causes["unknown"] + causes["profiler"] == analysis.devices[0].idle_ns > 0
    assert "clocks_disagree" in [note.id for note in analysis.notes]


def test_few_damaged_times_do_not_hide_a_clock(tmp_path: Path) -> None:
    latencies = [4_000] * 300
    latencies[7] = -5 * MS
    analysis = made(tmp_path / "made.sqlite", latencies, [5_000] * 300)
    (clock,) = clocks(analysis)
    assert clock["offset_ns"] == 0
    assert "impossible_times" in [note.id for note in analysis.notes]


def test_one_damaged_time_moves_no_clock_without_waits(tmp_path: Path) -> None:
    kernels = [Kernel(at * MS + 4_000, at * MS + 500_000, correlation=at) for at in range(1, 50)]
    calls = [Call(at * MS, at * MS + 2_000, correlation=at) for at in range(1, 50)]
    kernels[7] = Kernel(0, 1_000, correlation=8)
    path = tmp_path / "made.sqlite"
    build_export(path, kernels=kernels, api=calls)
    analysis = analyze(path)
    assert clocks(analysis)[0]["offset_ns"] == 0
    assert "impossible_times" in [note.id for note in analysis.notes]


def test_full_queue_is_no_late_clock(tmp_path: Path) -> None:
    """Kernels that follow each other without a gap are late because of the work before them."""
    kernels = [Kernel(20 * MS + at * MS, 20 * MS + (at + 1) * MS, correlation=at + 1) for at in range(100)]
    calls = [Call(at * 10_000, at * 10_000 + 2_000, correlation=at + 1) for at in range(100)]
    path = tmp_path / "made.sqlite"
    build_export(path, kernels=kernels, api=calls)
    (clock,) = clocks(analyze(path))
    assert clock["offset_ns"] == 0


def test_late_launches_of_an_idle_gpu_show_a_late_clock_without_waits(tmp_path: Path) -> None:
    kernels = [Kernel(at * MS + 325 * MS, at * MS + 325 * MS + 500_000, correlation=at) for at in range(1, 100)]
    calls = [Call(at * MS - 4_000, at * MS - 2_000, correlation=at) for at in range(1, 100)]
    path = tmp_path / "made.sqlite"
    build_export(path, kernels=kernels, api=calls)
    (clock,) = clocks(analyze(path))
    assert clock["offset_ns"] == 325 * MS
