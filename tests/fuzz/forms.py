"""The forms of a report in a case: compressed, a folder of tables, a torch.profiler trace."""

from __future__ import annotations

import gzip
import json
import lzma
import random
import shutil
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from tests.fuzz.corpus import Corpus
from tests.fuzz.damage import damaged
from tests.fuzz.plain import plain
from tests.fuzz.texts import changed_values, dumped, encoded, littered

TYPES: tuple[Any, ...] = (
    pl.Float64, pl.String, pl.Binary, pl.Boolean, pl.UInt64, pl.Int8, pl.UInt32, pl.Categorical, pl.Datetime,
    pl.Duration, pl.Decimal(38, 4), pl.List(pl.Int64), pl.Struct({"a": pl.Int64}), pl.Null, pl.Int128, pl.Time,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Given:
    """A report in a form. `origin` is an SQLite export with the same figures."""

    path: Path
    form: str
    origin: Path | None = None


def hand_over(report: Path, form: str, corpus: Corpus, chance: random.Random) -> Given:
    """Convert an SQLite export to a form, sometimes with damage; unchanged if it has no tables for the form."""
    if form == "profiler":
        report.write_bytes(profiler_trace(corpus, chance))
        return Given(report, form)
    if form in ("gz", "xz", "zst"):
        return _packed(report, form, corpus, chance)
    origin = report.with_name(".plain.sqlite")
    if form not in ("parquet", "arrow") or not plain(report, origin):
        origin.unlink(missing_ok=True)
        return Given(report, "sqlite")
    report.unlink()
    others = [item.read_bytes() for item in corpus.exports]
    return _folder(origin, report.with_name("report_tables"), form, others, chance)


def pack(data: bytes, form: str) -> bytes:
    """Return bytes compressed as gz, xz or zst, reproducibly."""
    if form == "gz":
        return gzip.compress(data, 1, mtime=0)
    if form == "xz":
        return lzma.compress(data, preset=0)
    try:
        import zstandard
    except ImportError:
        return gzip.compress(data, 1, mtime=0)
    packed: bytes = zstandard.ZstdCompressor(1).compress(data)
    return packed


def _packed(report: Path, form: str, corpus: Corpus, chance: random.Random) -> Given:
    data = profiler_trace(corpus, chance) if chance.random() < 0.2 else report.read_bytes()
    how = chance.choice(("whole", "damaged", "damaged", "parts", "twice", "more"))
    packed = pack(data, form)
    if how == "damaged":
        packed = damaged(packed, chance, [item.read_bytes() for item in corpus.exports])
    elif how == "parts":
        at = chance.randrange(len(data))
        packed = pack(data[:at], form) + pack(data[at:], form)
    elif how == "twice":
        packed = pack(packed, chance.choice(("gz", "xz", "zst")))
    elif how == "more":
        packed += chance.choice((b"\x00", bytes(512), b"x" * 100, packed[:50]))
    report.write_bytes(packed)
    return Given(report, f"{form} {how}")


def profiler_trace(corpus: Corpus, chance: random.Random) -> bytes:
    """Return a torch.profiler trace with changed structure, text or bytes."""
    document = json.loads(chance.choice(corpus.profiler).read_text())
    if chance.random() < 0.8:
        changed_values(document["traceEvents"], chance)
    if chance.random() < 0.2:
        around = [{key: value for key, value in document.items() if key != "traceEvents"}]
        changed_values(around, chance)
        rest = around[0] if around and isinstance(around[0], dict) else {}
        document = chance.choice((rest | {"traceEvents": document["traceEvents"]}, document | rest))
    if chance.random() < 0.05:
        document = chance.choice(
            (document["traceEvents"], {"a": document}, {"traceEvents": document}, {"traceEvents": {"a": 1}})
        )
    data = encoded(dumped(document, chance), chance)
    if chance.random() < 0.25:
        data = littered(data, chance)
    if chance.random() < 0.15:
        data = damaged(data, chance, [item.read_bytes() for item in corpus.profiler])
    return pack(data, "gz") if chance.random() < 0.3 else data


def _folder(origin: Path, folder: Path, form: str, others: Sequence[bytes], chance: random.Random) -> Given:
    as_tables(origin, folder, form)
    how = chance.choice(("whole", "whole", "changed", "changed", "damaged"))
    item = chance.choice(sorted(folder.iterdir()))
    if how == "damaged":
        item.write_bytes(damaged(item.read_bytes(), chance, others))
    elif how == "changed":
        _changed_table(item, chance)
    return Given(folder, f"{form} {how}", origin if how == "whole" else None)


def as_tables(export: Path, folder: Path, form: str) -> None:
    """Write the tables of a plain export as a parquetdir or arrowdir."""
    folder.mkdir()
    connection = sqlite3.connect(f"{export.absolute().as_uri()}?immutable=1", uri=True)
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        cursor = connection.execute(f'SELECT * FROM "{name}"')
        columns = [str(column[0]) for column in cursor.description]
        rows = cursor.fetchall()
        made = []
        for index, column in enumerate(columns):
            values = [row[index] for row in rows]
            kind = pl.String if any(isinstance(item, str) for item in values) else pl.Int64
            made.append(pl.Series(column, values, kind))
        write_table(pl.DataFrame(made), folder / f"{name}.{form}")
    connection.close()


def write_table(frame: pl.DataFrame, path: Path) -> None:
    """Write a table in the format of its suffix."""
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_ipc_stream(path)


def _changed_table(path: Path, chance: random.Random) -> None:
    """Write a table with other column types or columns, or as an invalid table."""
    frame = pl.read_parquet(path) if path.suffix == ".parquet" else pl.read_ipc_stream(path)
    column, how = chance.choice(frame.columns), chance.randrange(8)
    other = chance.choice(sorted(path.parent.iterdir()))
    if how < 4:
        values = frame[column]
        for kind in chance.sample(TYPES, len(TYPES)):
            try:
                frame = frame.with_columns(values.cast(kind, strict=False).alias(column))
                write_table(frame, path)
                return
            except BaseException as error:  # a panic of polars is no Exception
                if isinstance(error, (KeyboardInterrupt, SystemExit, MemoryError)):
                    raise
    elif how == 4:
        write_table(frame.drop(column) if frame.width > 1 else frame.rename({column: "strange"}), path)
    elif how == 5:
        write_table(pl.concat([frame] * chance.choice((2, 3))), path)
    elif how == 6:
        path.unlink()
        chance.choice((path.mkdir, lambda: path.symlink_to(path.name), lambda: path.write_bytes(b""), lambda: None))()
    else:
        shutil.copyfile(other, path) if other != path else path.unlink()
