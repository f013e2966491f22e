"""Variants of real captures, made by SQL on a copy: what a profiler lost, or what else ran, with a known truth."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

GPU_TABLES = ("KERNEL", "MEMCPY", "MEMSET", "SYNCHRONIZATION")
HOST_TABLES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS", "PROFILER_OVERHEAD")
TIMED = (*(f"CUPTI_ACTIVITY_KIND_{name}" for name in GPU_TABLES), *HOST_TABLES)
OTHER_PID = 4242


def variant(source: Path, folder: Path, *statements: str) -> Path:
    """Return a copy of a capture after these SQL statements."""
    copy = folder / f"variant_{source.name}"
    shutil.copyfile(source, copy)
    with closing(sqlite3.connect(copy)) as connection, connection:
        for statement in statements:
            connection.execute(statement)
    return copy


def without_ranges(source: Path, folder: Path) -> Path:
    """Return a copy without NVTX events."""
    return variant(source, folder, "DELETE FROM NVTX_EVENTS")


def with_stall(source: Path, folder: Path, moment: int, ns: int) -> Path:
    """Return a copy in which everything that starts from `moment` on happens `ns` later; open ranges end later."""
    later = [f"UPDATE {table} SET start = start + {ns} WHERE start >= {moment}" for table in TIMED]
    ends = [f'UPDATE {table} SET "end" = "end" + {ns} WHERE "end" >= {moment}' for table in TIMED]
    return variant(source, folder, *later, *ends)


def with_slower_phase(source: Path, folder: Path, times: int) -> Path:
    """Return a copy that runs twice: as captured, and once more with every time `times` as long."""
    with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as connection:
        last = 'SELECT max("end"), min(start), max(correlationId) FROM CUPTI_ACTIVITY_KIND_RUNTIME'
        end, start, correlation = connection.execute(last).fetchone()
        tables = {table: _columns(connection, table) for table in TIMED}
    begin = end + 1_000_000

    def value(table: str, column: str) -> str:
        if column in ("start", "end"):
            return f'{begin} + ("{column}" - {start}) * {times}'
        if column == "correlationId":
            return f"correlationId + {correlation}"
        return f'"{column}"'

    statements = [
        f"INSERT INTO {table} SELECT {', '.join(value(table, column) for column in columns)} FROM {table}"
        for table, columns in tables.items()
    ]
    return variant(source, folder, *statements)


def with_second_process(source: Path, folder: Path) -> Path:
    """Return a copy in which a second process runs every third kernel again, right after it, on the same GPU."""
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    with closing(sqlite3.connect(f"file:{source}?mode=ro", uri=True)) as connection:
        columns = _columns(connection, kernels)
        contexts = _columns(connection, "TARGET_INFO_CUDA_CONTEXT_INFO")
        streams = _columns(connection, "TARGET_INFO_CUDA_STREAM")
        own = connection.execute(f"SELECT globalPid FROM {kernels} LIMIT 1").fetchone()[0]
    other = (own & ~(0xFFFFFF << 24)) | (OTHER_PID << 24)
    changed = {"globalPid": str(other), "correlationId": "-correlationId", "start": '"end"', "end": '"end" + 2000'}

    def copied(table: str, names: list[str], where: str = "") -> str:
        values = (changed.get(name, str(OTHER_PID) if name == "processId" else f'"{name}"') for name in names)
        return f"INSERT INTO {table} SELECT {', '.join(values)} FROM {table} {where}"

    return variant(
        source,
        folder,
        copied(kernels, columns, "WHERE rowid % 3 = 0"),
        copied("TARGET_INFO_CUDA_CONTEXT_INFO", contexts),
        copied("TARGET_INFO_CUDA_STREAM", streams),
        f"INSERT INTO PROCESSES SELECT {other}, {OTHER_PID}, 'other' FROM PROCESSES LIMIT 1",
    )


def with_moved_clock(source: Path, folder: Path, device: int, ns: int) -> Path:
    """Return a copy in which the clock of one GPU is `ns` ahead."""
    tables = (f"CUPTI_ACTIVITY_KIND_{name}" for name in GPU_TABLES if name != "SYNCHRONIZATION")
    move = 'UPDATE {} SET start = start + {}, "end" = "end" + {} WHERE deviceId = {}'
    return variant(source, folder, *(move.format(table, ns, ns, device) for table in tables))


def with_lost_kernels(source: Path, folder: Path) -> Path:
    """Return a copy that lacks every second kernel."""
    return variant(source, folder, "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE rowid % 2 = 0")


def with_hashed_kernels(source: Path, folder: Path) -> Path:
    """Return a copy whose kernels have meaningless names."""
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    named = " UNION ".join(f"SELECT {name} FROM {kernels}" for name in ("demangledName", "shortName", "mangledName"))
    copy = variant(source, folder)
    with closing(sqlite3.connect(copy)) as connection, connection:
        rows = connection.execute(f"SELECT id, value FROM StringIds WHERE id IN ({named})").fetchall()
        hashed = [(f"k{hashlib.sha256(value.encode()).hexdigest()[:12]}", row) for row, value in rows]
        connection.executemany("UPDATE StringIds SET value = ? WHERE id = ?", hashed)
    return copy


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
