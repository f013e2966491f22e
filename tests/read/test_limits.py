"""Hand-made small files that decode to gigabytes: little memory, or a one-line error."""

from __future__ import annotations

import gzip
import lzma
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from tests.captures import ROOT, sample
from tests.cli.command import Command
from tests.read.kineto.test_hostile import CALL, KERNEL, trace
from tests.read.shared_pages import share_overflow
from tests.read.test_formats import REPORT, as_directory, script, zstd
from traceview.errors import ReportError
from traceview.read.raw import as_stored
from traceview.read.source import MAX_DECODED, DecodedSize, size_text
from traceview.read.sqlite.database import open_export

MEGABYTE, PAGE = 1 << 20, 4096
PEAK = 1500  # MB that analyze may hold
MEASURED = """
import resource, subprocess, sys
ended = subprocess.run([sys.executable, "-m", "traceview", *sys.argv[1:]], capture_output=True, text=True)
print(ended.returncode, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10, ended.stderr)
"""


def peak(command: str, path: Path, *more: str) -> tuple[int, int, str]:
    """Run a command in its own process; return its exit code, peak memory in MB and errors."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "2"}
    ended = subprocess.run(
        [sys.executable, "-c", MEASURED, command, str(path), *more],
        env=environment, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    code, memory, message = ended.stdout.split(" ", 2)
    return int(code), int(memory), message.strip()


def repeated(count: int, length: int = MEGABYTE) -> pl.Series:
    """Return rows of two long texts that share their memory."""
    texts = pl.Series("value", ["x" * length, "y" * length])
    return texts.gather([row % 2 for row in range(count)])


def folder_with(folder: Path, suffix: str, texts: pl.Series, **options: object) -> Path:
    """Write a sample as a folder of tables with these texts added to StringIds."""
    made = as_directory(sample("cudagraph.sqlite"), folder / suffix[1:], suffix)
    path = made / f"StringIds{suffix}"
    known = pl.read_parquet(path) if suffix == ".parquet" else pl.read_ipc_stream(path)
    rows = pl.DataFrame({"id": pl.int_range(1_000_000, 1_000_000 + len(texts), eager=True), "value": texts})
    both = pl.concat([known.select("id", pl.col("value").cast(texts.dtype)), rows.cast({"id": known["id"].dtype})])
    write = both.write_parquet if suffix == ".parquet" else both.write_ipc_stream
    write(path, **options)  # type: ignore[operator]
    return made


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_long_dictionary_texts_take_little_memory(tmp_path: Path, suffix: str) -> None:
    """400 MB of names, below the limit, are stored once each."""
    texts = repeated(400) if suffix == ".parquet" else repeated(400).cast(pl.Categorical)
    folder = folder_with(tmp_path, suffix, texts)
    assert (folder / f"StringIds{suffix}").stat().st_size < 3 * MEGABYTE
    (tmp_path / "without").mkdir()
    without = folder_with(tmp_path / "without", suffix, texts.head(0))
    for command in (["analyze", "--no-html"], ["info"]):
        code, memory, message = peak(command[0], folder, *command[1:])
        assert (code, message) == (0, "")
        assert memory - peak(command[0], without, *command[1:])[1] < 400


@pytest.mark.parametrize(("suffix", "compression"), [(".parquet", "zstd"), (".arrow", "zstd")])
def test_tables_above_the_limit(tmp_path: Path, suffix: str, compression: str) -> None:
    """600 MB of different names that take less than a megabyte."""
    texts = pl.Series("value", [f"{row:08}{'x' * MEGABYTE}" for row in range(600)])
    folder = folder_with(tmp_path, suffix, texts, compression=compression)
    assert (folder / f"StringIds{suffix}").stat().st_size < MEGABYTE
    code, memory, message = peak("analyze", folder, "--no-html", "--max-decoded", "200MB")
    assert (code, message.count("\n")) == (2, 0)
    assert message.startswith(f"traceview: error: {folder.name}: StringIds{suffix} is damaged, or decodes to more than")
    assert message.endswith("raise the limit: --max-decoded 400MB")
    assert memory < 600


def test_repeated_texts_above_the_limit(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, ".parquet", repeated(600))
    assert (folder / "StringIds.parquet").stat().st_size < MEGABYTE
    code, memory, message = peak("analyze", folder, "--no-html", "--max-decoded", "600MB")
    assert (code, message) == (
        2,
        f"traceview: error: {folder.name}: decodes to more than 600MB; if you trust it, raise the limit: "
        "--max-decoded 1.2GB",
    )
    assert memory < 600  # MB that the names would take if they were not shared


def test_columns_as_sqlite_stores_them() -> None:
    for values, stored in (
        (pl.Series(["a", None, "b", "a"], dtype=pl.Categorical), ["a", None, "b", "a"]),
        (pl.Series(["a", None, "b"], dtype=pl.Enum(["b", "a"])), ["a", None, "b"]),
        (pl.Series([b"a", None, b"\xff", b"a"]), ["a", None, "\ufffd", "a"]),
        (pl.Series([2**64 - 1, None], dtype=pl.UInt64), [-1, None]),
        (pl.Series([True, None]), [1, None]),
        (pl.Series([[1], None]), [b"", None]),
    ):
        assert as_stored(values).to_list() == stored


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_texts_above_64_mb(tmp_path: Path, suffix: str) -> None:
    folder = folder_with(tmp_path, suffix, repeated(1, 65 * MEGABYTE))
    code, memory, message = peak("analyze", folder, "--no-html")
    assert (code, message.count("\n")) == (2, 0)
    assert message.startswith(f"traceview: error: {folder.name}: holds a text of 68.2MB, and the limit is 67.1MB; ")
    assert memory < PEAK


def test_trace_events_above_64_mb(tmp_path: Path) -> None:
    path = trace(tmp_path / "run.json", {**KERNEL, "name": "k" * (120 * MEGABYTE)}, CALL)
    code, memory, message = peak("analyze", path, "--no-html")
    assert (code, message.count("\n")) == (2, 0)
    assert message.startswith("traceview: error: run.json: ") and "holds an event of more than 64 MB" in message
    assert memory < PEAK


def test_long_trace_names_take_little_memory(tmp_path: Path) -> None:
    path = trace(tmp_path / "run.json", *[{**KERNEL, "name": name * (40 * MEGABYTE)} for name in "abcd"], CALL)
    code, memory, message = peak("analyze", path, "--no-html")
    assert (code, message) == (0, "")
    assert memory < PEAK


def test_traces_above_the_limit(traceview: Command, tmp_path: Path) -> None:
    path = trace(tmp_path / "run.json", *[KERNEL] * 100, CALL)
    assert traceview("analyze", path, "--no-html", "--quiet", "--max-decoded", "100kB").code == 0
    code, _, message = traceview("analyze", path, "--no-html", "--max-decoded", "5kB")
    assert (code, message.count("\n")) == (2, 1) and "run.json: decodes to more than 5kB" in message


@pytest.mark.parametrize(("suffix", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("zst", zstd)])
def test_decompression_stops_at_the_limit(
    traceview: Command, tmp_path: Path, suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    path = tmp_path / f"bomb.sqlite.{suffix}"
    path.write_bytes(pack(b"SQLite format 3\x00" + bytes(20 * MEGABYTE)))
    code, out, message = traceview("analyze", path, "--max-decoded", "10MB")
    assert (code, out, message) == (
        2, "",
        f"traceview: error: {path.name}: unpacks to more than 10MB; if you trust it, raise the limit: "
        "--max-decoded 20MB\n",
    )  # fmt: skip


def shared_overflow(path: Path, rows: int, length: int) -> Path:
    """Write a database whose rows share their overflow pages, which SQLite does not check."""
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA page_size = {PAGE}")
    connection.execute("CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT)")
    connection.execute("INSERT INTO StringIds VALUES (0, ?)", ("x" * length,))
    connection.executemany("INSERT INTO StringIds VALUES (?, ?)", [(row, "y" * length) for row in range(1, rows)])
    connection.commit()
    connection.close()
    share_overflow(path, "StringIds")
    return path


def test_rows_that_share_overflow_pages(tmp_path: Path) -> None:
    """The texts are cut off as they are read, and counted."""
    path = shared_overflow(tmp_path / "a.sqlite", 40, 3 * MEGABYTE)
    with open_export(path) as export:
        texts = {text for (text,) in export.select("value", "StringIds")}
    assert all(text.endswith("x") and len(text) < 140_000 for text in texts)
    before = MAX_DECODED.set(2_000_000)
    try:
        refused = pytest.raises(ReportError, match=r"a\.sqlite: decodes to more than 2MB")
        with refused, open_export(path) as export:
            export.select("value", "StringIds").fetchall()
    finally:
        MAX_DECODED.reset(before)


def test_nsys_export_above_the_limit(traceview: Command, tmp_path: Path) -> None:
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(REPORT)
    endless = script(tmp_path, 'while :; do head -c 1000000 /dev/zero >> "$5"; done')
    code, _, message = traceview("analyze", path, "--nsys", endless, "--max-decoded", "5MB")
    assert (code, message.count("\n")) == (2, 1) and "run.nsys-rep: decodes to more than 5MB" in message


def test_size_text() -> None:
    assert [size_text(count) for count in (4 * 10**9, 1_500_000_000, 64 << 20, 2000, 7)] == [
        "4GB", "1.5GB", "67.1MB", "2kB", "7B",
    ]  # fmt: skip
    size = DecodedSize("a.sqlite")
    size.add(4 * 10**9)
    with pytest.raises(ReportError, match=r"a\.sqlite: decodes to more than 4GB"):
        size.add(1)
