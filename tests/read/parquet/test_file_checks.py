"""Impossible page headers are refused before polars allocates memory; valid files pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from traceview.errors import DamagedExportError
from traceview.read import parquet
from traceview.read.parquet import TableFolderReader, check_pages
from traceview.read.source import DecodedSize

ROWS = 261
AS_WRITTEN, BELOW_ZERO = b"\x8a\x04", b"\x8b\x04"  # 261 and -262, zigzag, as a varint


def written(path: Path, **options: object) -> Path:
    frame = pl.DataFrame(
        {
            "start": range(ROWS),
            "few": [row % 3 for row in range(ROWS)],
            "text": ["a" * (row % 50) for row in range(ROWS)],
            "null": [None if row % 2 else row for row in range(ROWS)],
            "list": [[row, row] for row in range(ROWS)],
        }
    )
    frame.write_parquet(path, **options)  # type: ignore[arg-type]
    return path


@pytest.mark.parametrize("compression", ["uncompressed", "snappy", "zstd", "gzip", "lz4"])
@pytest.mark.parametrize("options", [{}, {"row_group_size": 50}, {"data_page_size": 64}, {"statistics": False}])
def test_valid_files_pass(tmp_path: Path, compression: str, options: dict[str, object]) -> None:
    check_pages(written(tmp_path / "t.parquet", compression=compression, **options))


def test_empty_table_passes(tmp_path: Path) -> None:
    pl.DataFrame(schema={"a": pl.Int64, "b": pl.String}).write_parquet(tmp_path / "t.parquet")
    check_pages(tmp_path / "t.parquet")


def test_negative_number_of_values(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    pl.DataFrame({"start": range(ROWS)}).write_parquet(path, compression="uncompressed", statistics=False)
    raw = path.read_bytes()
    at = raw.index(AS_WRITTEN, 4)
    assert at < 40, "the number of values is in the header of the first page"
    path.write_bytes(raw[:at] + BELOW_ZERO + raw[at + 2 :])
    # polars crashes on this file: run it in another process.
    alone = subprocess.run([sys.executable, "-c", f"import polars; polars.read_parquet({str(path)!r})"], check=False)
    assert alone.returncode != 0
    with pytest.raises(DamagedExportError, match="cut off or damaged"):
        parquet._read_columns(path, ["start"], DecodedSize("report"))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_damage(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("damaged") / "t.parquet"
    raw = bytearray(written(path, row_group_size=100).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw[: data.draw(st.sampled_from([len(raw), len(raw) - 1, len(raw) // 2, 9, 1]))])
    try:
        check_pages(path)
    except (ValueError, EOFError):
        return


def test_text_of_another_language(tmp_path: Path) -> None:
    """On Windows in Chinese, nsys writes the name of the time zone in GBK."""
    zone = "中国标准时间".encode("gbk")
    for table, columns in (("META_DATA_EXPORT", ("name", "value")), ("StringIds", ("id", "value"))):
        path = tmp_path / f"{table}.parquet"
        frame = pl.DataFrame({columns[0]: [0] if table == "StringIds" else ["ZONE"], "value": ["Q" * len(zone)]})
        frame.write_parquet(path, compression="uncompressed", statistics=False)
        path.write_bytes(path.read_bytes().replace(b"Q" * len(zone), zone))
    reader = TableFolderReader()
    with pytest.raises(DamagedExportError, match=r"StringIds\.parquet has text that is not UTF-8; .*--type sqlite"):
        reader.read(tmp_path)
    pl.DataFrame({"id": [0], "value": ["a"]}).write_parquet(tmp_path / "StringIds.parquet")
    assert reader.read(tmp_path).nsys_version is None
    with reader.as_sqlite(tmp_path) as export:
        assert export.is_file()
