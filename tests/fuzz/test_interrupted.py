"""Signals, full disks and concurrent commands: old outputs stay, and the exit code is right."""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import subprocess
import sys
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from tests.captures import ROOT, sample
from tests.fuzz.ended import run
from tests.fuzz.invariants import parsed
from traceview.pipeline import analyze
from traceview.report.analysis import document

OLD = b"what was there before"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "POLARS_MAX_THREADS": "2"}


@pytest.fixture(scope="module")
def interrupt() -> ModuleType:
    loader = SourceFileLoader("interrupt", str(ROOT / "scripts" / "interrupt"))
    spec = importlib.util.spec_from_loader("interrupt", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("command", "number", "after"),
    [("analyze", "SIGINT", 0.9), ("redact", "SIGTERM", 0.9), ("redact", "SIGINT", 1.2), ("analyze", "SIGKILL", 1.2)],
)
def test_signal_keeps_old_outputs(interrupt: ModuleType, command: str, number: str, after: float) -> None:
    """`scripts/interrupt` tries many more times."""
    _, _, wrong = interrupt.attempt(command, sample("dual.sqlite"), number, after)
    assert wrong == []


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP", "WORKER"])
def test_signal_while_workers_start(interrupt: ModuleType, number: str) -> None:
    """No worker prints a traceback, none still runs, and no temporary folder is left."""
    for after in (0.8,) if number == "WORKER" else (0.4, 0.8):
        _, _, wrong = interrupt.attempt("fleet", sample("cudagraph.sqlite"), number, after, group=number != "WORKER")
        assert wrong == [], after


def ended(*arguments: str | Path, most: int | None = None) -> tuple[int, str]:
    """Run the command line; `most` limits the bytes of each file, as on a full disk."""
    limit = None if most is None else lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    done = subprocess.run(
        [sys.executable, "-m", "traceview", *map(str, arguments)],
        env=ENVIRONMENT, capture_output=True, preexec_fn=limit, timeout=300, check=False,
    )  # fmt: skip
    return done.returncode, done.stderr.decode()


@pytest.mark.parametrize("command", ["analyze", "redact"])
def test_disk_full(tmp_path: Path, command: str) -> None:
    report = Path(shutil.copyfile(sample("cudagraph.sqlite"), tmp_path / "report.sqlite"))
    out = tmp_path / ("new.sqlite" if command == "redact" else "old.html")
    if command == "analyze":
        out.write_bytes(OLD)
    arguments = [out] if command == "redact" else ["--html", out, "--quiet"]
    code, message = ended(command, report, *arguments, most=50_000)
    assert (code, message.count("\n")) == (2, 1), message
    assert "cannot be written" in message
    assert sorted(tmp_path.iterdir()) == sorted([report] if command == "redact" else [report, out])
    assert command == "redact" or out.read_bytes() == OLD


def test_two_analyses_of_a_report_at_once(tmp_path: Path) -> None:
    report = Path(shutil.copyfile(sample("cudagraph.sqlite"), tmp_path / "report.sqlite"))
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "traceview", "analyze", str(report), "--json", str(out), "--quiet"]
    both = [subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE) for _ in range(2)]
    assert [(item.communicate(timeout=300)[1], item.returncode) for item in both] == [(b"", 0)] * 2
    assert parsed(out.read_text()) == document(analyze(report))
    assert not list(tmp_path.glob(".traceview-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_report_on_a_read_only_mount(tmp_path: Path) -> None:
    shutil.copyfile(sample("cudagraph.sqlite"), tmp_path / "report.sqlite")
    place = tmp_path / "mounted"
    place.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(place)], capture_output=True)
    if made.returncode:
        pytest.skip("mounting is not permitted here")
    try:
        shutil.copyfile(tmp_path / "report.sqlite", place / "report.sqlite")
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        assert ended("analyze", place / "report.sqlite", "--no-html", "--quiet") == (0, "")
        code, message = ended("analyze", place / "report.sqlite")
        assert (code, message.count("\n")) == (2, 1) and "report.overlap.html" in message
        assert ended("info", place / "report.sqlite")[0] == 0
    finally:
        subprocess.run(["umount", str(place)], check=False)


@pytest.mark.parametrize(
    "name",
    ["-x.sqlite", "--json", "a b%20?mode=rwc#.sqlite", "line\nend.sqlite", "تقرير.sqlite", "報告😀.sqlite",
     "e\u0301\u202egpj.sqlite", os.fsdecode(b"\xff\xfe.sqlite")],
)  # fmt: skip
def test_file_names_in_any_script(tmp_path: Path, name: str) -> None:
    scratch = tmp_path / "temporary"
    scratch.mkdir()
    report = Path(shutil.copyfile(sample("cudagraph.sqlite"), tmp_path / name))
    done = run(("analyze", str(report), "--json", str(tmp_path / "out.json"), "--quiet"), scratch)
    assert (done.code, done.err, done.raised) == (0, "", "")
    assert report.with_name(f"{report.stem}.overlap.html").is_file()
    assert parsed((tmp_path / "out.json").read_text())["devices"]
