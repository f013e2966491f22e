"""The process around the commands: help, version, completion, errors and signals."""

from __future__ import annotations

import errno
import gzip
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

import traceview as package
from tests.cli.command import Command, in_a_process
from tests.cli.test_record import stand_in
from traceview.report.screen import width

START = "import sys; from traceview.__main__ import run; run()"
MEANWHILE = """
import os, pathlib, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
def interrupted(part, target):
    os.kill(os.getpid(), signal.{signal})
    time.sleep(60)
pathlib.Path.replace = interrupted
from traceview.__main__ import main
main()
"""


@pytest.mark.parametrize("arguments", [["--help"], ["analyze", "--help"], ["info", "-h"], ["--version"], []])
def test_help_imports_no_heavy_package(arguments: list[str]) -> None:
    script = (
        "import atexit, sys\n"
        "heavy = {'polars', 'numpy', 'sqlite3'}\n"
        "atexit.register(lambda: print('HEAVY', sorted(heavy & set(sys.modules))))\n"
        "from traceview.__main__ import main; main()"
    )
    code, out, err = in_a_process(script, *arguments)
    assert (code, err) == (0, "")
    assert out.rstrip().endswith("HEAVY []")
    assert all(width(line) <= 80 for line in out.splitlines())


def test_version(traceview: Command) -> None:
    assert traceview("--version") == (0, f"traceview, version {package.__version__}\n", "")


def test_module_runs_the_command(report: Path) -> None:
    def run(*command: str) -> tuple[int, str]:
        ended = subprocess.run([sys.executable, *command, "info", str(report)], capture_output=True, text=True)
        return ended.returncode, ended.stdout

    assert run("-m", "traceview") == run("-c", START)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TRACEVIEW_COMPLETE", f"{shell}_source")
    code, out, _ = in_a_process(START)
    assert code == 0
    assert "_TRACEVIEW_COMPLETE" in out and f"{shell}_complete" in out


def test_completion_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_TRACEVIEW_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "traceview analyze --no")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert "plain,--no-html" in in_a_process(START).out


def test_capture_in_place_of_a_command(traceview: Command) -> None:
    code, _, err = traceview("report.sqlite")
    assert code == 2
    assert "did you mean: traceview analyze report.sqlite" in err


HIDDEN = """
import os, pathlib, signal, sys, threading, time
from traceview.__main__ import run
signal.signal(signal.SIGINT, signal.default_int_handler)
def interrupted(part, target):
    {how}
pathlib.Path.replace = interrupted
threading.Thread(target=time.sleep, args=(2,), daemon=True).start()
run()
"""
KILL = "os.kill(os.getpid(), signal.SIGINT); time.sleep(60)"


@pytest.mark.parametrize(
    "how",
    [
        f'exec("{KILL}")',
        f"class Named: __set_name__ = lambda *_: exec('{KILL}')\n    class Made: one = Named()",
        f"class Ends: __del__ = lambda self: exec('{KILL}')\n    Ends(); time.sleep(60)",
    ],
    ids=["in code made from text", "in a class half made", "at the end of an object"],
)
def test_ctrl_c_exits_with_130_wherever_python_is(report: Path, tmp_path: Path, how: str) -> None:
    """Python ends by the signal in `exec`, wraps an exception in a class body and drops one in `__del__`."""
    (tmp_path / "hidden.py").write_text(HIDDEN.format(how=how))
    ended = subprocess.run(
        [sys.executable, "-m", "hidden", "analyze", report], capture_output=True, text=True, timeout=300,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(package.__file__).parents[1])])},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr.strip()) == (130, "traceview: interrupted")


