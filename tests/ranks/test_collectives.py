"""Communicators from NCCL's NVTX payloads, written by hand into a real export.

The payload has the layout of the real report (.nsys-rep) of such a run; the blob header and the JSON are those of newer
versions of nsys.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import struct
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.captures import sample
from tests.ranks.reports import merged, ranks_of
from traceview.model.fleet import Fleet
from traceview.pipeline import open_trace

COMMUNICATOR, SCHEMA, DOMAIN = 0x95E12F85A4245600, 16777221, 1


def blob(size: int) -> bytes:
    payload = struct.pack("<QQII", COMMUNICATOR, size, 0, 0)
    return struct.pack("<QQQQ", DOMAIN, SCHEMA, len(payload), 32 + len(payload)) + payload


def as_json(size: int) -> str:
    return json.dumps({"NCCL communicator ID": COMMUNICATOR, "Message size [bytes]": size})


def with_payloads(folder: Path, column: str, payload: Callable[[int], bytes | str]) -> Path:
    path = Path(shutil.copyfile(sample("ddp2.sqlite"), folder / "with.sqlite"))
    with closing(sqlite3.connect(path)) as database:
        if column == "binaryData":
            database.execute("ALTER TABLE NVTX_EVENTS ADD COLUMN binaryData TEXT")
        database.execute(
            "CREATE TABLE NVTX_PAYLOAD_SCHEMA_ENTRIES (domainId INTEGER, schemaId INTEGER, idx INTEGER, flags INTEGER, "
            'type INTEGER, name TEXT, description TEXT, arrayOrUnionDetail INTEGER, "offset" INTEGER)'
        )
        database.executemany(
            "INSERT INTO NVTX_PAYLOAD_SCHEMA_ENTRIES VALUES (?, ?, ?, NULL, ?, ?, NULL, NULL, ?)",
            [
                (DOMAIN, SCHEMA, 0, 18, "NCCL communicator ID", None),
                (DOMAIN, SCHEMA, 1, 22, "Message size [bytes]", 8),
            ],
        )
        database.execute(
            f"UPDATE NVTX_EVENTS SET {column} = ? WHERE textId IN "
            "(SELECT id FROM StringIds WHERE value LIKE 'ncclAll%' OR value = 'ncclBroadcast')",
            (payload(4096),),
        )
        database.commit()
    return path


@pytest.mark.parametrize(("column", "payload"), [("binaryData", blob), ("jsonText", as_json)])
def test_matching_by_communicator_equals_matching_by_order(
    tmp_path: Path, two_in_one: Fleet, column: str, payload: Callable[[int], bytes | str]
) -> None:
    path = with_payloads(tmp_path, column, payload)
    calls = open_trace(path).sizes.calls
    assert set(calls["communicator"]) == {f"{COMMUNICATOR:016x}"} and len(calls) == 2 * 78
    fleet = merged([path])
    (group,) = fleet.groups
    assert (group.name, group.how) == (f"communicator {COMMUNICATOR:016x}", "communicator")
    assert [rank.wait for rank in fleet.ranks] == [rank.wait for rank in two_in_one.ranks]
    assert not any("do not name communicators" in note.text for note in fleet.notes)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("binaryData", b""),
        ("binaryData", b"\x00" * 31),
        ("binaryData", struct.pack("<QQQQ", DOMAIN, SCHEMA, 2**63, 2**63)),
        ("binaryData", struct.pack("<QQQQ", 9, 9, 24, 56) + b"\xff" * 24),
        ("jsonText", "[" * 3000),
        ("jsonText", '{"NCCL communicator ID": true}'),
        ("jsonText", '{"NCCL communicator ID": "0x1; DROP"}'),
        ("jsonText", '{"NCCL communicator ID": 123456789012345678901234567890}'),
        ("jsonText", "\ud800".encode("utf-8", "replace").decode()),
    ],
)
def test_invalid_payloads_are_ignored(tmp_path: Path, column: str, value: bytes | str) -> None:
    assert open_trace(with_payloads(tmp_path, column, lambda _size: value)).sizes.calls.is_empty()


def test_first_iterations_that_are_left_out_are_named() -> None:
    """`analyze` counts 10 iterations, `fleet` 9."""
    fleet = merged(ranks_of("slowgpu"))
    assert {rank.iterations for rank in fleet.ranks} == {9}
    words = "the first iteration of each rank, which `analyze` counts"
    assert [note for note in fleet.notes if note.text.startswith(words)]
