"""Scanner for `nsys export --type json` (`jsonlines` since 2025): one record per line, decoded in blocks of lines.

Figures come from the SQLite export. The JSON export adds data that SQLite lacks, such as Python call stacks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import polars as pl

from traceview.errors import DamagedExportError, ReportError
from traceview.read.source import display_name

BLOCK_BYTES = 8 << 20
SPARSE_BYTES = 4 << 10  # bytes of text for each wanted line, from which lines are cut out one by one
MAX_LINE_BYTES = 1 << 30  # all strings of a report are one line
FIRST_RECORD = re.compile(rb'\s*\{\s*"(?:Type"\s*:\s*\d|data"\s*:\s*\[|type"\s*:\s*"(?:String|ThreadName)")')
RECORD = r'^\s*\{\s*"Type"\s*:\s*\d+\s*,\s*"'
DECODE_ERRORS = (pl.exceptions.PolarsError, pl.exceptions.PanicException, ValueError)


def is_export(head: bytes) -> bool:
    """Return whether a file with these first bytes is a JSON export."""
    return FIRST_RECORD.match(head) is not None


def records(path: Path, event: str, fields: Mapping[str, pl.DataType], containing: str = "") -> Iterator[pl.DataFrame]:
    """Yield the fields of every record of an event kind such as "NvtxEvent", one frame per block of lines.

    `containing` is a text that the wanted records contain. nsys writes numbers as texts. A field that a record lacks
    is null. Raises DamagedExportError or ReportError.
    """
    schema = pl.Struct({event: pl.Struct(dict(fields))})
    try:
        for lines in _line_blocks(path, containing.encode()):
            near = lines.filter(lines.str.contains(containing, literal=True)) if containing else lines
            chosen = near.filter(near.str.contains(f'{RECORD}{event}"'))
            yield chosen.str.json_decode(schema).struct.field(event).struct.unnest()
    except OSError as error:
        raise ReportError(f"{display_name(path)}: cannot be read ({error.strerror}); check its permissions") from None
    except DECODE_ERRORS:
        raise DamagedExportError(
            f"{display_name(path)}: cut off or damaged; export it again: nsys export --type json REPORT.nsys-rep"
        ) from None


def _line_blocks(path: Path, containing: bytes) -> Iterator[pl.Series]:
    """Yield complete lines in blocks of megabytes; lines without `containing` may be left out.

    Raises OSError, and ValueError for a line beyond MAX_LINE_BYTES.
    """
    rest = b""
    with path.open("rb") as file:
        while block := file.read(max(BLOCK_BYTES, len(rest))):
            complete, end, rest = (rest + block).rpartition(b"\n")
            if len(rest) > MAX_LINE_BYTES:
                raise ValueError("a line is too long")
            if end:
                yield _lines(_lines_with(containing, complete))
    yield _lines(_lines_with(containing, rest))


def _lines_with(word: bytes, text: bytes) -> bytes:
    """Return the lines that contain a word; the whole text if many do, because their lines are cut faster together."""
    if not word or text.count(word) * SPARSE_BYTES > len(text):
        return text
    lines, at = [], text.find(word)
    while at >= 0:
        end = text.find(b"\n", at)
        end = len(text) if end < 0 else end
        lines.append(text[text.rfind(b"\n", 0, at) + 1 : end])
        at = text.find(word, end)
    return b"\n".join(lines)


def _lines(text: bytes) -> pl.Series:
    return pl.Series(text.decode("utf-8", "replace").split("\n"), dtype=pl.String)
