"""Make a copy of an Nsight Systems export that says nothing of the machine that made it.

    python samples/scrub.py REPORT.sqlite OUT.sqlite

What stays is named here; everything else goes: GPU work, API calls, NVTX ranges, the programs they
belong to, what the GPU is and which versions traced it. Environment variables, host and user names,
paths, command lines, program output, other programs, the GPU's serial number and the time of day go.
Figures do not change: no event is touched. NVTX and kernel names are the program's own and stay.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import sys
from pathlib import Path

KEPT_TABLES = (
    "ANALYSIS_DETAILS",
    "CUDA_GRAPH_EVENTS",
    "DIAGNOSTIC_EVENT",
    "META_DATA_CAPTURE",
    "META_DATA_EXPORT",
    "EXPORT_META_DATA",
    "NVTX_EVENTS",
    "PROCESSES",
    "PROFILER_OVERHEAD",
    "StringIds",
    "TARGET_INFO_CUDA_CONTEXT_INFO",
    "TARGET_INFO_CUDA_DEVICE",
    "TARGET_INFO_CUDA_STREAM",
    "TARGET_INFO_GPU",
    "TARGET_INFO_SYSTEM_ENV",
    "ThreadNames",
)
KEPT_PREFIXES = ("CUPTI_ACTIVITY_KIND_", "ENUM_")
KEPT_NAMES = {
    "META_DATA_CAPTURE": (
        "CAPTURE_EVENT_TYPE",
        "PROCESS_0:COLLECT_%",
        "PROCESS_0:CUDA_GRAPH_TRACE_OPTIONS:%",
    ),
    "META_DATA_EXPORT": ("EXPORT_PRODUCT_%", "EXPORT_SCHEMA_VERSION%", "EXPORT_PARAM_LAZY"),
    "EXPORT_META_DATA": ("EXPORT_PRODUCT_%", "EXPORT_SCHEMA_VERSION%", "EXPORT_PARAM_LAZY"),
    "TARGET_INFO_SYSTEM_ENV": ("NvDriverVersion", "CudaDriverVersion"),
}
OWNERS = ("globalTid", "globalPid")  # (either >> 24) & 0xFFFFFF is the process
DIRECTORIES = ("PROCESSES", "ThreadNames")  # they list every program of the machine
TEXT_COLUMNS = {"demangledName", "shortName", "mangledName", "nameId", "textId", "jsonTextId"}


def scrub(report: Path, out: Path) -> None:
    """Write a scrubbed copy of `report` to `out`, whole or not at all; `report` stays as it is."""
    half_written = out.with_name(out.name + ".part")
    shutil.copyfile(report, half_written)
    half_written.chmod(0o644)
    try:
        _scrub_in_place(half_written)
        half_written.replace(out)
    finally:
        half_written.unlink(missing_ok=True)


def _scrub_in_place(copy: Path) -> None:
    export = sqlite3.connect(copy)
    try:
        with export:
            _drop_other_tables(export)
            _keep_named_rows(export)
            _drop_other_programs(export)
            _blank_serial_numbers(export)
            _drop_messages_with_paths(export)
            _drop_unused_strings(export)
        export.execute("VACUUM")  # what was deleted leaves the file as well
    finally:
        export.close()


def _tables(export: sqlite3.Connection) -> list[str]:
    rows = export.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    return sorted(name for (name,) in rows)


def _columns(export: sqlite3.Connection, table: str) -> set[str]:
    return {name for (name,) in export.execute("SELECT name FROM pragma_table_info(?)", (table,))}


def _drop_other_tables(export: sqlite3.Connection) -> None:
    for table in _tables(export):
        if table not in KEPT_TABLES and not table.startswith(KEPT_PREFIXES):
            export.execute(f'DROP TABLE "{table}"')


def _keep_named_rows(export: sqlite3.Connection) -> None:
    for table in KEPT_NAMES.keys() & set(_tables(export)):
        patterns = KEPT_NAMES[table]
        named = " OR ".join("name LIKE ?" for _ in patterns)
        export.execute(f'DELETE FROM "{table}" WHERE NOT ({named})', patterns)


def _drop_other_programs(export: sqlite3.Connection) -> None:
    export.execute("CREATE TEMP TABLE traced (process INTEGER PRIMARY KEY)")
    for table in _tables(export):
        for owner in _columns(export, table).intersection(OWNERS):
            if table.startswith("CUPTI_") or table == "NVTX_EVENTS":
                export.execute(
                    f'INSERT OR IGNORE INTO traced SELECT ({owner} >> 24) & 0xFFFFFF FROM "{table}"'
                )
    for table in set(DIRECTORIES) & set(_tables(export)):
        owner = next(name for name in OWNERS if name in _columns(export, table))
        export.execute(
            f'DELETE FROM "{table}" WHERE ({owner} >> 24) & 0xFFFFFF NOT IN (SELECT * FROM traced)'
        )
    if "PROCESSES" in _tables(export):
        rows = export.execute("SELECT rowid, name FROM PROCESSES WHERE name LIKE '%/%'").fetchall()
        bare = [(name.rsplit("/", 1)[1], row) for row, name in rows]
        export.executemany("UPDATE PROCESSES SET name = ? WHERE rowid = ?", bare)


def _blank_serial_numbers(export: sqlite3.Connection) -> None:
    """Give each GPU a made uuid: two GPUs stay two, and neither is anybody's."""
    for table in ("TARGET_INFO_GPU", "TARGET_INFO_CUDA_DEVICE"):
        if "uuid" in _columns(export, table):
            seen = [uuid for (uuid,) in export.execute(f"SELECT DISTINCT uuid FROM {table} ORDER BY uuid")]
            made = [(f"00000000-0000-0000-0000-{index:012d}", uuid) for index, uuid in enumerate(seen)]
            export.executemany(f"UPDATE {table} SET uuid = ? WHERE uuid = ?", made)


def _drop_messages_with_paths(export: sqlite3.Connection) -> None:
    if "DIAGNOSTIC_EVENT" in _tables(export):
        export.execute("DELETE FROM DIAGNOSTIC_EVENT WHERE text LIKE '%/%'")


def _drop_unused_strings(export: sqlite3.Connection) -> None:
    export.execute("CREATE TEMP TABLE used (id INTEGER PRIMARY KEY)")
    for table in _tables(export):
        for column in _columns(export, table) & TEXT_COLUMNS:
            export.execute(
                f'INSERT OR IGNORE INTO used SELECT {column} FROM "{table}" WHERE {column} IS NOT NULL'
            )
    if "StringIds" in _tables(export):
        export.execute("DELETE FROM StringIds WHERE id NOT IN (SELECT id FROM used)")


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path)
    parser.add_argument("out", type=Path)
    chosen = parser.parse_args(arguments)
    if chosen.out.exists():
        parser.error(f"{chosen.out} exists: scrub writes a new file")
    try:
        scrub(chosen.report, chosen.out)
    except (OSError, sqlite3.Error) as error:
        parser.error(f"{chosen.report}: {error}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
