"""Payloads of NCCL in a JSON export: lines as nsys 2024.2 writes them, for the calls of a real export."""

from __future__ import annotations

import base64
import json
import struct
from pathlib import Path

import polars as pl
import pytest

from tests.captures import sample
from traceview.read import payloads, raw
from traceview.read.payloads import calls_from_json
from traceview.read.sqlite.reader import read_sqlite

HASHES = (0xE28245B602972177, 0x7BC02F7CA124B812)


def write_export(path: Path, calls: pl.DataFrame, payload: object) -> None:
    """Write a JSON export with a payload for each call, `payload(row, name)`, and lines of other kinds."""
    lines = [json.dumps({"type": "String", "id": 7, "value": "BinaryData"})]
    for number, (start, end, thread, name) in enumerate(calls.iter_rows()):
        data = base64.b64encode(payload(number, name)).decode()  # type: ignore[operator]
        event = {
            "Type": 59, "Timestamp": str(start), "Payload": {"BinaryData": [{"SchemaId": "16777221", "Data": data}]},
            "GlobalTid": str(thread), "EndTimestamp": str(end), "TextId": 5, "DomainId": "1", "NsTime": True,
        }  # fmt: skip
        lines.append(json.dumps({"Type": 59, "NvtxEvent": event}, separators=(",", ":")))
    path.write_text("\n".join(lines) + "\n")


def nccl_ranges(tables: dict[str, pl.DataFrame]) -> pl.DataFrame:
    texts = tables[raw.STRINGS].select(textId="id", registered="value")
    ranges = tables[raw.NVTX].join(texts, on="textId", how="left", maintain_order="left")
    name = pl.coalesce("text", "registered").alias("name")
    return ranges.select("start", "end", "globalTid", name).filter(pl.col("name").str.starts_with("nccl"))


def test_calls_of_a_json_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "BATCH_ROWS", 3)
    tables = read_sqlite(sample("ddp2.sqlite")).tables
    ranges = nccl_ranges(tables)
    assert len(ranges) > 100

    def payload(number: int, name: str) -> bytes:
        sends = 2 if "Init" in name else 1000 + number
        return struct.pack("<QQQ", HASHES[number % 2], sends, 3)[: 8 if "Group" in name else 24]

    write_export(tmp_path / "made.json", ranges, payload)
    calls = calls_from_json(tmp_path / "made.json", tables, "made")[raw.NCCL_CALLS]
    for number, row in enumerate(ranges.iter_rows(named=True)):
        own = calls.filter((pl.col("start") == row["start"]) & (pl.col("globalTid") == row["globalTid"]))
        if "All" in row["name"] or "Broadcast" in row["name"]:
            (call,) = own.iter_rows(named=True)
            assert (call["communicator"], call["bytes"]) == (f"{HASHES[number % 2]:016x}", 1000 + number)
            assert (call["name"], call["end"], call["ranks"]) == (row["name"], row["end"], None)
        elif "Group" in row["name"]:
            assert own.is_empty()


def test_payloads_without_communicator_are_left_out(tmp_path: Path) -> None:
    tables = read_sqlite(sample("ddp2.sqlite")).tables
    sizes = lambda number, _name: struct.pack("<QQ", 4096 * number, 0)  # noqa: E731
    write_export(tmp_path / "made.json", nccl_ranges(tables), sizes)
    assert calls_from_json(tmp_path / "made.json", tables, "made") == {}
    (tmp_path / "none.json").write_text("")
    assert calls_from_json(tmp_path / "none.json", tables, "made") == {}
