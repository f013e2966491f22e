"""`nsys export --type json` (of 2024; `jsonlines` since): nsys's raw records, one a line, and a line of strings.

What nsys keeps beside the records is not in it: names of GPUs, which streams are default ones, versions. Figures need
none of them, but a GPU that two processes share counts as two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import polars as pl

from traceview.errors import DamagedExportError, ReportError
from traceview.read import raw
from traceview.read.database import shown
from traceview.read.raw import RawCapture

BLOCK = 8 << 20
POLARS = (pl.exceptions.PolarsError, pl.exceptions.PanicException)
BROKEN = (*POLARS, ValueError, TypeError, KeyError, OverflowError, RecursionError)
MOST = 1 << 30  # of one line: the strings of a report are one
AGAIN = "export it again: nsys export --type jsonlines REPORT.nsys-rep"
FIRST = re.compile(rb'\s*\{\s*"(?:Type"\s*:\s*\d|data"\s*:\s*\[|type"\s*:\s*"(?:String|ThreadName)")')
RECORD = r'^\s*\{\s*"Type"\s*:\s*\d+\s*,\s*"(?:CudaEvent|TraceProcessEvent|NvtxEvent)"'
# How every line of nsys begins, and those whose records are read: what is damaged there is said.
LINE = r'^\s*(?:$|\{\s*"(?:Type"\s*:\s*\d+\s*,\s*"\w+Event"\s*:|data"|type"))'
READ = r'^\s*\{\s*"Type"\s*:\s*(?:48|59|60|79|80|106|127|130)\s*,'
NAMES = r'"data"|"(?:String|ThreadName)"'
LACKS = (
    "a json export of nsys: names of GPUs, default streams and versions are not in it, and a GPU that several "
    "processes share counts once for each; export with --type sqlite for all of it"
)


def _text(*names: str) -> dict[str, pl.DataType]:
    return {name: pl.String() for name in names}


PLACE = ("startNs", "endNs", "correlationId", "deviceId", "contextId", "streamId", "globalPid")
CUDA = _text(*PLACE) | {
    "kernel": pl.Struct(_text("shortName")),
    "memcpy": pl.Struct(_text("sizebytes", "copyKind", "srcKind", "dstKind")),
    "memset": pl.Struct(_text("sizebytes")),
    "graph": pl.Struct(_text("graphId")),
    "sync": pl.Struct(_text("eventId", "syncType")),
    "cudaEventRecord": pl.Struct(_text("eventId")),
}
CALL = _text("startNs", "endNs", "correlationId", "eventClass", "name", "globalTid")
RANGE = _text("Type", "Timestamp", "EndTimestamp", "Text", "TextId", "DomainId", "GlobalTid")
SCHEMA = pl.Struct(
    _text("Type") | {"CudaEvent": pl.Struct(CUDA), "TraceProcessEvent": pl.Struct(CALL), "NvtxEvent": pl.Struct(RANGE)}
)
# ENUM_NSYS_EVENT_CLASS
API_CLASSES, OVERHEAD_CLASS = (0, 1), 3


def is_export(head: bytes) -> bool:
    """Does a file that begins so hold nsys's records?"""
    return FIRST.match(head) is not None


def read_json_lines(path: Path) -> RawCapture:
    """Read the records. Raises DamagedExportError or ReportError with one line."""
    parts: dict[str, list[pl.DataFrame]] = {}
    damaged = 0
    try:
        with path.open("rb") as file:
            for lines in _blocks(file):
                damaged += _damaged(lines)
                for table, frame in _tables(lines):
                    parts.setdefault(table, []).append(frame)
    except OSError as error:
        raise ReportError(f"{shown(path)}: cannot be read ({error.strerror}); check its permissions") from None
    except BROKEN:
        raise DamagedExportError(f"{shown(path)}: cut off, or a line is no record of nsys; {AGAIN}") from None
    joined = {table: pl.concat(frames) for table, frames in parts.items()}
    if joined[raw.STRINGS].is_empty():
        raise DamagedExportError(f"{shown(path)}: cut off: has no strings, so nothing has a name; {AGAIN}")
    tables = {table: frame for table, frame in joined.items() if len(frame)}
    lost = (f"{damaged} lines are damaged, and were left out; {AGAIN}",) if damaged else ()
    return RawCapture(path.name, None, None, tables, (LACKS, *lost))


def _blocks(file: IO[bytes]) -> Iterator[pl.Series]:
    """Yield whole lines, some megabytes at a time."""
    rest = b""
    while block := file.read(max(BLOCK, len(rest))):
        whole, end, rest = (rest + block).rpartition(b"\n")
        if len(rest) > MOST:
            raise ValueError("a line without end")
        if end:
            yield _lines(whole)
    yield _lines(rest)


