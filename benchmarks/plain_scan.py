"""The baseline of benchmarks: read the columns that an analysis needs with plain SQL.

An aggregate over all columns of a table is the cheapest query that reads every cell.

    python benchmarks/plain_scan.py REPORT.sqlite
"""

from __future__ import annotations

import sqlite3
import sys
from pathlib import Path

GPU_WORK = ["start", "end", "deviceId", "contextId", "streamId", "correlationId", "globalPid"]
COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": [*GPU_WORK, "shortName"],
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": GPU_WORK,
    "CUPTI_ACTIVITY_KIND_MEMCPY": [*GPU_WORK, "bytes", "copyKind", "srcKind", "dstKind"],
    "CUPTI_ACTIVITY_KIND_MEMSET": [*GPU_WORK, "bytes"],
    "CUPTI_ACTIVITY_KIND_RUNTIME": ["start", "end", "globalTid", "correlationId", "nameId"],
    "NVTX_EVENTS": ["start", "end", "eventType", "textId", "domainId", "globalTid"],
    "PROFILER_OVERHEAD": ["start", "end"],
}


def scan(report: Path) -> int:
    """Read all cells of COLUMNS that the report has, and return the number of rows."""
    export = sqlite3.connect(f"{report.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
    count = 0
    for table, columns in COLUMNS.items():
        present = {name for (name,) in export.execute("SELECT name FROM pragma_table_info(?)", (table,))}
        if present:
            cells = " | ".join(f'"{name}"' for name in columns if name in present)
            count += export.execute(f'SELECT count(*), max({cells}) FROM "{table}"').fetchone()[0]
    export.close()
    return count


if __name__ == "__main__":
    print(f"{scan(Path(sys.argv[1])):,} rows")
