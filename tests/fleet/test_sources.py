"""Which reports a person means."""

from __future__ import annotations

from pathlib import Path

import pytest

from traceview.errors import NotFoundError
from traceview.fleet.sources import names, sources


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("rank10.sqlite", "rank2.sqlite", "rank2.nsys-rep", "rank3.nsys-rep", "rank1.sqlite.xz", "notes.txt"):
        (tmp_path / "runs" / name).parent.mkdir(exist_ok=True)
        (tmp_path / "runs" / name).write_bytes(b"")
    return tmp_path / "runs"


def test_a_folder_and_a_pattern_give_each_report_once_in_order_of_numbers(folder: Path) -> None:
    wanted = ["rank1.sqlite.xz", "rank2.sqlite", "rank3.nsys-rep", "rank10.sqlite"]
    assert [path.name for path in sources([str(folder)])] == wanted
    assert [path.name for path in sources([f"{folder}/rank*", str(folder)])] == wanted
    assert [path.name for path in sources([f"{folder}/rank[12].*"])] == wanted[:2]


def test_a_pattern_that_finds_no_report_of_nsys_means_its_files(folder: Path) -> None:
    (folder / "trace1.json.gz").write_bytes(b"")
    assert [path.name for path in sources([f"{folder}/trace*"])] == ["trace1.json.gz"]
    assert sources([f"{folder}/*"])[0].name == "rank1.sqlite.xz"


def test_what_is_named_is_taken_as_it_is(folder: Path) -> None:
    given = [str(folder / "rank2.nsys-rep"), str(folder / "rank2.sqlite"), str(folder / "gone.sqlite")]
    assert sorted(map(str, sources(given))) == sorted(given)


def test_nothing_found_is_said(folder: Path) -> None:
    with pytest.raises(NotFoundError, match=r"none\*\.sqlite: no report is there"):
        sources([f"{folder}/none*.sqlite"])


def test_a_link_counts_as_a_report_of_its_own(folder: Path) -> None:
    (folder / "rank4.sqlite").symlink_to(folder / "rank2.sqlite")
    assert "rank4.sqlite" in [path.name for path in sources([str(folder)])]


def test_folders_tell_apart_what_names_do_not() -> None:
    assert names([Path("/a/b/x.sqlite"), Path("/a/c/y.sqlite")]) == ("x.sqlite", "y.sqlite")
    assert names([Path("/home/me/run/n0/r.sqlite"), Path("/home/me/run/n1/r.sqlite")]) == ("n0/r.sqlite", "n1/r.sqlite")
