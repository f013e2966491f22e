"""Reports that files, folders and patterns name."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceview.errors import NotFoundError
from traceview.fleet.sources import find_reports, report_names


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
