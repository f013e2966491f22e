"""Entries on disk: whole or absent, checked, private, bounded; and nothing outside the folder is touched."""

from __future__ import annotations

import errno
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traceview.cache.store import ABANDONED, Store

ASKED, OTHER = "a" * 40, "b" * 40


def only_file(store: Store) -> Path:
    [found] = (path for path in store.root.rglob("*") if path.is_file() and path.name != "CACHEDIR.TAG")
    return found


@pytest.mark.parametrize("answer", ["", "text\n", "µ█\r\n\x00", "lone \ud800 surrogate", "x" * 3_000_000])
def test_an_answer_comes_back_as_it_was(store: Store, answer: str) -> None:
    assert store.get(ASKED, "page") is None and not store.has(ASKED)
    assert store.put(ASKED, "page", answer)
    assert store.get(ASKED, "page") == answer and store.has(ASKED)
    assert store.get(ASKED, "json") is None and store.get(OTHER, "page") is None


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7), cut=st.booleans())
def test_a_damaged_entry_is_ignored_and_can_be_rewritten(
    tmp_path_factory: pytest.TempPathFactory, at: int, bit: int, cut: bool
) -> None:
    store = Store(tmp_path_factory.mktemp("damaged") / "cache")
    store.put(ASKED, "page", "an answer of some length")
    file = only_file(store)
    data = bytearray(file.read_bytes())
    at %= len(data)
    data[at] ^= 1 << bit
    file.write_bytes(data[:at] if cut else data)
    assert store.get(ASKED, "page") is None
    store.put(ASKED, "page", "again")
    assert store.get(ASKED, "page") == "again"


def test_an_entry_under_another_name_is_no_answer(store: Store) -> None:
    store.put(ASKED, "page", "the page")
    entry = only_file(store)
    store.put(ASKED, "json", "the JSON")
    other = next(path for path in entry.parent.iterdir() if path != entry)
    entry.replace(other)
    assert store.get(ASKED, "json") is None
    store.put(OTHER, "page", "x")
    other.replace(store.root / OTHER / entry.name)
    assert store.get(OTHER, "page") is None


def test_only_the_user_may_read_it(store: Store) -> None:
    store.put(ASKED, "page", "x")
    modes = {path: path.stat().st_mode & 0o777 for path in (store.root, *store.root.rglob("*"))}
    assert {mode for path, mode in modes.items() if path.is_dir()} == {0o700}
    assert {mode for path, mode in modes.items() if path.is_file()} == {0o600}
    assert store.root.joinpath("CACHEDIR.TAG").read_bytes().startswith(b"Signature: 8a477f597d28d172789f06886806bc55")


def test_a_linked_entry_is_not_read_and_what_it_points_to_stays(store: Store, tmp_path: Path) -> None:
    store.put(ASKED, "page", "true")
    entry, outside = only_file(store), tmp_path / "outside"
    entry.rename(outside)
    entry.symlink_to(outside)
    before = outside.read_bytes()
    assert store.get(ASKED, "page") is None
    assert store.put(ASKED, "page", "rewritten") and store.get(ASKED, "page") == "rewritten"
    assert outside.read_bytes() == before and not entry.is_symlink()
    entry.unlink()
    entry.symlink_to(outside)
    store.clear()
    assert outside.read_bytes() == before


def test_a_linked_folder_is_not_entered(store: Store, tmp_path: Path) -> None:
    store.put(ASKED, "page", "x")
    away = tmp_path / "away"
    (store.root / ASKED).rename(away)
    (store.root / ASKED).symlink_to(away)
    held = sorted(away.iterdir())
    assert store.get(ASKED, "page") is None and not store.put(ASKED, "json", "y")
    store.trim()
    store.clear()
    assert sorted(away.iterdir()) == held
    linked = Store(tmp_path / "link")
    linked.root.symlink_to(store.root)
    assert not linked.put(OTHER, "page", "x") and linked.entries() == []


