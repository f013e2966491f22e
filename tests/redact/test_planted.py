"""Secrets planted everywhere in a capture: the copy has none of them, and every figure stays."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.captures import ALL, sample, shared
from tests.redact.figures import figures, numbers, texts, values
from tests.redact.planted import KINDS, POSITIONS
from traceview.captures.redact import COLUMNS, redact
from traceview.captures.redact.secrets import NameRedactor, Secrets
from traceview.errors import OutputError
from traceview.read import raw

EVERY_TABLE = ["mpi/ring.sqlite", "openacc/heat_as_2024.2.sqlite"]
CAPTURES = [
    name for name in ALL if name not in ("h200_serial.sqlite", "h200_quad.sqlite")
]  # h200_dual has their tables
FAR = 4_611_686_018_427_000_000  # planted numbers are at least this large


def plant_names(path: Path, *positions: str) -> None:
    """Put each kind, in one of the positions, into names that are kept: of ranges, kernels, threads, GPUs, settings."""
    with closing(sqlite3.connect(path)) as export, export:
        (text_id,) = export.execute("SELECT max(id) + 1 FROM StringIds").fetchone()
        start, thread = export.execute("SELECT min(start), globalTid FROM NVTX_EVENTS WHERE eventType = 59").fetchone()
        kernels = [row for (row,) in export.execute(f"SELECT rowid FROM {raw.KERNEL} ORDER BY rowid")]
        for index, secret in enumerate(KINDS.values()):
            text, at = positions[index % len(positions)].format(secret), start + 10_000 * index
            for _ in range(3):  # three ranges with one name count as repeated
                export.execute(
                    "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, text) VALUES (?, ?, 59, ?, ?)",
                    (at, at + 2000 + index, thread, text),
                )
                at += 3000
            ids = range(text_id + 4 * index, text_id + 4 * index + 4)
            export.executemany("INSERT INTO StringIds VALUES (?, ?)", [(number, text) for number in ids])
            export.execute(
                "INSERT INTO NVTX_EVENTS (start, end, eventType, globalTid, textId) VALUES (?, ?, 59, ?, ?)",
                (at, at + 500 + index, thread, ids[0]),
            )
            export.execute(
                f"UPDATE {raw.KERNEL} SET shortName = ?, demangledName = ?, mangledName = ? WHERE rowid = ?",
                (*ids[1:], kernels[index]),
            )
            export.execute("INSERT INTO ThreadNames (nameId, globalTid) VALUES (?, ?)", (ids[0], thread + 1000 + index))
            if "train.py" not in text:  # the last part of a program's path is kept
                export.execute("INSERT INTO PROCESSES (globalPid, pid, name) VALUES (?, 0, ?)", (thread, text))
            export.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (0, 0, 0, 0, ?, 0)", (text,))
            row = export.execute("INSERT INTO TARGET_INFO_GPU SELECT * FROM TARGET_INFO_GPU LIMIT 1").lastrowid
            export.execute("UPDATE TARGET_INFO_GPU SET id = ?, name = ? WHERE rowid = ?", (100 + index, text, row))
            export.execute("INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:COLLECT_X', ?)", (text,))


def in_utf16(path: Path, out: Path) -> None:
    """Write the same tables into a database with UTF-16 texts."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(out)) as wide, wide:
        wide.execute("PRAGMA encoding = 'UTF-16le'")
        for table, sql in source.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'"):
            wide.execute(sql)
            rows = source.execute(f'SELECT * FROM "{table}"').fetchall()
            if rows:
                wide.executemany(f'INSERT INTO "{table}" VALUES ({", ".join("?" * len(rows[0]))})', rows)


def assert_absent(path: Path, secrets: list[str]) -> None:
    """Check the file's bytes, texts and blobs for each secret and for its last eight letters."""
    content, all_texts = path.read_bytes(), texts(path)
    left = [
        secret
        for secret in secrets
        for part in (secret, secret[-8:])
        if part in all_texts or any(part.encode(name) in content for name in ("utf-8", "utf-16-le", "utf-16-be"))
    ]
    assert left == []


def test_number_of_kinds_and_positions() -> None:
    assert len(KINDS) >= 40 and len(set(KINDS.values())) == len(KINDS)
    assert len(POSITIONS) == 12


