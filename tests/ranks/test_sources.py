"""Reports that files, folders and patterns name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from traceview.errors import NotFoundError
from traceview.ranks.analyze_reports import find_reports, report_names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("rank10.sqlite", "rank2.sqlite", "rank2.nsys-rep", "rank3.nsys-rep", "rank1.sqlite.xz", "notes.txt"):
        (tmp_path / "runs" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "runs" / name).write_bytes(b"")
    return tmp_path / "runs"


def test_folders_and_patterns(folder: Path) -> None:
    expected = ["rank1.sqlite.xz", "rank2.sqlite", "rank3.nsys-rep", "rank10.sqlite"]
    assert [path.name for path in find_reports([str(folder)])] == expected
    assert [path.name for path in find_reports([f"{folder}/rank*", str(folder)])] == expected
    assert [path.name for path in find_reports([f"{folder}/rank[12].*"])] == expected[:2]


def test_pattern_for_other_formats(folder: Path) -> None:
    (folder / "trace1.json.gz").write_bytes(b"")
    assert [path.name for path in find_reports([f"{folder}/trace*"])] == ["trace1.json.gz"]
    assert find_reports([f"{folder}/*"])[0].name == "rank1.sqlite.xz"


def test_named_files_are_kept(folder: Path) -> None:
    arguments = [str(folder / "rank2.nsys-rep"), str(folder / "rank2.sqlite"), str(folder / "gone.sqlite")]
    assert sorted(map(str, find_reports(arguments))) == sorted(arguments)


def test_pattern_without_matches(folder: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\*\.sqlite: no report found"):
        find_reports([f"{folder}/none*.sqlite"])


def test_link_is_a_separate_report(folder: Path) -> None:
    (folder / "rank4.sqlite").symlink_to(folder / "rank2.sqlite")
    assert "rank4.sqlite" in [path.name for path in find_reports([str(folder)])]


def test_report_names_include_folders_if_file_names_repeat() -> None:
    assert report_names([Path("/a/b/x.sqlite"), Path("/a/c/y.sqlite")]) == ("x.sqlite", "y.sqlite")
    repeated = [Path("/home/me/run/n0/r.sqlite"), Path("/home/me/run/n1/r.sqlite")]
    assert report_names(repeated) == ("n0/r.sqlite", "n1/r.sqlite")


def test_entries_that_cannot_be_read(folder: Path) -> None:
    """A link to itself is a report that cannot be read; the folders of other users' processes hold none."""
    (folder / "rank5.sqlite").symlink_to("rank5.sqlite")
    (folder / "loop").symlink_to(folder)
    names = [path.name for path in find_reports([str(folder)])]
    assert names == ["rank1.sqlite.xz", "rank2.sqlite", "rank3.nsys-rep", "rank5.sqlite", "rank10.sqlite"]
    assert [path.name for path in find_reports([f"{folder}/rank5*"])] == ["rank5.sqlite"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
def test_proc_has_no_report() -> None:
    """As root or not, some entries of /proc cannot be searched, and others go away meanwhile."""
    program = """if True:
        import os
        from traceview.errors import NotFoundError
        from traceview.ranks.analyze_reports import find_reports
        if os.geteuid() == 0:
            os.setuid(65534)
        try:
            find_reports(["/proc"])
        except NotFoundError as error:
            print(error)"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert (done.stdout, done.stderr) == ("/proc: no report found; name .sqlite files, a folder or a pattern\n", "")
