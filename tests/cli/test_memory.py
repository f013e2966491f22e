"""`--memory`: a capture that does not fit is analyzed in parts. The samples fit, so the limit is made smaller."""

from __future__ import annotations

import json
import multiprocessing
import tempfile
from multiprocessing import forkserver
from pathlib import Path

import pytest

from tests.captures import sample
from tests.cli.command import Command
from traceview.engine import limited, memory
from traceview.workers import processes

SLICES = 7


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Make every capture too large, and return the empty folder of temporary files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setattr(memory, "fits_memory", lambda _path, _memory: False)
    monkeypatch.setattr(limited, "part_count", lambda _source, _memory, _processes: SLICES)
    return temporary


def left_files(folder: Path) -> list[Path]:
    """Return what is left in the folder of temporary files; multiprocessing keeps its own until this process ends."""
    return [path for path in folder.iterdir() if not path.name.startswith("pymp-")]


@pytest.mark.parametrize("processes_from", [1, 1 << 60])
def test_figures_are_those_in_memory(
    processes_from: int, traceview: Command, report: Path, small_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited, "MIN_BYTES_FOR_PROCESSES", processes_from)
    sliced, whole = report.with_name("sliced.json"), report.with_name("whole.json")
    code, out, err = traceview("analyze", report, "--memory", "1GB", "--json", sliced)
    assert (code, err) == (0, "")
    assert left_files(small_memory) == []
    page = report.with_name("report.overlap.html").read_text(encoding="utf-8")
    assert len(page) > 100_000 and "\n1. " in out
    monkeypatch.undo()
    assert traceview("analyze", report, "--no-html", "-q", "--json", whole)[0] == 0
    assert sliced.read_bytes() == whole.read_bytes()


def test_path_of_temporary_files_may_be_too_long_for_a_socket(
    traceview: Command, report: Path, small_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = small_memory / ("long" * 25)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setitem(multiprocessing.current_process()._config, "tempdir", None)  # type: ignore[attr-defined]
    monkeypatch.setattr(forkserver, "_forkserver", forkserver.ForkServer())
    monkeypatch.setattr(forkserver, "ensure_running", forkserver._forkserver.ensure_running)
    monkeypatch.setattr(processes, "ensure_running", forkserver._forkserver.ensure_running)
    monkeypatch.setattr(limited, "MIN_BYTES_FOR_PROCESSES", 1)
    out = report.with_name("sliced.json")
    assert traceview("analyze", report, "--memory", "1GB", "--no-html", "-q", "--json", out) == (0, "", "")
    assert left_files(folder) == []


def test_chosen_window_is_read_alone(
    traceview: Command, report: Path, small_memory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sliced, whole = report.with_name("sliced.json"), report.with_name("whole.json")
    window = ("--from", "100ms", "--to", "300ms")
    assert traceview("analyze", report, "--memory", "1GB", *window, "--no-html", "-q", "--json", sliced)[0] == 0
    assert left_files(small_memory) == []
    monkeypatch.undo()
    assert traceview("analyze", report, *window, "--no-html", "-q", "--json", whole)[0] == 0
    inside, complete = (json.loads(path.read_bytes()) for path in (sliced, whole))
    assert "window_alone" in {note["id"] for note in inside["notes"]}
    for mine, other in zip(inside["devices"], complete["devices"], strict=True):
        for name in ("window_ns", "busy_ns", "compute_ns", "idle_ns", "copies", "streams"):
            assert mine[name] == other[name]
    assert inside["host"]["sync"] == complete["host"]["sync"]


def test_other_formats_are_analyzed_as_a_whole(traceview: Command, small_memory: Path, tmp_path: Path) -> None:
    trace = sample("fsdp_tp/rank0.json.gz")
    code, _, err = traceview("analyze", trace, "--memory", "1GB", "--no-html", "-q", "--json", tmp_path / "out.json")
    assert (code, left_files(small_memory)) == (0, [])
    assert err == (
        "traceview: rank0.json.gz is analyzed as a whole, beyond --memory: only SQLite exports are read in parts\n"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1MB", "--memory 1.00 MB is too small; give at least 500 MB"),
        ("0", "--memory 0 B is too small; give at least 500 MB"),
        ("much", "Invalid value for '--memory': invalid size 'much' (for example 15MB) (see traceview analyze --help)"),
    ],
)
def test_limits_that_no_capture_fits(text: str, message: str, traceview: Command, report: Path) -> None:
    assert traceview("analyze", report, "--memory", text, "--no-html") == (2, "", f"traceview: error: {message}\n")
