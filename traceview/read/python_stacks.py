"""Decodes the Python call stacks that nsys samples (`--python-sampling=true`), from a SQLite or a JSON export.

Each sample is an NVTX mark of the domain `Python Backtrace`. Its binary payload has little-endian words: flags (32
bits; 2: the thread holds the interpreter lock), 32 bits, the number of frames (64 bits), then function, file and line
of each frame (64 bits each), the innermost frame first. Function and file are ids of StringIds. The mark belongs to
the sampling thread; its category numbers the sampled Python thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from traceview.model.stacks import CallTree, Numbers
from traceview.read import raw
from traceview.read.nsys_json import records
from traceview.read.source import DecodedSize, display_name

if TYPE_CHECKING:
    from traceview.read.sqlite.database import Export

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
Block = tuple[pl.DataFrame, pl.Series]  # marks with COLUMNS, and the payload of each: Binary, or String in base64


def sqlite_samples(export: Export, nvtx: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the Python samples of a SQLite export as tables; {} if it was made without their payloads.

    `nvtx` is the table as it was read, in the order of its rows.
    """
    if PAYLOAD not in export.columns(raw.NVTX) or not {*COLUMNS, "domainId"} <= set(nvtx.columns):
        return {}
    domain = nvtx.filter(raw.creates_domain(DOMAIN))["domainId"]
    marks = nvtx.filter(pl.col("eventType") == MARK).select(*COLUMNS, pl.col("domainId").is_in(domain.implode()))
    return stack_tables(_mark_blocks(export, marks), DecodedSize(export.name))


def _mark_blocks(export: Export, marks: pl.DataFrame) -> Iterator[Block]:
    """Yield marks with their payloads: blobs, or texts that contain them in base64. An export has one of both.

    `marks` has COLUMNS and, as `domainId`, whether a mark is a sample.
    """
    is_mark = f"WHERE CASE typeof(eventType) WHEN 'integer' THEN eventType END = {MARK}"
    first = export.select(f"typeof({PAYLOAD})", raw.NVTX, f"{is_mark} AND {PAYLOAD} IS NOT NULL").fetchone()
    if first not in (("blob",), ("text",)):
        return
    is_blob = first == ("blob",)
    cursor = export.select(f"CASE typeof({PAYLOAD}) WHEN '{first[0]}' THEN {PAYLOAD} END", raw.NVTX, is_mark)
    for block in marks.iter_slices(BATCH_ROWS):
        values = [export.counted(value) for (value,) in islice(cursor, len(block))]
        payloads = pl.Series(values, dtype=pl.Binary) if is_blob else pl.Series(values, dtype=pl.String)
        if not is_blob:
            payloads = payloads.str.extract(BASE64)
        own = block["domainId"][: len(payloads)]
        yield block.head(len(payloads)).select(COLUMNS).filter(own), payloads.filter(own)


def json_samples(path: Path) -> dict[str, pl.DataFrame]:
    """Return the Python samples of a JSON export as tables. Raises DamagedExportError or ReportError."""
    return stack_tables(_json_blocks(path), DecodedSize(display_name(path)))


def _json_blocks(path: Path) -> Iterator[Block]:
    for events in records(path, "NvtxEvent", FIELDS, '"BinaryData"'):
        numbers = {"Timestamp": "start", "GlobalTid": "globalTid", "Category": "category"}
        events = events.drop_nulls("Category")  # NCCL's payloads have none
        payload = events["Payload"].struct.field("BinaryData").list.first().struct.field("Data")
        yield (
            events.select(pl.col(field).cast(pl.Int64, strict=False).alias(name) for field, name in numbers.items()),
            payload,
        )


def stack_tables(blocks: Iterable[Block], size: DecodedSize) -> dict[str, pl.DataFrame]:
    """Return PYTHON_SAMPLES, PYTHON_STACKS and PYTHON_FRAMES of blocks of marks.

    Payloads with an equal hash of 64 bits are equal, and are decoded once. Payloads of another form are left out.
    Raises ReportError above the limit of `size`.
    """
    samples, distinct = [], []
    seen = pl.Series("hash", [], dtype=pl.UInt64)
    for marks, payloads in blocks:
        hashes = payloads.hash().alias("hash")
        rows = hashes.arg_unique()
        rows = rows.filter(~hashes.gather(rows).is_in(seen.implode()))
        seen = pl.concat([seen, hashes.gather(rows)])
        samples.append(marks.with_columns(hashes))
        distinct.append(payloads.gather(rows))
        size.add(8 * 6 * len(marks) + 2 * int(distinct[-1].cast(pl.Binary).bin.size().sum()))
    stacks = pl.concat(distinct) if distinct else pl.Series(dtype=pl.Binary)
    stacks = stacks if stacks.dtype == pl.Binary else stacks.str.decode("base64", strict=False)
    good = ((stacks.bin.size() >= MIN_BYTES) & (stacks.bin.size() % 8 == 0)).fill_null(False)
    if not good.any():
        return {}
    tree, flags = _decoded(stacks.filter(good))
    known = {"hash": seen.filter(good), "holdsGil": (flags & HOLDS_GIL) // HOLDS_GIL, "stack": tree.leaf}
    table = pl.concat(samples).filter(pl.col("start").is_not_null())
    table = table.join(pl.DataFrame(known), on="hash", maintain_order="left")
    return {
        raw.PYTHON_SAMPLES: table.select(*COLUMNS, pl.col("start").alias("end"), "holdsGil", "stack"),
        raw.PYTHON_STACKS: pl.DataFrame({"parent": tree.parent, "frame": tree.frame}).cast(pl.Int64),
        raw.PYTHON_FRAMES: pl.DataFrame(tree.frames, schema=list(raw.TABLES[raw.PYTHON_FRAMES].needed)),
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
