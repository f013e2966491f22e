"""Tables that polars cannot read, or that would take more memory than there is, end in one line; hand-made files."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from traceview.errors import DamagedExportError
from traceview.read.parquet import TableFolderReader

ROWS, BUFFER = 2000, 8180  # bytes of the first buffer of texts that polars writes
TOO_LONG = (1 << 58).to_bytes(8, "little")


def test_arrow_buffer_of_impossible_length(tmp_path: Path) -> None:
    path = tmp_path / "StringIds.arrow"
    frame = pl.DataFrame({"id": range(ROWS), "value": [f"kernel number {row:06}" for row in range(ROWS)]})
    frame.write_ipc_stream(path, compression="uncompressed")
    content = path.read_bytes()
    at = content.index(BUFFER.to_bytes(8, "little"))
    path.write_bytes(content[:at] + TOO_LONG + content[at + 8 :])
    alone = subprocess.run([sys.executable, "-c", f"import polars; polars.read_ipc_stream({str(path)!r})"], check=False)
    assert alone.returncode < 0, "polars ends the process"
    with pytest.raises(DamagedExportError, match=r"StringIds\.arrow is damaged, or decodes to more than 4GB; export"):
        TableFolderReader().read(tmp_path)
    with pytest.raises(DamagedExportError, match="is damaged"), TableFolderReader().as_sqlite(tmp_path):
        pass


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
