"""Small exports to damage, each a thinned part of a sample: a real schema, real rows, some 100 KB."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from pathlib import Path

from tests.captures import sample

# One launch in so many stays, with all that belongs to it.
KEPT = {
    "serial": 24, "dual": 24, "quad": 24, "ddp2": 40, "cudagraph": 1, "trainer/staged": 24, "trainer/graph": 2,
    "scenarios/managed": 1, "scenarios/p2p": 1, "scenarios/graph_nodes": 2, "scenarios/contexts": 1,
}  # fmt: skip
EVENTS = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION", "CUDA_EVENT", "RUNTIME")
ENUMS = ("ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND", "ENUM_NSYS_EVENT_TYPE")


def make(folder: Path) -> list[Path]:
    """Write them all into a folder and return them; the same samples give the same bytes."""
    return [thinned(name, every, folder / f"{name.replace('/', '_')}.sqlite") for name, every in KEPT.items()]


def profiler_trace(path: Path) -> Path:
    """Write one event in ten of a sample of torch.profiler to `path`, with all that says what they are."""
    whole = json.loads(gzip.decompress(sample("torch_profiler/graph.json.gz").read_bytes()))
    kept = [event for number, event in enumerate(whole["traceEvents"]) if number % 10 == 0 or event.get("ph") == "M"]
    path.write_text(json.dumps({**whole, "traceEvents": kept}))
    return path


def thinned(name: str, every: int, path: Path) -> Path:
    """Write one launch in `every` of a sample to `path`."""
    shutil.copyfile(sample(f"{name}.sqlite"), path)
    connection = sqlite3.connect(path)
    with connection:
        present = {table for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in present:
            if table.startswith("ENUM_") and table not in ENUMS:
                connection.execute(f'DROP TABLE "{table}"')
        for event in EVENTS:
            if (table := f"CUPTI_ACTIVITY_KIND_{event}") in present:
                connection.execute(f"DELETE FROM {table} WHERE correlationId % ? <> 0", (every,))
        _strings(connection, present)
    connection.execute("PRAGMA page_size = 1024")
    connection.execute("VACUUM")
    connection.close()
    return path


def _strings(connection: sqlite3.Connection, present: set[str]) -> None:
    """Leave out the names that nothing uses any more."""
    users = {
        "CUPTI_ACTIVITY_KIND_KERNEL": ("shortName", "demangledName"),
        "CUPTI_ACTIVITY_KIND_RUNTIME": ("nameId",),
        "NVTX_EVENTS": ("textId",),
        "ThreadNames": ("nameId",),
    }
    used = [
        f"SELECT {column} FROM {table} WHERE {column} IS NOT NULL"
        for table, columns in users.items()
        if table in present
        for column in columns
    ]
    connection.execute(f"DELETE FROM StringIds WHERE id NOT IN ({' UNION '.join(used)})")
