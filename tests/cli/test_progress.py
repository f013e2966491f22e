"""The step that runs is shown on a terminal alone, and removed at the end."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from tests.captures import sample
from traceview.cli.outputs import ERASED, progress


def test_nothing_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress(quiet=False) as step:
        step("read", 0.5)
    assert capfd.readouterr().err == ""


def in_a_terminal(*arguments: str) -> str:
    """Return what a command writes to a terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-m", "traceview", *arguments])
    written = b""
    try:
        while piece := os.read(terminal, 65536):
            written += piece
    except OSError:  # the terminal is closed
        pass
    assert os.waitpid(child, 0)[1] == 0
    return written.decode()


def test_step_is_removed_at_the_end() -> None:
    capture = str(sample("dual.sqlite"))
    text = in_a_terminal("analyze", capture, "--no-html")
    before, _, summary = text.rpartition(ERASED)
    assert before.startswith(f"{ERASED}  0%  read") and "%  measure" in before and "dual.sqlite" in summary
    assert "\033[38;5;25m█" in summary, "the summary has colours"
    assert ERASED not in in_a_terminal("analyze", capture, "--no-html", "--quiet")
