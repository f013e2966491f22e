"""Tests of atomic writes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from traceview.errors import OutputError
from traceview.report.files import check_file, named_output, new_file, write_text


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


def test_only_a_named_link_is_followed(tmp_path: Path) -> None:
    """The command line names a file; what is a link when it is written is replaced."""
    (tmp_path / "real.json").write_text("old")
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real.json")
    write_text(named_output(link), "new")
    assert link.is_symlink() and (tmp_path / "real.json").read_text() == "new"
    write_text(link, "newer")
    assert not link.is_symlink() and link.read_text() == "newer"
    assert (tmp_path / "real.json").read_text() == "new"


def test_two_writers_of_a_new_file(tmp_path: Path) -> None:
    """The first keeps it; the second is refused, also if both began before."""
    target = tmp_path / "copy.sqlite"
    with pytest.raises(OutputError, match=r"copy\.sqlite: file exists; name a new file"), ExitStack() as both:
        parts = [both.enter_context(new_file(target, replaces=False)) for _ in range(2)]
        parts[0].write_text("second")
        parts[1].write_text("first")
    assert target.read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["copy.sqlite"]


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


AS_NOBODY = """
import os, sys
from pathlib import Path
from tempfile import TemporaryDirectory
from traceview.errors import OutputError
from traceview.report.files import check_file, check_folder, named_output, refuse_link
if os.geteuid() == 0:
    os.setuid(65534)
for check in (check_file, lambda path: check_folder(path, ()), lambda path: refuse_link(path, "-o"), named_output):
    try:
        check(Path(sys.argv[1]))
    except OutputError as error:
        print(error)
"""


@pytest.mark.parametrize("mode", [0o500, 0o600, 0o200])
def test_folder_without_permission_is_refused(mode: int) -> None:
    """pytest's own folder is closed to others."""
    with TemporaryDirectory() as name:
        folder = Path(name, "closed")
        folder.mkdir()
        if os.geteuid() == 0:
            os.chown(name, 65534, -1)
            os.chown(folder, 65534, -1)
        folder.chmod(mode)
        done = subprocess.run(
            [sys.executable, "-c", AS_NOBODY, folder / "a.json"], capture_output=True, text=True, check=False
        )
        folder.chmod(0o700)
    reasons = "no write permission for its folder; name another folder", "cannot be written (Permission denied)"
    assert done.stderr == "" and len(done.stdout.splitlines()) in (2, 3)
    assert all(line.startswith(tuple(f"a.json: {reason}" for reason in reasons)) for line in done.stdout.splitlines())


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_one_line() -> None:
    with pytest.raises(OutputError, match="full: cannot be written"):
        write_text(Path("/dev/full"), "text")
    assert not Path("/dev/full").is_file()
