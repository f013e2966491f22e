"""Scanner for `nsys export --type json` (`jsonlines` since 2025): one record a line, decoded block by block.

Figures come from the SQLite export. The json export has what that lacks, such as Python call stacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError, ReportError
from traceview.read.sqlite.database import shown

BLOCK = 8 << 20  # bytes
MAX_LINE = 1 << 30  # bytes; all strings of a report are one line
FIRST = re.compile(rb'\s*\{\s*"(?:Type"\s*:\s*\d|data"\s*:\s*\[|type"\s*:\s*"(?:String|ThreadName)")')
RECORD = r'^\s*\{\s*"Type"\s*:\s*\d+\s*,\s*"'
UNREADABLE = (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError)


def is_export(head: bytes) -> bool:
    """Does a file that begins with these bytes hold nsys's records?"""
    return FIRST.match(head) is not None


def records(path: Path, event: str, fields: Mapping[str, pl.DataType]) -> Iterator[pl.DataFrame]:
    """Yield the fields of every record of an event kind such as "NvtxEvent", one frame for a block of lines.

    nsys writes numbers as texts. A field that a record lacks is null. Raises DamagedExportError or ReportError.
    """
    schema = pl.Struct({event: pl.Struct(dict(fields))})
    try:
        for lines in _line_blocks(path):
            chosen = lines.filter(lines.str.contains(f'{RECORD}{event}"'))
            yield chosen.str.json_decode(schema).struct.field(event).struct.unnest()
    except OSError as error:
        raise ReportError(f"{shown(path)}: cannot be read ({error.strerror}); check its permissions") from None
    except UNREADABLE:
        raise DamagedExportError(
            f"{shown(path)}: cut off or damaged; export it again: nsys export --type json REPORT.nsys-rep"
        ) from None


def _line_blocks(path: Path) -> Iterator[pl.Series]:
    """Yield whole lines, some megabytes at a time. Raises OSError, and ValueError for a line beyond MAX_LINE."""
    rest = b""
    with path.open("rb") as file:
        while block := file.read(max(BLOCK, len(rest))):
            whole, end, rest = (rest + block).rpartition(b"\n")
            if len(rest) > MAX_LINE:
                raise ValueError("a line without end")
            if end:
                yield _lines(whole)
    yield _lines(rest)


def _lines(text: bytes) -> pl.Series:
    return pl.Series(text.decode("utf-8", "replace").split("\n"), dtype=pl.String)
