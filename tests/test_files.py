"""Tests of atomic writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from traceview.errors import OutputError
from traceview.files import check_file, write_text


def test_text_is_written_as_utf8(tmp_path: Path) -> None:
    write_text(tmp_path / "a.json", "é\n{}\n")
    assert (tmp_path / "a.json").read_bytes() == "é\n{}\n".encode()
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_new_file_respects_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_text(tmp_path / "a.json", "{}")
    finally:
        os.umask(before)
    assert (tmp_path / "a.json").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("problem", [KeyboardInterrupt(), SystemExit(143), OSError(28, "No space left on device")])
def test_old_file_survives_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: BaseException) -> None:
    place = tmp_path / "a.json"
    place.write_text("old")

    def refuse(_self: Path, _target: Path) -> Path:
        raise problem

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises((OutputError, KeyboardInterrupt, SystemExit)) as caught:
        write_text(place, "new")
    assert place.read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]
    if isinstance(problem, OSError):
        assert str(caught.value) == ("a.json: cannot be written (No space left on device); name another path")


def test_symbolic_link_stays(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    write_text(tmp_path / "link.json", "new")
    assert (tmp_path / "link.json").is_symlink()
    assert (tmp_path / "real.json").read_text() == "new"


def test_pipe_is_written_in_place(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        check_file(pipe)
        write_text(pipe, "text")
        assert os.read(reader, 100) == b"text"
        assert pipe.is_fifo()
    finally:
        os.close(reader)


def test_unwritable_paths_are_refused_early(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="is a folder"):
        check_file(tmp_path)
    with pytest.raises(OutputError, match=r"a\.json: its folder does not exist"):
        check_file(tmp_path / "none" / "a.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="does not exist"):
        check_file(tmp_path / "file" / "a.json")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_folder_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="no write permission for its folder"):
        check_file(tmp_path / "a.json")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_one_line() -> None:
    with pytest.raises(OutputError, match="full: cannot be written"):
        write_text(Path("/dev/full"), "text")
    assert not Path("/dev/full").is_file()
