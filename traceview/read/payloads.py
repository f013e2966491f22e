"""Decodes binary payloads of NVTX events: NCCL's calls with communicator, message size and ranks, and Python stacks.

nsys exports payloads only on request: `nsys export --include-blobs true` writes blobs to NVTX_EVENTS.binaryData, for
NCCL a header of 32 bytes with domain and schema, then the payload in the layout of NVTX_PAYLOAD_SCHEMA_ENTRIES, and
`--include-json true` writes JSON to jsonText. nsys 2024.2 exports NCCL's only with `--type json`: the payload alone,
without its layout. There all calls begin with the communicator, which is a hash of 64 bits; then come the number of
ranks in ncclCommInit..., and the size of the message in calls that send.

A sample of a Python stack (`--python-sampling=true`) is a mark of the domain `Python Backtrace`. Its payload has
little-endian words: flags (32 bits; 2: the thread holds the interpreter lock), 32 bits, the number of frames (64 bits),
then function, file and line of each frame (64 bits each), the innermost frame first. Function and file are ids of
StringIds. The mark belongs to the sampling thread; its category numbers the sampled Python thread.

`nsys export --type json` (`jsonlines` since 2025) has one record per line. Figures
come from the SQLite export: the JSON export adds what it lacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from traceview.errors import DamagedExportError, ReportError
from traceview.intervals import index_ranges
from traceview.model.stacks import CallTree, Numbers
from traceview.read import raw
from traceview.read.source import DecodedSize, display_name
from traceview.read.sqlite.database import Export, typed

FIRST_RECORD = re.compile(rb'\s*\{\s*"(?:Type"\s*:\s*\d|data"\s*:\s*\[|type"\s*:\s*"(?:String|ThreadName)")')
EVENT = re.compile(rb'\s*\{\s*"Type"\s*:\s*\d+\s*,\s*"NvtxEvent"')
DECODE_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError)


def is_export(head: bytes) -> bool:
    """Return whether a file with these first bytes is a JSON export."""
    return FIRST_RECORD.match(head) is not None


BATCH_ROWS = 20_000  # payloads of about 1 kB
PAYLOAD = "binaryData"
# The numbers of an event in a JSON export, which writes them as texts.
JSON_NUMBERS = {"Timestamp": "start", "GlobalTid": "globalTid", "Category": "category"}
JSON_FIELDS = {
    **dict.fromkeys(JSON_NUMBERS, pl.String()),
    "Payload": pl.Struct({"BinaryData": pl.List(pl.Struct({"Data": pl.String()}))}),
}


def json_payloads(path: Path) -> Iterator[pl.DataFrame]:
    """Yield the events of a JSON export with a payload: start, globalTid, category, and payload in base64.

    nsys writes numbers as texts. Raises DamagedExportError or ReportError.
    """
    schema = pl.Struct({"NvtxEvent": pl.Struct(JSON_FIELDS)})
    try:
        with path.open("rb") as file:
            lines = (line for line in file if b'"BinaryData"' in line and EVENT.match(line))
            while batch := list(islice(lines, BATCH_ROWS)):
                texts = pl.Series([line.decode("utf-8", "replace") for line in batch])
                events = texts.str.json_decode(schema).struct.field("NvtxEvent").struct.unnest()
                data = events["Payload"].struct.field("BinaryData").list.first().struct.field("Data")
                yield events.select(
                    *(pl.col(field).cast(pl.Int64, strict=False).alias(name) for field, name in JSON_NUMBERS.items()),
                    data.alias("payload"),
                )
    except OSError as error:
        raise ReportError(f"{display_name(path)}: cannot be read ({error.strerror}); check its permissions") from None
    except DECODE_ERRORS:
        raise DamagedExportError(
            f"{display_name(path)}: cut off or damaged; export it again: nsys export --type json REPORT.nsys-rep"
        ) from None


STACK_DOMAIN = "Python Backtrace"
HOLDS_GIL = 2
HEAD_WORDS, FRAME_WORDS = 2, 3
MIN_BYTES = 8 * (HEAD_WORDS + FRAME_WORDS)
MAX_FRAMES = 1 << 10  # Python's default recursion limit is 1000
COLUMNS = ("start", "globalTid", "category")
BASE64 = r"([A-Za-z0-9+/]{40,}={0,2})"
Block = tuple[pl.DataFrame, pl.Series]  # marks with COLUMNS, and the payload of each: Binary, or String in base64


def sqlite_samples(export: Export, nvtx: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the Python samples of a SQLite export as tables; {} if it was made without their payloads.

    `nvtx` is the table as it was read, in the order of its rows.
    """
    if PAYLOAD not in export.columns(raw.NVTX) or not {*COLUMNS, "domainId"} <= set(nvtx.columns):
        return {}
    domain = nvtx.filter(raw.creates_domain(STACK_DOMAIN))["domainId"]
    marks = nvtx.filter(pl.col("eventType") == raw.MARKED).select(*COLUMNS, pl.col("domainId").is_in(domain.implode()))
    return stack_tables(_mark_blocks(export, marks), DecodedSize(export.name))