@pytest.mark.parametrize("shift", [0, 5, 8])
def test_secrets_in_names_are_removed(shift: int, tmp_path: Path) -> None:
    """Each kind is in three of the positions; test_mark_matches_no_pattern has them all."""
    planted, out = tmp_path / "planted.sqlite", tmp_path / "out.sqlite"
    shutil.copy(sample("dual.sqlite"), planted)
    plant_names(planted, *POSITIONS[shift:], *POSITIONS[:shift])
    done = redact(planted, out)
    assert sum(done.secrets.values()) >= len(KINDS)
    assert_absent(out, list(KINDS.values()))
    assert numbers(figures(out)) == numbers(figures(planted))


def test_secrets_in_utf16_names_are_removed(tmp_path: Path) -> None:
    planted, wide = tmp_path / "planted.sqlite", tmp_path / "wide.sqlite"
    shutil.copy(sample("dual.sqlite"), planted)
    plant_names(planted, "key_{}")
    in_utf16(planted, wide)
    expected = figures(planted)
    for hashed in (False, True):
        out = tmp_path / f"out_{hashed}.sqlite"
        redact(wide, out, hash_names=hashed)
        assert_absent(out, list(KINDS.values()))
        assert numbers(figures(out), hashed) == numbers(expected, hashed)


def plant_everywhere(path: Path, make: Callable[[int], object]) -> dict[tuple[str, str], object]:
    """Add a row to every table with a distinct value in every column, and return the values."""
    planted: dict[tuple[str, str], object] = {}
    with closing(sqlite3.connect(path)) as export, export:
        for (table,) in export.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            columns = export.execute("SELECT name, pk FROM pragma_table_info(?)", (table,)).fetchall()
            single_key = sum(map(bool, (key for _, key in columns))) == 1  # SQLite numbers such rows itself
            keys = {name for name, key in columns if key and single_key}
            named = {name: make(len(planted) + at) for at, (name, _) in enumerate(columns) if name not in keys}
            planted.update({(table, name): value for name, value in named.items()})
            listed, holes = ", ".join(f'"{name}"' for name in named), ", ".join("?" * len(named))
            export.execute(f'INSERT INTO "{table}" ({listed}) VALUES ({holes})', tuple(named.values()))
    return planted


def token(number: int) -> str:
    return f"auth_ghp_{number:04d}" + "aB3" * 10 + f"{number:04d}Zz"


@pytest.mark.parametrize("name", [*EVERY_TABLE, *CAPTURES])
def test_secrets_and_numbers_in_any_column_are_removed(name: str, tmp_path: Path) -> None:
    path, out = tmp_path / "planted.sqlite", tmp_path / "out.sqlite"
    shutil.copy(sample(name) if name in EVERY_TABLE else shared(name), path)
    path.chmod(0o600)
    secrets = plant_everywhere(path, token)
    plant_everywhere(path, lambda number: token(5000 + number).encode())
    planted = plant_everywhere(path, lambda number: FAR + number)
    redact(path, out)
    assert len(secrets) > 100
    content, all_texts = out.read_bytes(), texts(out)
    assert b"ghp_" not in content and "ghp_" not in all_texts and b"aB3aB3" not in content
    left = {(table, column) for table, column, value in values(out) if isinstance(value, (int, float)) and value >= FAR}
    assert left <= {(table, column) for table, column in planted if column in COLUMNS.get(table, ())}
    assert numbers(figures(out)) == numbers(figures(path))


def test_payloads_of_ranges_are_not_kept() -> None:
    payloads = ("uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value", "floatValue")
    assert not COLUMNS["NVTX_EVENTS"].intersection((*payloads, "jsonText", "jsonTextId", "binaryData"))


def test_copy_that_still_matches_a_pattern_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = tmp_path / "planted.sqlite"
    shutil.copy(sample("dual.sqlite"), planted)
    plant_names(planted, "{}")
    monkeypatch.setattr(NameRedactor, "range", lambda _self, text: text)
    with pytest.raises(OutputError, match=r"^out\.sqlite: not written, because .* matches the pattern of"):
        redact(planted, tmp_path / "out.sqlite")
    assert [path.name for path in tmp_path.iterdir()] == ["planted.sqlite"]


@pytest.mark.parametrize("kind", KINDS)
def test_mark_matches_no_pattern(kind: str) -> None:
    secrets, planted = Secrets({}), [position.format(KINDS[kind]) for position in POSITIONS]
    secrets.learn(planted)
    cleaned = [secrets.clean(text) for text in planted]
    assert all("[removed " in text for text in cleaned)
    assert secrets.kind_in(cleaned) is None
    assert len(set(cleaned)) == len(POSITIONS)
