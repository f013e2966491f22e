"""Hand-made files that would hang a command or exhaust the memory.

Each command runs in a separate process with 4 GB of memory and a generous time limit.
"""

from __future__ import annotations

import os
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.build_export import Call, Kernel, Nvtx, build_export
from tests.captures import ROOT, change
from tests.fuzz.invariants import parsed
from traceview.pipeline import analyze
from traceview.read.sqlite.database import schema_excess

FOREVER = 300  # seconds; each takes a few
MEMORY = 4 << 30
PAGE = 1024
RUNTIME = "CUPTI_ACTIVITY_KIND_RUNTIME"


def run(*arguments: str | Path, folder: Path | None = None, memory: int = MEMORY) -> tuple[int, str]:
    """Run the command line in a process with little memory; return its exit code and error output."""
    ended = subprocess.run(
        [sys.executable, "-m", "traceview", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "2", "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        cwd=folder,
        capture_output=True,
        timeout=FOREVER,
        check=False,
    )
    return ended.returncode, ended.stderr.decode("utf-8", "replace")


def refused(report: Path, *words: str, commands: Sequence[str] = ("analyze",)) -> None:
    for command in commands:
        out = report.with_name("out.sqlite")
        code, message = run(command, report, *((out,) if command == "redact" else ()))
        assert (code, message.count("\n")) == (2, 1), message
        assert message.startswith(f"traceview: error: {report.name}: ")
        assert not [word for word in words if word not in message], message
        assert sorted(report.parent.iterdir()) == [report]


def interior(to: int, size: int = PAGE, children: int = 100) -> bytes:
    """Return an interior page whose children are all the same page."""
    page, at = bytearray(size), size
    page[0], page[3:5], page[8:12] = 5, children.to_bytes(2, "big"), to.to_bytes(4, "big")
    for index in range(children):
        at -= 6
        page[at : at + 6] = to.to_bytes(4, "big") + bytes([0x81, index])
        page[12 + 2 * index : 14 + 2 * index] = at.to_bytes(2, "big")
    page[5:7] = at.to_bytes(2, "big")
    return bytes(page)


def test_page_cycle(report: Path) -> None:
    """SQLite follows such pages forever; neither Ctrl-C nor SIGTERM ended a command."""
    connection = sqlite3.connect(report)
    root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (RUNTIME,)).fetchone()[0]
    connection.close()
    data = bytearray(report.read_bytes())
    leaf = int.from_bytes(data[(root - 1) * PAGE + 8 :][:4], "big")
    first = len(data) // PAGE + 1
    for level in range(6):
        data += interior(first + level + 1 if level < 5 else leaf)
    data[(root - 1) * PAGE : root * PAGE] = interior(first)
    data[28:32] = (len(data) // PAGE).to_bytes(4, "big")
    report.write_bytes(data)
    refused(report, "SQLite cannot read it (interrupted)", commands=("info", "redact"))


def test_schema_with_too_many_tables_is_refused(report: Path) -> None:
    connection = sqlite3.connect(report)
    connection.execute("CREATE TABLE t (a)")
    root = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 't'").fetchone()[0]
    connection.execute("PRAGMA writable_schema = ON")
    rows = ((f"t{number}", f"t{number}", root, f"CREATE TABLE t{number}(a)") for number in range(30_000))
    connection.executemany("INSERT INTO sqlite_master VALUES ('table', ?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    refused(report, "tables and views, more than any export", commands=("analyze", "info"))


def test_huge_schema_is_refused(report: Path) -> None:
    change(report, f"CREATE TABLE big (a /* {'x' * (17 << 20)} */)")
    refused(report, "17 MB of definitions")


def test_schemas_of_real_exports_are_within_the_limit(report: Path) -> None:
    assert schema_excess(report) is None


def test_computed_columns_are_not_read(report: Path) -> None:
    """Each name would be computed as one gigabyte of text."""
    change(
        report,
        "ALTER TABLE StringIds RENAME TO moved",
        "CREATE TABLE StringIds (id INTEGER, value TEXT AS (hex(zeroblob(400000000))))",
        "INSERT INTO StringIds SELECT id FROM moved",
    )
    refused(report, "StringIds has no column 'value'")
    assert run("info", report)[0] in (0, 2)


def test_huge_text_is_not_read(report: Path) -> None:
    change(report, f"INSERT OR REPLACE INTO StringIds VALUES (5, CAST(zeroblob({65 << 20}) AS TEXT))")
    if sys.version_info >= (3, 11):
        refused(report, "string or blob too big")
    else:
        assert run("analyze", report, "--no-html")[0] == 0


def test_long_names_are_cut_with_a_note(tmp_path: Path) -> None:
    """The page repeated names of millions of letters for hundreds of events."""
    long = "x" * 2_000_000
    spans = range(0, 3000, 10)
    path = build_export(
        tmp_path / "report.sqlite",
        kernels=[Kernel(at, at + 5, name=f"k{long}", correlation=at + 1) for at in spans],
        api=[Call(at - 3, at - 1, correlation=at + 1) for at in spans],
        nvtx=[Nvtx(at - 5, at + 5, registered=f"iteration {long}") for at in spans],
    )
    code, message = run("analyze", path, "--json", tmp_path / "out.json", "--quiet")
    assert (code, message) == (0, "")
    names = [use["name"] for use in parsed((tmp_path / "out.json").read_text())["nvtx"]]
    assert names == ["iteration " + "x" * ((1 << 15) - 10) + "…"]
    assert path.with_name("report.overlap.html").stat().st_size < 20_000_000


def test_ranges_without_end(tmp_path: Path) -> None:
    """Real programs have this defect. Pairs of ranges and their operations took 2 GB for 5,000 ranges."""
    count = 20_000
    path = build_export(
        tmp_path / "report.sqlite",
        kernels=[Kernel(10 * at, 10 * at + 5, correlation=at + 1) for at in range(count)],
        api=[Call(10 * at - 3, 10 * at - 1, correlation=at + 1) for at in range(count)],
        nvtx=[Nvtx(10 * at - 5, None, text=f"r{at % 7}") for at in range(count)],
    )
    code, message = run("analyze", path, "--json", tmp_path / "out.json", "--no-html", "--quiet")
    assert (code, message) == (0, "")
    assert (
        f"{count - 128:,} rows of NVTX_EVENTS left out: more than 128 ranges are open at once"
        in (tmp_path / "out.json").read_text()
    )


def test_ranges_side_by_side_are_not_nested(tmp_path: Path) -> None:
    spans = range(0, 5000, 10)
    nvtx = [Nvtx(at, at + 10, text="a") for at in spans]
    result = analyze(build_export(tmp_path / "report.sqlite", kernels=[Kernel()], nvtx=nvtx))
    assert sum(use.count for use in result.nvtx if not isinstance(use, str)) == len(spans)
    assert not [note for note in result.notes if "left out" in note.text]


@pytest.mark.parametrize(("what", "count"), [("streams", 8200), ("GPUs", 1100), ("threads", 8200), ("processes", 1100)])
def test_too_many_threads_processes_or_names(tmp_path: Path, what: str, count: int) -> None:
    """Each thread, process or name costs time and a row of the page."""
    many = range(count)
    of_kernels = {"streams": "stream", "GPUs": "device"}.get(what, "name")
    of_calls = {"threads": "thread", "processes": "process"}.get(what, "name")
    path = build_export(
        tmp_path / "report.sqlite",
        kernels=[Kernel(10 * at, 10 * at + 5, correlation=at + 1, **{of_kernels: at}) for at in many],
        api=[Call(10 * at - 3, 10 * at - 1, correlation=at + 1, **{of_calls: at}) for at in many],
    )
    refused(path, what, "damaged")
