"""The command: output, errors, broken reports, lost workers, and real Dask clusters."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.captures import ROOT, sample
from tests.cli.command import HEARS_CTRL_C, Command
from tests.ranks.reports import ranks_of
from traceview.model.fleet import Fleet
from traceview.report.fleet import to_json
from traceview.report.fleet.terminal import render, render_brief
from traceview.report.screen import MAX_LINES, PAGE_LINES, Screen

ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "1"}
# The first bytes of an nsys report, and an nsys that kills its caller: once, or every time.
REPORT = b"NVIDIA Tegra Profiler Report 2024@2@3"
KILLER = """#!/bin/sh
if [ "$1" = --version ]; then echo NVIDIA Nsight Systems version 2026.1.1.1; exit; fi
if [ ! -e {mark} ]; then {touch} kill -9 $PPID; exit; fi
cp {export} "$5"
"""
SLEEPER = """#!/bin/sh
if [ "$1" = --version ]; then echo version 2026.1.1; exit; fi
touch {mark}; exec sleep 60
"""


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Return a folder with links to the reports of a run."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for path in ranks_of("slowhost"):
        (folder / path.name).symlink_to(path)
    return folder


def killer(folder: Path, *, once: bool) -> str:
    """Return an nsys that kills the worker that calls it, or else exports a sample."""
    program, mark = folder / "nsys", folder / "killed"
    touch = f"touch {mark};" if once else ""
    program.write_text(KILLER.format(mark=mark, touch=touch, export=sample("dual.sqlite")))
    program.chmod(0o755)
    return str(program)


def test_output_equals_a_run_in_this_process(traceview: Command, runs: Path, tmp_path: Path, slow_host: Fleet) -> None:
    out = tmp_path / "out.json"
    result = traceview("fleet", f"{runs}/rank*", f"{runs}/slowhost*", "--json", out, "--workers", 2)
    assert result.code == 2 and "rank*: no report found" in result.err and not out.exists()
    result = traceview("fleet", f"{runs}/slowhost*", "--json", out, "--workers", 2)
    assert (result.code, result.err) == (0, "")
    # Two processes give the same bytes as none.
    assert out.read_text(encoding="utf-8") == to_json(slow_host)
    page = runs / "fleet.overlap.html"
    assert result.out == render_brief(slow_host, Screen(100)) + f"Page: {page}\n"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
    for columns in (80, 100, 160):
        text = render(slow_host, Screen(columns))
        assert all(len(line) <= columns for line in text.splitlines())
        assert ("caused" in text, " comm\n" in text) == (columns >= 100, columns == 160)
        cells = text.partition("slowest first\n")[2].partition("  own =")[0]
        assert not re.search(r"[nµm]s-?\d", cells) and " -" in cells  # a negative lag is the widest cell
    brief = render_brief(slow_host).splitlines()
    assert len(brief) <= MAX_LINES - PAGE_LINES and all(len(line) <= 80 for line in brief)
    assert "1 straggler of 4 ranks." in brief and "Waits between ranks" not in result.out
    assert traceview("fleet", f"{runs}/slowhost*", "--no-html", "-v").out == render(slow_host, Screen(100))
    assert "! slowhost_rank1" in result.out and render(slow_host, Screen(unicode=False)).isascii()


def test_broken_report_is_skipped(traceview: Command, runs: Path) -> None:
    (runs / "slowhost_rank0.sqlite.xz").unlink()
    (runs / "slowhost_rank0.sqlite").write_bytes(sample("dual.sqlite").read_bytes()[:50_000])
    (runs / "slowhost_rank9.sqlite").write_text("text", encoding="utf-8")
    result = traceview("fleet", runs, runs / "gone.sqlite", "--no-html", "--json", "-", "--workers", 1)
    document = json.loads(result.out)
    assert result.code == 3
    assert document["reports"] == [f"slowhost_rank{rank}.sqlite.xz" for rank in (1, 2, 3)]
    reasons = {skipped["file"]: skipped["reason"].split(" ")[0:2] for skipped in document["skipped"]}
    assert reasons == {
        "gone.sqlite": ["no", "such"],
        "slowhost_rank0.sqlite": ["cut", "off:"],
        "slowhost_rank9.sqlite": ["not", "an"],
    }
    assert [line.split(": ")[1] for line in result.err.splitlines()] == [f"skipped {name}" for name in sorted(reasons)]
    assert [document["ranks"][late["rank"]]["label"] for late in document["stragglers"]] == ["slowhost_rank1"]


def test_exit_codes(traceview: Command, tmp_path: Path) -> None:
    report = sample("ddp2.sqlite")
    result = traceview("fleet", report, "--no-html", "-q", "--fail-if", "straggler > 5%", "--workers", 1)
    assert result.code == 1 and result.out == ""
    assert result.err.startswith(
        "traceview: --fail-if straggler > 5%: straggler is 57.593% (10.346946 ms of 17.965771 ms) on ddp2 · GPU 0"
    )
    (tmp_path / "a.sqlite").write_bytes(b"")
    (tmp_path / "b.sqlite").write_bytes(b"")
    result = traceview("fleet", tmp_path, "--workers", 1)
    assert result.code == 2 and {path.name for path in tmp_path.iterdir()} == {"a.sqlite", "b.sqlite"}
    assert result.err.startswith("traceview: error: a.sqlite: the file is empty;")
    assert "(1 more report cannot be read either)" in result.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--html", "-"], "--html needs a file name"),
        (["--open", "--no-html"], "--open needs the page"),
        (["--fail-if", "speed > 5%"], "has no figure speed; the nearest is"),
        (["--html", str(sample("ddp2.sqlite"))], "must be different files"),
        (["--json", "/nowhere/x.json"], "its folder does not exist"),
    ],
)
def test_invalid_options_are_one_line_errors(traceview: Command, arguments: list[str], words: str) -> None:
    result = traceview("fleet", sample("ddp2.sqlite"), *arguments)
    assert result.code == 2 and words in result.err and result.err.count("\n") == 1


@pytest.mark.parametrize("once", [True, False])
def test_dead_worker_is_replaced(traceview: Command, runs: Path, tmp_path: Path, once: bool) -> None:
    for rank in (2, 3):
        (runs / f"slowhost_rank{rank}.sqlite.xz").unlink()
    (runs / "slowhost_rank4.nsys-rep").write_bytes(REPORT)
    nsys = killer(tmp_path, once=once)
    result = traceview("fleet", runs, "--no-html", "--json", "-", "--workers", 2, "--nsys", nsys)
    document = json.loads(result.out)
    assert (tmp_path / "killed").exists() is once
    # The other reports are read in both cases; a report that kills its worker twice is given up.
    assert [rank["label"] for rank in document["ranks"]][:2] == ["slowhost_rank0", "slowhost_rank1"]
    assert (result.code, len(document["ranks"])) == ((0, 3) if once else (3, 2))
    assert [skipped["reason"][:36] for skipped in document["skipped"]] == (
        [] if once else ["the process that read it died twice,"]
    )


def test_interrupt_leaves_no_files_and_no_processes(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    (runs / "slowhost_rank4.nsys-rep").write_bytes(REPORT)
    slow = tmp_path / "nsys"
    slow.write_text(SLEEPER.format(mark=tmp_path / "started"))
    slow.chmod(0o755)
    command = [sys.executable, "-c", HEARS_CTRL_C, "fleet", str(runs), "--workers", "1", "--nsys", str(slow)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 300
    while not (tmp_path / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, printed = process.communicate(timeout=300)
    assert (process.returncode, printed.strip()) == (130, "traceview: interrupted")
    assert not (runs / "fleet.overlap.html").exists()
    while is_group_alive(process.pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_group_alive(process.pid)


def is_group_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
