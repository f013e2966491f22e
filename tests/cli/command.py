"""Run the command in this process, or in one of its own where signals and imports matter."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from traceview.__main__ import SIGNAL_EXIT_CODES, main

# The program for `python -c`; a shell's background jobs ignore Ctrl-C.
HEARS_CTRL_C = (
    "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from traceview.__main__ import run; run()"
)


class Result(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def traceview(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Command]:
    """Return a function that runs `traceview ARGUMENTS`."""
    monkeypatch.delenv("COLUMNS", raising=False)  # a runner of tests may set it for its own output
    before = {number: signal.getsignal(number) for number in SIGNAL_EXIT_CODES}

    def run(*arguments: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["traceview", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        out, err = capfd.readouterr()
        return Result(code, out, err)

    yield run
    for number, handler in before.items():
        signal.signal(number, handler)


def in_a_process(script: str, *arguments: object) -> Result:
    """Run a Python script that may change the command before it starts it."""
    ended = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        timeout=300,
        check=False,
    )
    return Result(ended.returncode, ended.stdout, ended.stderr)
