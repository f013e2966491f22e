"""System calls with the names of their files. No capture at hand has names, so these tables are made by hand."""

from __future__ import annotations

import polars as pl
import pytest

from traceview.normalise.host_events import _with_files
from traceview.read import raw

TID = (7 << 24) + 9


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/home/ann/secret/data/shard_00017.bin", "read (shard_#.bin)"),
        (r"C:\Users\ann\big.npy", "read (big.npy)"),
        ("/data/folder/", "read (folder)"),
        ("tokens.bin", "read (tokens.bin)"),
        ("Unknown file #0", "read"),
        ("", "read"),
    ],
)
def test_wait_names_its_file_without_folders(path: str, name: str) -> None:
    calls = pl.DataFrame({"start": [10, 20], "end": [15, 25], "globalTid": [TID, TID], "name": ["read", "poll"]})
    tables = {
        raw.FILE_EVENTS: pl.DataFrame({"fileAccessId": [3, 4], "threadId": [9, 9], "startedAt": [10, 12]}),
        raw.FILES: pl.DataFrame({"fileAccessId": [3], "filePath": [path]}),
    }
    named = _with_files(calls, tables)
    assert named["name"].to_list() == [name, "poll"]
    assert _with_files(calls, {})["name"].to_list() == ["read", "poll"]