def test_a_folder_that_others_may_write_into_is_not_used(store: Store) -> None:
    store.put(ASKED, "page", "x")
    store.root.chmod(0o777)
    assert store.get(ASKED, "page") is None and not store.put(ASKED, "page", "y")


def test_a_pipe_in_the_place_of_an_entry_holds_nobody_up(store: Store) -> None:
    store.put(ASKED, "page", "x")
    entry = only_file(store)
    entry.unlink()
    os.mkfifo(entry)
    assert store.get(ASKED, "page") is None


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", most=3000)
    for number, name in enumerate(("first", "second", "third")):
        store.put(f"{number}" * 40, name, name[0] * 800)
        [entry] = (store.root / (f"{number}" * 40)).iterdir()
        os.utime(entry, (number, number))
    assert store.get("0" * 40, "first") is not None
    store.put("3" * 40, "fourth", "4" * 800)
    store.trim()
    kept = [store.get(f"{number}" * 40, name) is not None for number, name in enumerate(("first", "second", "third"))]
    assert kept == [True, False, True]
    assert sum(entry.size for entry in store.entries()) <= 3000
    assert not store.has("1" * 40), "an empty folder goes as well"


def test_an_answer_larger_than_the_cache_is_not_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "cache", most=1000)
    assert not store.put(ASKED, "page", "x" * 1000) and store.entries() == []


def test_clear_removes_what_is_ours_alone(store: Store) -> None:
    store.put(ASKED, "page", "x")
    foreign = [store.root / "notes.txt", store.root / ASKED / "notes.txt", store.root / OTHER]
    foreign[0].write_text("mine")
    foreign[1].write_text("mine")
    foreign[2].write_text("a file where a folder would be")
    assert store.clear() > 0 and store.entries() == []
    assert all(path.is_file() for path in foreign)


def test_an_abandoned_half_goes_after_an_hour(store: Store) -> None:
    store.put(ASKED, "page", "x")
    young, old = (store.root / ASKED / f"part-{digit * 16}" for digit in "12")
    young.write_bytes(b"half")
    old.write_bytes(b"half")
    os.utime(old, (0, time.time() - ABANDONED - 1))
    store.trim()
    assert young.exists() and not old.exists() and store.get(ASKED, "page") == "x"


@pytest.mark.parametrize("place", ["/proc/nowhere/cache", "/dev/null/cache", "/dev/null"])
def test_a_place_that_cannot_be_written_is_no_error(place: str) -> None:
    store = Store(Path(place))
    assert not store.put(ASKED, "page", "x") and store.get(ASKED, "page") is None
    store.trim()
    assert store.clear() == 0


def test_a_folder_that_may_only_be_read_still_answers(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(ASKED, "page", "x")

    def refused(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.EROFS, "read-only")

    # Root may write anywhere, so the refusals of a read-only mount are made here.
    for name in ("utime", "mkdir", "rename", "unlink"):
        monkeypatch.setattr(os, name, refused)
    assert store.get(ASKED, "page") == "x" and not store.put(ASKED, "page", "y")


def test_a_disk_that_is_full_leaves_the_old_answer_and_no_half(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.put(ASKED, "page", "old")

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", full)
        assert not store.put(ASKED, "page", "new")
    assert store.get(ASKED, "page") == "old" and only_file(store)


def test_writers_and_readers_at_once_see_whole_answers(store: Store) -> None:
    answers = {letter * 300_000 for letter in "abc"}
    seen: set[str | None] = set()
    stop = threading.Event()

    def write(answer: str) -> None:
        while not stop.is_set():
            store.put(ASKED, "page", answer)

    writers = [threading.Thread(target=write, args=(answer,)) for answer in answers]
    for one in writers:
        one.start()
    while not store.has(ASKED):
        pass
    for _ in range(200):
        seen.add(store.get(ASKED, "page"))
        store.trim()
    stop.set()
    for one in writers:
        one.join()
    assert seen - {None} and seen <= {*answers, None}
    assert store.get(ASKED, "page") in answers
