"""Decodes the Python call stacks that nsys samples (`--python-sampling=true`), from a SQLite or a JSON export.

Each sample is an NVTX mark of the domain `Python Backtrace`. Its binary payload has little-endian words: flags (32
bits; 2: the thread holds the interpreter lock), 32 bits, the number of frames (64 bits), then function, file and line
of each frame (64 bits each), the innermost frame first. Function and file are ids of StringIds. The mark belongs to
the sampling thread; its category numbers the sampled Python thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import polars as pl

from traceview.model.call_tree import CallTree, Numbers
from traceview.read import raw
from traceview.read.limits import DecodedSize
from traceview.read.nsys_json import records
from traceview.read.source import display_name

DOMAIN = "Python Backtrace"
HOLDS_GIL = 2
HEAD_WORDS, FRAME_WORDS = 2, 3
MIN_BYTES = 8 * (HEAD_WORDS + FRAME_WORDS)
MAX_FRAMES = 1 << 10  # Python's default recursion limit is 1000
FIELDS = {
    **dict.fromkeys(("Timestamp", "Category", "GlobalTid"), pl.String()),
    "Payload": pl.Struct({"BinaryData": pl.List(pl.Struct({"Data": pl.String()}))}),
}
COLUMNS = ("start", "globalTid", "category")
MARK = 34  # eventType
PAYLOAD = "binaryData"
BASE64 = r"([A-Za-z0-9+/]{40,}={0,2})"
BATCH_ROWS = 20_000  # stacks of about 1 kB


def has_samples(nvtx: pl.DataFrame | None) -> bool:
    """Return whether NVTX_EVENTS names the domain of Python samples."""
    if nvtx is None or "text" not in nvtx.columns or nvtx.is_empty():
        return False
    return bool(((nvtx["eventType"] == raw.DOMAIN_CREATED) & (nvtx["text"] == DOMAIN)).any())


def sqlite_samples(connection: sqlite3.Connection, name: str) -> dict[str, pl.DataFrame]:
    """Return the Python samples of a SQLite export as tables; {} if it was made without their payloads."""
    present = {row[1] for row in connection.execute(f"PRAGMA table_info({raw.NVTX})")}
    if not {*COLUMNS, PAYLOAD} <= present:
        return {}
    return stack_tables(_mark_rows(connection), DecodedSize(name))


def _mark_rows(connection: sqlite3.Connection) -> Iterator[pl.DataFrame]:
    """Yield marks with a payload: a blob, or a text that contains it in base64."""
    integers = ", ".join(f"CASE typeof({name}) WHEN 'integer' THEN {name} END" for name in COLUMNS)
    cursor = connection.execute(
        f"SELECT {integers}, typeof({PAYLOAD}) = 'blob', CAST({PAYLOAD} AS BLOB) FROM {raw.NVTX} NOT INDEXED "
        f"WHERE eventType = {MARK} AND {PAYLOAD} IS NOT NULL"
    )
    schema = {**dict.fromkeys(COLUMNS, pl.Int64), "blob": pl.Int64, "stack": pl.Binary}
    while rows := cursor.fetchmany(BATCH_ROWS):
        marks = pl.DataFrame(rows, schema=schema, orient="row")
        text = pl.col("stack").cast(pl.String, strict=False).str.extract(BASE64).str.decode("base64", strict=False)
        yield marks.select(*COLUMNS, pl.when(pl.col("blob") == 1).then("stack").otherwise(text).alias("stack"))


def json_samples(path: Path) -> dict[str, pl.DataFrame]:
    """Return the Python samples of a JSON export as tables. Raises DamagedExportError or ReportError."""
    return stack_tables(_mark_frames(path), DecodedSize(display_name(path)))


def _mark_frames(path: Path) -> Iterator[pl.DataFrame]:
    for events in records(path, "NvtxEvent", FIELDS, '"BinaryData"'):
        payload = pl.col("Payload").struct.field("BinaryData").list.first().struct.field("Data")
        yield events.select(
            pl.col("Timestamp").cast(pl.Int64, strict=False).alias("start"),
            pl.col("GlobalTid").cast(pl.Int64, strict=False).alias("globalTid"),
            pl.col("Category").cast(pl.Int64, strict=False).alias("category"),
            payload.alias("stack"),
        ).with_columns(pl.col("stack").str.decode("base64", strict=False))


def stack_tables(marks: Iterable[pl.DataFrame], size: DecodedSize) -> dict[str, pl.DataFrame]:
    """Return PYTHON_SAMPLES, PYTHON_STACKS and PYTHON_FRAMES of marks with COLUMNS and `stack` (Binary).

    Equal stacks of a frame of marks are decoded once, and all frames share one tree. Payloads of another form are left
    out. Raises ReportError above the limit of `size`.
    """
    samples, trees, nodes = [], [], 0
    for block in marks:
        kept = block.drop_nulls(("start", "stack")).filter(
            (pl.col("stack").bin.size() >= MIN_BYTES) & (pl.col("stack").bin.size() % 8 == 0)
        )
        if kept.is_empty():
            continue
        distinct = kept.select("stack").unique(maintain_order=True).with_row_index("which")
        tree, flags = _decoded(distinct["stack"])
        which = kept.join(distinct, on="stack", how="left", maintain_order="left")["which"].to_numpy()
        samples.append(
            kept.select(*COLUMNS).with_columns(
                pl.Series("holdsGil", (flags[which] & HOLDS_GIL) // HOLDS_GIL, dtype=pl.Int64),
                pl.Series("stack", tree.leaf[which] + nodes, dtype=pl.Int64),
            )
        )
        trees.append(tree)
        nodes += len(tree.parent)
        size.add(8 * (5 * len(kept) + 5 * len(tree.parent)))
    if not samples:
        return {}
    merged, moved = CallTree.merge(trees)
    table = pl.concat(samples).with_columns(pl.col("start").alias("end"))
    return {
        raw.PYTHON_SAMPLES: table.with_columns(pl.Series("stack", moved[table["stack"].to_numpy()], dtype=pl.Int64)),
        raw.PYTHON_STACKS: pl.DataFrame({"parent": merged.parent, "frame": merged.frame}).cast(pl.Int64),
        raw.PYTHON_FRAMES: pl.DataFrame(merged.frames, schema=list(raw.TABLES[raw.PYTHON_FRAMES].needed)),
    }


def _decoded(stacks: pl.Series) -> tuple[CallTree, Numbers]:
    """Return the tree of distinct payloads, and the flags of each."""
    words = np.frombuffer(b"".join(stacks.to_list()), "<u8")
    count = (stacks.bin.size().to_numpy() // 8).astype(np.int64)
    first = np.cumsum(count) - count
    # nsys 2023.4 leaves other data in the upper half of numbers that have 32 bits.
    low = (words & 0xFFFFFFFF).astype(np.int64)
    depth = np.minimum(low[first + 1], (count - HEAD_WORDS) // FRAME_WORDS).clip(1, MAX_FRAMES)
    triples = np.repeat(first + HEAD_WORDS, depth) + FRAME_WORDS * _counts_from_zero(depth)
    frames = np.stack([low[triples], low[triples + 1], low[triples + 2]], axis=1)
    return CallTree.from_chains(frames, depth), low[first]


def _counts_from_zero(lengths: Numbers) -> Numbers:
    return np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