def _mark_blocks(export: Export, marks: pl.DataFrame) -> Iterator[Block]:
    """Yield marks with their payloads: blobs, or texts that contain them in base64. An export has one of both.

    `marks` has COLUMNS and, as `domainId`, whether a mark is a sample.
    """
    is_mark = f"WHERE {typed('eventType', 'integer')} = {raw.MARKED}"
    first = export.select(f"typeof({PAYLOAD})", raw.NVTX, f"{is_mark} AND {PAYLOAD} IS NOT NULL").fetchone()
    if first not in (("blob",), ("text",)):
        return
    is_blob = first == ("blob",)
    cursor = export.select(typed(PAYLOAD, first[0]), raw.NVTX, is_mark)
    for block in marks.iter_slices(BATCH_ROWS):
        values = [export.counted(value) for (value,) in islice(cursor, len(block))]
        payloads = pl.Series(values, dtype=pl.Binary) if is_blob else pl.Series(values, dtype=pl.String)
        if not is_blob:
            payloads = payloads.str.extract(BASE64)
        own = block["domainId"][: len(payloads)]
        yield block.head(len(payloads)).select(COLUMNS).filter(own), payloads.filter(own)


def json_samples(path: Path) -> dict[str, pl.DataFrame]:
    """Return the Python samples of a JSON export as tables. Raises DamagedExportError or ReportError."""
    events = (events.drop_nulls("category") for events in json_payloads(path))  # NCCL's payloads have none
    return stack_tables(((own.select(COLUMNS), own["payload"]) for own in events), DecodedSize(display_name(path)))


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
    triples = np.repeat(first + HEAD_WORDS, depth) + FRAME_WORDS * index_ranges(np.zeros_like(depth), depth)
    frames = np.stack([low[triples], low[triples + 1], low[triples + 2]], axis=1)
    return CallTree.from_chains(frames, depth), low[first]


# The names of a payload's entries, and their columns; the number of ranks is in the payload of ncclCommInitRank.
ENTRIES = {"NCCL communicator ID": "communicator", "Message size [bytes]": "bytes", "No. of ranks": "ranks"}
ENTRY_BYTES = {"communicator": 8, "bytes": 8, "ranks": 4}
HEADER_BYTES = 32
DOMAIN_AT, SCHEMA_AT = 0, 8
MAX_PAYLOADS = 2_000_000
MAX_PAYLOAD_BYTES = 4096
PAYLOAD_SCHEMAS = "NVTX_PAYLOAD_SCHEMA_ENTRIES"
NCCL_DOMAIN = "NCCL"
NEEDED = {"start", "end", "globalTid"}
NUMBER = r'"\s*:\s*"?([0-9][0-9,]{0,25})"?\s*[,}]'
INIT = "^ncclCommInit"
SENDS = "^nccl(?:All|Reduce|Broadcast|Bcast|Send|Recv|Gather|Scatter)"
# Older versions of NCCL write the message size first, and omit the communicator. One hash in 16 million is below HASH.
HASH, MAX_BYTES = 1 << 40, 1 << 45
BOTH_WORDS = 16
Offsets = Mapping[tuple[int, int], Mapping[str, int]]