def test_ignored_ctrl_c_stays_ignored(report: Path) -> None:
    sends = MEANWHILE.format(signal="SIGINT").replace("time.sleep(60)", "os.rename(part, target)")
    ignored = sends.replace("signal.default_int_handler", "signal.SIG_IGN")
    assert in_a_process(ignored, "analyze", report, "--quiet") == (0, "", "")


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("can't start new thread"), OSError(errno.ENOMEM, "Cannot allocate memory")],
    ids=["for data", "for a thread", "for a process"],
)
def test_out_of_memory_names_the_capture(
    traceview: Command, report: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def too_large(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(importlib.import_module("traceview.report.analysis"), "to_json", too_large)
    code, out, err = traceview("analyze", report, "--json", report.parent / "out.json")
    remedy = "use a machine with more memory, or a shorter capture"
    assert (code, out, err) == (2, "", f"traceview: error: {report.name}: not enough memory; {remedy}\n")


@pytest.mark.parametrize(("signal", "code"), [("SIGHUP", 129), ("SIGINT", 130), ("SIGTERM", 143)])
def test_signal_leaves_no_partial_file(report: Path, signal: str, code: int) -> None:
    page = report.parent / "report.overlap.html"
    page.write_text("old")
    ended = in_a_process(MEANWHILE.format(signal=signal), "analyze", report)
    assert ended.code == code
    assert "Traceback" not in ended.err
    assert page.read_text() == "old"
    assert sorted(path.name for path in report.parent.iterdir()) == [page.name, report.name]


def test_internal_error_is_one_line(traceview: Command, report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise KeyError("secret from the capture")

    monkeypatch.setattr(importlib.import_module("traceview.report.analysis"), "to_json", broken)
    monkeypatch.delenv("TRACEVIEW_DEBUG", raising=False)
    code, out, err = traceview("analyze", report, "--json", report.parent / "out.json")
    assert (code, out) == (2, "")
    assert err.startswith("traceview: error: internal error (KeyError in ")
    assert "TRACEVIEW_DEBUG=1" in err and "secret" not in err and err.count("\n") == 1
    assert [path.name for path in report.parent.iterdir()] == ["report.sqlite"]
    monkeypatch.setenv("TRACEVIEW_DEBUG", "1")
    with pytest.raises(KeyError):
        traceview("analyze", report, "--json", report.parent / "out.json")


def test_closed_pipe_is_not_an_error(report: Path) -> None:
    script = "import os; reading, writing = os.pipe(); os.close(reading); os.dup2(writing, 1); " + START
    assert in_a_process(script, "analyze", report, "--no-html") == (0, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["info"], ["--help"]])
def test_full_standard_output_is_one_line(report: Path, arguments: list[str]) -> None:
    script = "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); " + START
    code, _, err = in_a_process(script, *arguments, *([report] if arguments == ["info"] else []))
    assert code == 2
    assert err == "traceview: error: cannot write standard output (No space left on device)\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_folder_for_temporary_files_is_one_line(
    traceview: Command, report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        with open("/dev/full", "wb") as file:  # noqa: PTH123 - as tempfile opens it
            file.write(b"x")

    monkeypatch.setattr(importlib.import_module("traceview.report.analysis"), "to_json", full)
    code, out, err = traceview("analyze", report, "--json", report.parent / "out.json")
    remedy = "set TMPDIR to a folder with more room"
    assert (code, out) == (2, "")
    assert err == f"traceview: error: cannot write a temporary file (No space left on device); {remedy}\n"


def test_no_folder_for_temporary_files_is_one_line(report: Path, tmp_path: Path) -> None:
    script = "import tempfile; tempfile._candidate_tempdir_list = lambda: ['/none']; " + START
    packed = report.with_suffix(".sqlite.gz")
    packed.write_bytes(gzip.compress(report.read_bytes()))
    doctor, info = (
        in_a_process(script, *arguments) for arguments in (("doctor", "--nsys", stand_in(tmp_path)), ("info", packed))
    )
    assert [doctor.code, info.code, info.out] == [2, 2, ""]
    remedy = "no folder for temporary files can be written; set TMPDIR to a folder with room\n"
    assert doctor.err == f"traceview: error: {remedy}"
    assert info.err.startswith("traceview: error: report.sqlite.gz: cannot create a temporary folder (No usable")
    assert info.err.endswith("; set TMPDIR to a writable folder\n") and info.err.count("\n") == 1


def test_ascii_terminal(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    code, out, err = in_a_process(START, "analyze", report, "--no-html")
    assert (code, err) == (0, "")
    assert out.isascii() and "report.sqlite - nsys" in out and "###" in out


def test_public_names() -> None:
    assert set(package.__all__) == {
        *("Analysis", "Comparison", "Finding", "Fleet", "Trace", "TraceviewError", "WhatIf", "Window"),
        *("analyze", "compare", "export", "fleet", "open_trace", "whatif"),
    }
    assert set(package.__all__) <= set(dir(package))
    for name in package.__all__:
        assert callable(getattr(package, name)), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = package.nothing  # type: ignore[attr-defined]


@pytest.mark.parametrize(("columns", "most"), [("80", 80), ("120", 120), ("60", 60), ("20", 40), ("many", 100)])
def test_piped_output_obeys_columns(
    traceview: Command, report: Path, monkeypatch: pytest.MonkeyPatch, columns: str, most: int
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    out = traceview("analyze", report, "--no-html").out
    assert most - 20 < max(map(width, out.splitlines())) <= most
