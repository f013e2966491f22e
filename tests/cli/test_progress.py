"""The progress bar: monotonic, only on a terminal, only for long work, and removed at the end."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest

from tests.captures import sample
from traceview.cli import outputs as module
from traceview.cli.outputs import Progress, progress

RUN = """
import sys
from traceview.cli import outputs
outputs.FIRST_DRAWN_S, outputs.REDRAWN_S = float(sys.argv.pop(1)), 0.01
from traceview.__main__ import run
run()
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_share_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module.time, "monotonic", clock)
    state = Progress(expected_s=10)
    state.step("read", 0.0)
    clock.now = 2
    assert state.line(80) == "[####--------------------]  20%  0:09 left  read"
    state.step("measure", 0.5)  # earlier than expected
    assert state.line(80) == "[############------------]  50%  0:03 left  measure"
    clock.now = 90
    assert state.line(80).startswith("[#######################-]  99%  0:01 left")
    assert len(state.line(40)) == 39


def test_share_never_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(module.time, "monotonic", clock)
    state = Progress(expected_s=1)
    shares = []
    for now, done in ((0.5, 0.0), (5, 0.1), (6, 0.35), (60, 0.65), (61, 0.9)):
        clock.now = now
        state.step("step", done)
        state.line(80)
        shares.append(state.done)
    assert shares == sorted(shares) and shares[-1] < 1


def test_nothing_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress(quiet=False) as step:
        step("read", 0.5)
    assert capfd.readouterr().err == ""


def in_a_terminal(delay: float, *arguments: str) -> str:
    """Return what a command writes to a terminal."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ["TERM"] = "xterm"
        os.execv(sys.executable, [sys.executable, "-c", RUN, str(delay), *arguments])
    written = b""
    try:
        while piece := os.read(terminal, 65536):
            written += piece
    except OSError:  # the terminal is closed
        pass
    assert os.waitpid(child, 0)[1] == 0
    return written.decode()


def test_bar_is_removed_at_the_end() -> None:
    capture = str(Path(sample("dual.sqlite")))
    text = in_a_terminal(0.0, "analyze", capture, "--no-html")
    before, _, summary = text.rpartition("\r\033[K")
    assert "% " in before and " left  read" in before and " left  " not in summary
    assert "dual.sqlite" in summary and "\033[38;5;25m█" in summary, "the summary has colours"
    assert "left" not in in_a_terminal(60.0, "info", capture), "short work shows a bar"
    assert "left" not in in_a_terminal(0.0, "analyze", capture, "--no-html", "--quiet")