def nccl_calls(export: Export, strings: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return raw.NCCL_CALLS of an export; {} if it was made without payloads. `strings` is its table StringIds."""
    if raw.NVTX not in export.tables or not set(export.columns(raw.NVTX)) >= NEEDED:
        return {}
    offsets = _offsets(export)
    blobs = _blob_calls(_rows(export, strings, PAYLOAD), offsets) if offsets else ()
    texts = _json_calls(_rows(export, strings, "jsonText")) if _may_hold_json(export) else ()
    size = DecodedSize(export.name)
    frames = []
    for frame in (*blobs, *texts):
        size.add(8 * frame.width * frame.height)
        frames.append(frame)
    return {raw.NCCL_CALLS: pl.concat(frames).sort("start", maintain_order=True)} if frames else {}


def calls_from_json(path: Path, tables: Mapping[str, pl.DataFrame], name: str) -> dict[str, pl.DataFrame]:
    """Return raw.NCCL_CALLS of the JSON export of the report that `tables` are of; {} if no call has a communicator.

    Raises DamagedExportError or ReportError.
    """
    nvtx, size, frames = tables[raw.NVTX], DecodedSize(name), []
    domains = nvtx.filter(raw.creates_domain(NCCL_DOMAIN))["domainId"]
    texts = tables[raw.STRINGS].select(pl.col("id").alias("textId"), pl.col("value").alias("registered"))
    named = (
        nvtx.filter(pl.col("domainId").is_in(domains.implode()))
        .join(texts, on="textId", how="left", maintain_order="left")
        .select("start", "end", "globalTid", pl.coalesce("text", "registered").alias("name"))
        .unique(("start", "globalTid"), keep="first", maintain_order=True)
    )
    for events in json_payloads(path):
        payloads = events.select("start", "globalTid", pl.col("payload").str.decode("base64", strict=False))
        known = pl.col("payload").bin.size().is_between(BOTH_WORDS, MAX_PAYLOAD_BYTES)
        calls = payloads.filter(known).join(named, on=("start", "globalTid"), maintain_order="left")
        size.add(8 * calls.width * calls.height)
        if not calls.is_empty():
            frames.append(_calls_of_words(calls))
    calls = pl.concat(frames) if frames else pl.DataFrame()
    return {} if calls.is_empty() else {raw.NCCL_CALLS: calls.sort("start", maintain_order=True)}


def _calls_of_words(calls: pl.DataFrame) -> pl.DataFrame:
    """Return raw.NCCL_CALLS of calls whose `payload` begins with a communicator."""
    words = b"".join(payload[:BOTH_WORDS] for payload in calls["payload"].to_list())
    communicator, second = np.frombuffer(words, "<u8").reshape(-1, 2).T
    init, sends = (calls["name"].str.contains(pattern).fill_null(False) for pattern in (INIT, SENDS))
    kept = pl.Series((communicator >= HASH) & (second < MAX_BYTES)) & sends | pl.Series(communicator >= HASH) & init
    ranks = pl.Series(second & 0xFFFFFFFF, dtype=pl.UInt64)
    values = {
        "communicator": pl.Series(communicator).filter(kept),
        "bytes": _where(sends, pl.Series(second)).filter(kept),
        "ranks": _where(init, ranks).filter(kept),
    }
    return _calls(calls.filter(kept), values)


def _where(chosen: pl.Series, values: pl.Series) -> pl.Series:
    """Return values, null where they are not chosen."""
    return values.zip_with(chosen, pl.Series([None], dtype=values.dtype).new_from_index(0, len(values)))


def _may_hold_json(export: Export) -> bool:
    """Return whether the export does not state that it left JSON out: the search for it reads all events."""
    return export.metadata().get("EXPORT_PARAM_INCLUDE_JSON") != "false"


def _rows(export: Export, strings: pl.DataFrame, payload: str) -> Iterator[pl.DataFrame]:
    """Yield the events with a payload in this column, in batches with start, end, globalTid, name and payload."""
    columns = export.columns(raw.NVTX)
    if payload not in columns:
        return
    kinds = dict.fromkeys(("start", "end", "globalTid", "textId"), "integer") | {"text": "text"}
    values = [typed(name, kind) if name in columns else "NULL" for name, kind in kinds.items()]
    # SQLite knows the length of a blob without reading it. The export counts texts.
    fits = f"typeof({payload}) = 'text' OR typeof({payload}) = 'blob' AND length({payload}) <= {MAX_PAYLOAD_BYTES}"
    cursor = export.select(f"{', '.join(values)}, {payload}", raw.NVTX, f"WHERE {fits} LIMIT {MAX_PAYLOADS}")
    registered = strings.select(pl.col("id").alias("textId"), pl.col("value").alias("registered"))
    registered = registered.unique("textId", keep="first")
    while rows := cursor.fetchmany(BATCH_ROWS):
        payloads = [value.encode() if isinstance(value, str) else export.counted(value) for *_, value in rows]
        schema = {name: pl.String if kind == "text" else pl.Int64 for name, kind in kinds.items()}
        events = pl.DataFrame([row[:-1] for row in rows], schema=schema, orient="row")
        events = events.with_columns(pl.Series("payload", payloads, dtype=pl.Binary))
        named = events.join(registered, on="textId", how="left", maintain_order="left")
        short = named.filter(pl.col("payload").bin.size() <= MAX_PAYLOAD_BYTES)
        yield short.select(
            "start", "end", "globalTid", pl.coalesce("text", "registered").alias("name"), "payload"
        ).drop_nulls(("start", "globalTid", "payload"))


def _offsets(export: Export) -> Offsets:
    """Return the offset of each of ENTRIES in payloads that name a communicator, by (domain, schema)."""
    wanted = ("domainId", "schemaId", "name", "offset")
    if PAYLOAD_SCHEMAS not in export.tables or not set(wanted) <= set(export.columns(PAYLOAD_SCHEMAS)):
        return {}
    offsets: dict[tuple[int, int], dict[str, int]] = {}
    for domain, schema, name, offset in export.select('domainId, schemaId, name, "offset"', PAYLOAD_SCHEMAS):
        place = 0 if offset is None else offset
        if name in ENTRIES and isinstance(place, int) and 0 <= place < MAX_PAYLOAD_BYTES:
            offsets.setdefault((domain, schema), {})[ENTRIES[name]] = place
    return {key: entries for key, entries in offsets.items() if "communicator" in entries}


def _blob_calls(batches: Iterator[pl.DataFrame], offsets: Offsets) -> Iterator[pl.DataFrame]:
    for batch in batches:
        sized = batch.with_columns(pl.col("payload").bin.size().alias("size")).filter(pl.col("size") > HEADER_BYTES)
        for (size,), group in sized.group_by("size"):
            assert isinstance(size, int)
            table = np.frombuffer(b"".join(group["payload"].to_list()), np.uint8).reshape(len(group), size)
            domain, schema = (_unsigned(table, place, 4) for place in (DOMAIN_AT, SCHEMA_AT))
            for (own_domain, own_schema), entries in offsets.items():
                rows = np.flatnonzero((domain == own_domain) & (schema == own_schema))
                ends = [HEADER_BYTES + offset + ENTRY_BYTES[name] for name, offset in entries.items()]
                if len(rows) and max(ends) <= size:
                    values = {
                        name: _unsigned(table[rows], HEADER_BYTES + offset, ENTRY_BYTES[name])
                        for name, offset in entries.items()
                    }
                    yield _calls(group[rows], {name: pl.Series(value) for name, value in values.items()})


def _unsigned(table: NDArray[np.uint8], place: int, width: int) -> NDArray[np.unsignedinteger[Any]]:
    """Return the little-endian numbers at a place of each row."""
    return np.ascontiguousarray(table[:, place : place + width]).view(f"<u{width}")[:, 0]


def _json_calls(batches: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    for batch in batches:
        text = batch["payload"].cast(pl.String, strict=False)
        values = {
            column: _whole_number(text.str.extract(rf'"{re.escape(name)}{NUMBER}')) for name, column in ENTRIES.items()
        }
        known = values["communicator"].is_not_null()
        if known.any():
            yield _calls(batch.filter(known), {name: value.filter(known) for name, value in values.items()})


def _whole_number(digits: pl.Series) -> pl.Series:
    return digits.str.replace_all(",", "").cast(pl.UInt64, strict=False)


def _calls(events: pl.DataFrame, values: Mapping[str, pl.Series]) -> pl.DataFrame:
    """Return raw.NCCL_CALLS of events with known values; a value that no call can have is null."""
    absent = pl.Series([None], dtype=pl.Int64).new_from_index(0, len(events))
    number = {name: values.get(name, absent).cast(pl.Int64, strict=False) for name in ("bytes", "ranks")}
    identity = pl.Series([f"{value:016x}" for value in values["communicator"].to_list()], dtype=pl.String)
    return events.select("start", "end", "globalTid", "name").with_columns(
        identity.alias("communicator"), *(series.alias(name) for name, series in number.items())
    )
