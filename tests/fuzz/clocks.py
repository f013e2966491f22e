"""Clocks and names of a case: what the document says of them is applied to the export, and checked."""

from __future__ import annotations

import re
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GPU_TABLES = [f"CUPTI_ACTIVITY_KIND_{name}" for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE")]
TIMES = "typeof(start) = 'integer' AND typeof(\"end\") = 'integer'"


def on_host_clock(export: Path, result: dict[str, Any], folder: Path) -> Path:
    """Return the export, or a copy of it with the times of GPUs corrected by the offsets that a document states."""
    moved = [device for device in result["devices"] if device["clock"]["offset_ns"]]
    if not moved:
        return export
    copy = folder / "on_host_clock.sqlite"
    shutil.copy(export, copy)
    with sqlite3.connect(copy) as connection:
        present = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for device in moved:
            ordinal, ns = int(re.findall(r"GPU (\d+)", device["id"])[0]), device["clock"]["offset_ns"]
            of_device = f"coalesce(deviceId, 0) = {ordinal} AND (globalPid >> 24) & 0xFFFFFF IN "
            of_device += f"({', '.join(map(str, device['process_ids']))})"
            for table in sorted(present & set(GPU_TABLES)):
                connection.execute(
                    f'UPDATE "{table}" SET start = start - {ns}, "end" = "end" - {ns} WHERE {TIMES} AND {of_device}'
                )
    connection.close()
    return copy


def unnamed(result: dict[str, Any], export: Path) -> Iterator[str]:
    """Yield a line if kernels have no name and no note counts them."""
    connection = sqlite3.connect(export.as_uri() + "?mode=ro", uri=True)
    query = (
        f'SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL WHERE {TIMES} AND "end" >= start '
        "AND typeof(shortName) = 'integer' AND shortName NOT IN (SELECT id FROM StringIds WHERE typeof(id) = 'integer')"
    )
    try:
        (count,) = connection.execute(query).fetchone()
    except sqlite3.Error:
        return  # without kernels
    finally:
        connection.close()
    counted = any(note["id"] == "missing_names" and "kernel" in note["text"] for note in result["notes"])
    if count and result["devices"] and not counted and sum(device["kernel_count"] for device in result["devices"]):
        yield f"{count} kernels have no name, but no note counts them"
