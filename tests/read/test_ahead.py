"""What a process decodes ahead is what is read without it; where it cannot, nothing is lost.

The capture is made by hand: no real one that may be kept here is as large as what is decoded ahead.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.build_export import Call, Kernel, build_export
from traceview.read import ahead, pages, raw, read_sqlite
from traceview.read.ahead import Ahead, decoding
from traceview.read.forked import is_alone

MANY = f"""
INSERT INTO {raw.RUNTIME} (start, end, globalTid, correlationId, nameId)
WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000)
SELECT i * 1000, i * 1000 + i % 700, 281474976776961, CASE WHEN i % 900 THEN i * (i % 5) END, i % 3 FROM n
"""

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="only Linux shares memory like this"),
    # Tests have threads of polars, which do nothing while a copy is made.
    pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "large.sqlite"
    deleted = f"DELETE FROM {raw.RUNTIME} WHERE rowid % 50000 = 77"
    return build_export(path, kernels=[Kernel()], api=[Call()], statements=[MANY, deleted])


@pytest.fixture(autouse=True)
def nothing_is_too_small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(ahead, "LARGE", 1)
    monkeypatch.setattr(ahead, "is_alone", lambda: True)
    yield


def the_same_calls(path: Path, one: Ahead | None) -> bool:
    return read_sqlite(path, one).tables[raw.RUNTIME].equals(read_sqlite(path).tables[raw.RUNTIME])


def test_a_table_decoded_ahead_is_the_table(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with decoding(large) as one:
        assert one is not None
        calls = read_sqlite(large, one).tables[raw.RUNTIME]
    assert len(calls) == 400_001 - 8 and calls["correlationId"].null_count() > 400
    # What the process handed over outlives it, and is what is found without it and without pages at all.
    assert calls.equals(read_sqlite(large).tables[raw.RUNTIME])
    monkeypatch.setattr(pages, "SMALL", 1 << 40)
    assert calls.equals(read_sqlite(large).tables[raw.RUNTIME])


def test_processes_decode_and_not_their_parent(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with decoding(large) as one:
        monkeypatch.setattr(pages, "decoded", None)
        assert len(read_sqlite(large, one).tables[raw.RUNTIME]) == 400_001 - 8


@pytest.mark.parametrize(("cores", "processes"), [(2, 1), (8, 2)])
def test_each_table_is_handed_over(large: Path, monkeypatch: pytest.MonkeyPatch, cores: int, processes: int) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(pages, "SMALL", 1)
    with decoding(large) as one:
        assert one is not None and len(one._processes) == processes
        found = {table: one.answer(table) for table in ahead.LONGEST}
    rows = {table: columns and len(columns["start"].values) for table, columns in found.items()}
    assert rows == {raw.RUNTIME: 400_001 - 8, raw.KERNEL: 1}


def test_a_process_that_dies_costs_only_time(large: Path) -> None:
    with decoding(large) as one:
        assert one is not None
        one.end()
        assert the_same_calls(large, one)


def test_a_process_that_was_stopped_is_not_waited_for_without_end(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "PATIENCE", 0.3)
    monkeypatch.setattr(ahead, "PATIENCE_A_MB", 0.0)
    with decoding(large) as one:
        assert one is not None
        for process in one._processes:
            os.kill(process, signal.SIGSTOP)
        assert the_same_calls(large, one)


def test_a_file_that_was_replaced_meanwhile_is_read_anew(large: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(large.read_bytes())
    with decoding(path) as one:
        build_export(path, kernels=[Kernel()], api=[Call(), Call()])
        assert len(read_sqlite(path, one).tables[raw.RUNTIME]) == 2


@pytest.mark.parametrize("content", [b"", b"SQLite format 3\x00", bytes(5000)])
def test_a_file_that_is_no_export_is_left_to_the_reader(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    with decoding(path) as one:
        assert one is None or all(one.answer(table) is None for table in one._answers)


def test_where_there_is_no_room_for_a_process_its_parent_decodes(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(errno.EAGAIN, "no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    with decoding(large) as one:
        assert one is not None and not one._processes
        assert the_same_calls(large, one)


def test_beside_other_threads_no_copy_is_made(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "is_alone", is_alone)
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        with decoding(large) as one:
            assert one is None
    finally:
        done.set()
        other.join()


def test_small_files_and_one_core_are_not_worth_a_process(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    with decoding(large) as one:
        assert one is None
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(ahead, "LARGE", 1 << 40)
    with decoding(large) as one:
        assert one is None


def test_nothing_is_left_behind(large: Path) -> None:
    handles = len(list(Path("/proc/self/fd").iterdir()))
    with decoding(large) as one:
        assert one is not None
        children = list(one._processes)
        assert the_same_calls(large, one)
    for child in children:
        with pytest.raises(ChildProcessError):  # it was waited for
            os.waitpid(child, os.WNOHANG)
    assert len(list(Path("/proc/self/fd").iterdir())) == handles
