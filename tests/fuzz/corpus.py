"""Small exports to damage: thinned samples with a real schema and real rows, about 100 KB each."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from tests.captures import sample

# Keep one launch in this many, with its operations.
KEPT = {
    "serial": 24, "dual": 24, "quad": 24, "ddp2": 40, "cudagraph": 1, "trainer/staged": 24, "trainer/graph": 2,
    "scenarios/managed": 1, "scenarios/p2p": 1, "scenarios/graph_nodes": 2, "scenarios/contexts": 1,
}  # fmt: skip
TRACES = {"graph": 10, "serial": 40}
EVENTS = ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "SYNCHRONIZATION", "CUDA_EVENT", "RUNTIME")
ENUMS = ("ENUM_CUDA_MEMCPY_OPER", "ENUM_CUDA_MEM_KIND", "ENUM_NSYS_EVENT_TYPE")


@dataclass(frozen=True, slots=True)
class Corpus:
    """Exports and traces of torch.profiler, all thinned."""

    exports: tuple[Path, ...]
    profiler: tuple[Path, ...]

    @classmethod
    def make(cls, folder: Path) -> Corpus:
        """Write the corpus into a folder. The same samples give the same bytes."""
        exports = [thinned(name, every, folder / f"{name.replace('/', '_')}.sqlite") for name, every in KEPT.items()]
        traces = [profiler_trace(name, every, folder / f"{name}.json") for name, every in TRACES.items()]
        return cls(tuple(exports), tuple(traces))


def profiler_trace(name: str, every: int, path: Path) -> Path:
    """Write one event in `every` of a torch.profiler sample to `path`, with all metadata."""
    whole = json.loads(gzip.decompress(sample(f"torch_profiler/{name}.json.gz").read_bytes()))
    kept = [event for number, event in enumerate(whole["traceEvents"]) if number % every == 0 or event.get("ph") == "M"]
    path.write_text(json.dumps({**whole, "traceEvents": kept}))
    return path


def thinned(name: str, every: int, path: Path) -> Path:
    """Write one launch in `every` of a sample to `path`."""
    shutil.copyfile(sample(f"{name}.sqlite"), path)
    return thinned_file(path, every, EVENTS)


def thinned_file(path: Path, every: int, events: tuple[str, ...]) -> Path:
    """Keep one launch in `every` of these tables in an export, and the names in use."""
    connection = sqlite3.connect(path)
    with connection:
        present = {table for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        for table in present:
            if table.startswith("ENUM_") and table not in ENUMS:
                connection.execute(f'DROP TABLE "{table}"')
        for event in events:
            if (table := f"CUPTI_ACTIVITY_KIND_{event}") in present:
                connection.execute(f"DELETE FROM {table} WHERE correlationId % ? <> 0", (every,))
        _strings(connection, present)
    connection.execute("PRAGMA page_size = 1024")
    connection.execute("VACUUM")
    connection.close()
    return path


def _strings(connection: sqlite3.Connection, present: set[str]) -> None:
    """Delete the unused names."""
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
