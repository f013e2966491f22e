"""A capture in the schemas of other nsys versions has the same figures.

The shapes are made by hand from real captures, after what 90 exports of the versions 2.9.1 to 3.25.0 have: only
these six versions could be had as whole captures (tests/captures.py), and one nsys makes one of them.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.captures import change, sample
from tests.oracle.differences import differences
from traceview.pipeline import analyze
from traceview.report.analysis import document

K = "CUPTI_ACTIVITY_KIND_"
GPU = (f"{K}KERNEL", f"{K}MEMCPY", f"{K}MEMSET")
OLDER = [f"ALTER TABLE {K}KERNEL DROP COLUMN mangledName", f"ALTER TABLE {K}KERNEL DROP COLUMN sharedMemoryLimitConfig",
         f"ALTER TABLE {K}MEMCPY DROP COLUMN virtualAddress"]  # fmt: skip
NO_GREEN = [f"ALTER TABLE {table} DROP COLUMN greenContextId" for table in (*GPU, f"{K}SYNCHRONIZATION")]
NEWER = [f"ALTER TABLE {K}KERNEL ADD COLUMN {name} INTEGER" for name in ("graphId", "clusterX", "qmdLastCtaDone")]
SPARSE = [
    "UPDATE StringIds SET id = id * 104729 + 3400000",
    *(f"UPDATE {K}KERNEL SET {name} = {name} * 104729 + 3400000" for name in ("shortName", "demangledName")),
    f"UPDATE {K}RUNTIME SET nameId = nameId * 104729 + 3400000",
    "UPDATE NVTX_EVENTS SET textId = textId * 104729 + 3400000",
    "UPDATE ThreadNames SET nameId = nameId * 104729 + 3400000",
]
TEXTS = ["UPDATE NVTX_EVENTS SET text = (SELECT value FROM StringIds WHERE id = textId), textId = NULL WHERE {}"]
EIGHT = ["CREATE TABLE more AS SELECT * FROM TARGET_INFO_GPU"] + 7 * [
    "UPDATE more SET id = id + 1, cuDevice = cuDevice + 1, uuid = 'GPU-' || (id + 1)",
    "INSERT INTO TARGET_INFO_GPU SELECT * FROM more",
]

SHAPES: Mapping[str, Sequence[str]] = {
    "2021, without metadata, PROCESSES and enums": [*OLDER, *NO_GREEN, "DROP TABLE META_DATA_EXPORT",
        "DROP TABLE META_DATA_CAPTURE", "DROP TABLE PROCESSES", "DROP TABLE ANALYSIS_DETAILS", "enums"],
    "3.1.7, metadata under its old name": ["ALTER TABLE META_DATA_EXPORT RENAME TO EXPORT_META_DATA", *NO_GREEN],
    "3.17.2, columns of synchronization": [f"ALTER TABLE {K}SYNCHRONIZATION ADD COLUMN deprecatedSyncType INTEGER",
        f"ALTER TABLE {K}SYNCHRONIZATION ADD COLUMN eventSyncId INTEGER"],
    "3.24.0, new columns": [*NEWER, f"ALTER TABLE {K}MEMCPY ADD COLUMN copyCount INTEGER DEFAULT 1",
        f"ALTER TABLE {K}CUDA_EVENT ADD COLUMN timestamp INTEGER"],
    "a column before all others": [f"ALTER TABLE {K}KERNEL RENAME TO old", "reorder"],
    "texts in the rows": [TEXTS[0].format("1")],
    "texts here and there": [TEXTS[0].format("rowid % 3 = 0")],
    "no textId at all": [TEXTS[0].format("1"), "ALTER TABLE NVTX_EVENTS DROP COLUMN textId"],
    "sparse string ids": SPARSE,
    "no list of GPUs": ["DROP TABLE TARGET_INFO_GPU"],
    "eight GPUs listed, one used": EIGHT,
    "rows in another order, as from 2025.6 on": ["disorder"],
    "an unknown table": ["CREATE TABLE NVTX_COUNTERS_MADE_BY_HAND (timestamp INT, counterId INT, value REAL)",
        "INSERT INTO NVTX_COUNTERS_MADE_BY_HAND VALUES (1, 2, 3.5)"],
    "empty tables of other tools": [f"CREATE TABLE {name} (start INTEGER, end INTEGER)"
        for name in (f"{K}OPENACC_DATA", "MPI_P2P_EVENTS", f"{K}GRAPH_TRACE_", "OSRT_API")],
    "times since 1970": [f'UPDATE {table} SET start = start + 1795251074194803813, "end" = "end" + 1795251074194803813'
        for table in (*GPU, f"{K}RUNTIME", "NVTX_EVENTS", "PROFILER_OVERHEAD")],
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_other_versions_have_the_same_figures(tmp_path: Path, shape: str) -> None:
    plain = sample("trainer/prefetch.sqlite")
    path = Path(shutil.copyfile(plain, tmp_path / plain.name))
    for statement in SHAPES[shape]:
        _apply(path, statement)
    result, expected = analyze(path), analyze(plain)
    without_limits = shape == "no list of GPUs"
    pair = [_figures(document(analysis), without_limits) for analysis in (expected, result)]
    assert list(differences(*pair)) == []
    assert [note for note in result.notes if "has no column" not in note.text] == list(expected.notes)


def _apply(path: Path, statement: str) -> None:
    if statement == "enums":
        connection = sqlite3.connect(path)
        enums = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE name LIKE 'ENUM%'")]
        connection.close()
        change(path, *(f'DROP TABLE "{name}"' for name in enums))
    elif statement == "disorder":
        for table in (*GPU, f"{K}RUNTIME", f"{K}SYNCHRONIZATION", "NVTX_EVENTS"):
            order = f"CREATE TABLE moved AS SELECT *, 7 AS other FROM {table} ORDER BY (rowid * 7919) % 10007"
            change(path, order, f"DROP TABLE {table}", f"ALTER TABLE moved RENAME TO {table}")
    elif statement == "reorder":
        change(path, f"CREATE TABLE {K}KERNEL AS SELECT 7 AS another, * FROM old", "DROP TABLE old")
    else:
        change(path, statement)


# Figures that follow from the limits of a GPU, such as its number of SMs, which only the list of GPUs has.
BY_LIMITS = {
    "blocks_per_sm", "waves", "occupancy", "occupancy_limit", "peak_flops_per_s", "answer", "change", "gain",
}  # fmt: skip


def _figures(result: Any, without_limits: bool = False) -> Any:
    """Return a document without GPU names, versions and times, which the schemas change on purpose."""
    if isinstance(result, dict):
        gone = {"report", "notes", "start_ns", "end_ns", "gpu_end_ns", "window_ns", "evidence"} | (
            set() if "domain" in result else {"name"}
        )
        gone |= BY_LIMITS if without_limits else set()
        return {name: _figures(inner, without_limits) for name, inner in result.items() if name not in gone}
    if isinstance(result, list):
        small = {"small_grid", "tail_wave", "costliest_kernel"} if without_limits else set()
        kept = [item for item in result if not (isinstance(item, dict) and item.get("id") in small)]
        if without_limits and kept and isinstance(kept[0], dict) and "advice" in kept[0]:
            kept.sort(key=lambda finding: (finding["id"], finding["cost_ns"]))  # their order is that of gains
        return [_figures(item, without_limits) for item in kept]
    return result