def _lines(text: bytes) -> pl.Series:
    return pl.Series(text.decode("utf-8", "replace").split("\n"), dtype=pl.String)


def _damaged(texts: pl.Series) -> int:
    """Return how many lines begin as none of nsys's, or should be read and cannot."""
    unread = texts.filter(~texts.str.contains(RECORD))
    return int((unread.str.contains(READ) | ~unread.str.contains(LINE)).sum())


def _tables(texts: pl.Series) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield what some lines say, table by table."""
    is_record = texts.str.contains(RECORD)
    events = texts.filter(is_record).str.json_decode(SCHEMA).struct.unnest()
    yield from _gpu_work(events["CudaEvent"].struct.unnest())
    yield from _calls(events["TraceProcessEvent"].struct.unnest())
    yield from _ranges(events["NvtxEvent"].struct.unnest())
    # What is no record: the strings, the names of threads; with --separate-strings a line each.
    yield from _names(texts.filter(~is_record & texts.str.contains(NAMES)).to_list())


def _gpu_work(events: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    place = [_whole(name, _column(name)) for name in PLACE]
    for part, table, fields in (
        ("kernel", raw.KERNEL, {"shortName": "shortName"}),
        (
            "memcpy",
            raw.MEMCPY,
            {"bytes": "sizebytes", "copyKind": "copyKind", "srcKind": "srcKind", "dstKind": "dstKind"},
        ),
        ("memset", raw.MEMSET, {"bytes": "sizebytes"}),
        ("graph", raw.GRAPH, {"graphId": "graphId"}),
        ("sync", raw.SYNCHRONIZATION, {"syncType": "syncType", "eventId": "eventId"}),
        ("cudaEventRecord", raw.CUDA_EVENT, {"eventId": "eventId"}),
    ):
        found = events.filter(pl.col(part).is_not_null()).with_columns(pl.col(part).struct.unnest())
        wanted = [*place, *(_whole(name, column) for column, name in fields.items())]
        frame = found.select(wanted)
        yield table, frame.select([one for one in raw.TABLES[table].columns if one in frame.columns])


def _column(name: str) -> str:
    return {"startNs": "start", "endNs": "end"}.get(name, name)


def _calls(events: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    # One that does not say when it began is a row all the same, which is counted where it is left out.
    found = events.filter(pl.any_horizontal(pl.all().is_not_null())).select(
        _whole("startNs", "start"),
        _whole("endNs", "end"),
        _whole("globalTid", "globalTid"),
        _whole("correlationId", "correlationId"),
        _whole("name", "nameId"),
        _whole("eventClass", "eventClass"),
    )
    yield raw.RUNTIME, found.filter(pl.col("eventClass").is_in(API_CLASSES)).drop("eventClass")
    yield raw.OVERHEAD, found.filter(pl.col("eventClass") == OVERHEAD_CLASS).select("start", "end")


def _ranges(events: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame]]:
    yield (
        raw.NVTX,
        events.filter(pl.col("Type").is_not_null()).select(
            _whole("Timestamp", "start"),
            _whole("EndTimestamp", "end"),
            _whole("Type", "eventType"),
            _whole("GlobalTid", "globalTid"),
            pl.col("Text").alias("text"),
            _whole("TextId", "textId"),
            _whole("DomainId", "domainId"),
        ),
    )


def _whole(name: str, column: str) -> pl.Expr:
    return pl.col(name).cast(pl.Int64).alias(column)


def _names(lines: list[str]) -> Iterator[tuple[str, pl.DataFrame]]:
    strings: list[tuple[int, str]] = []
    threads: list[tuple[int, int]] = []
    for line in lines:
        found = json.loads(line)
        data = found.get("data", [])
        if found.get("type") == "String":
            strings.append((int(found["id"]), _whole_text(found["value"])))
        elif found.get("type") == "ThreadName":
            threads.append((int(found["nameId"]), int(found["globalTid"])))
        elif data and isinstance(data[0], str):
            strings.extend((place, _whole_text(text)) for place, text in enumerate(data))
        else:
            threads.extend((int(one["nameIdx"]), int(one["globalTid"])) for one in data)
    yield raw.STRINGS, pl.DataFrame(strings, schema={"id": pl.Int64, "value": pl.String}, orient="row")
    yield "ThreadNames", pl.DataFrame(threads, schema={"nameId": pl.Int64, "globalTid": pl.Int64}, orient="row")


def _whole_text(value: object) -> str:
    return str(value).encode("utf-8", "replace").decode()  # JSON can write half a character, which no frame holds
