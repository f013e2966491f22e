"""Reports that files, folders and patterns name."""

from __future__ import annotations

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

from traceview.errors import NotFoundError, RequestError
from traceview.ranks.analyze_reports import find_reports, report_names
from traceview.read.formats import trace_rank


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


def write_trace(path: Path, rank: int | None) -> Path:
    """Write the beginning of a trace, compressed if its name says so."""
    info = "" if rank is None else f'"distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": 16}}, '
    text = f'{{"schemaVersion": 1, {info}"traceEvents": []}}'.encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def test_traces_are_in_the_order_of_their_ranks(tmp_path: Path) -> None:
    """Names of torch's own handler have a host and a process; other documents are left out."""
    for name, rank in (("node1_77.1.pt.trace.json.gz", 10), ("node2_5.1.pt.trace.json", 2)):
        write_trace(tmp_path / name, rank)
    (tmp_path / "results.json").write_text('{"figures": []}')
    paths = find_reports([str(tmp_path)])
    assert report_names(paths) == ("rank 2 · node2_5.1.pt.trace.json", "rank 10 · node1_77.1.pt.trace.json.gz")
    write_trace(tmp_path / "node1_77.2.pt.trace.json.gz", 10)
    with pytest.raises(RequestError, match=r"several traces of rank 10, node1_77\.1.*; name one trace of each rank"):
        find_reports([str(tmp_path)])


def test_rank_of_a_trace_in_its_name(tmp_path: Path) -> None:
    named = write_trace(tmp_path / "Rank_3.json", None)
    assert trace_rank(named) == 3 and trace_rank(write_trace(tmp_path / "frank.json", None)) is None
    assert report_names([named, write_trace(tmp_path / "rank12.json", 12)]) == ("Rank_3.json", "rank12.json")
    assert trace_rank(write_trace(tmp_path / "rank5.json", 4)) == 4


def test_reports_of_nsys_hide_traces(folder: Path) -> None:
    write_trace(folder / "rank0.json.gz", 0)
    assert "rank0.json.gz" not in [path.name for path in find_reports([str(folder)])]


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
    remedy = "name .sqlite files, traces, a folder or a pattern"
    assert (done.stdout, done.stderr) == (f"/proc: no report found; {remedy}\n", "")


def test_addresses_are_refused(folder: Path) -> None:
    with pytest.raises(RequestError, match="s3://bucket/runs: addresses are not read; copy the reports here"):
        find_reports([str(folder), "s3://bucket/runs"])
