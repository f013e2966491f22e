"""The commands of docs/tutorial.md print what the page shows."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.captures import ROOT

PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMAND = re.compile(r"^    \$ (.*)\n((?:    (?!\$).*\n)*)", re.MULTILINE)


def test_commands_print_what_the_page_shows(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "traceview"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m traceview "$@"\n')
    program.chmod(0o755)
    for name in ("samples", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    path = f"{program.parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    commands = COMMAND.findall(PAGE)
    assert len(commands) == 3
    for command, shown in commands:
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        lines = [line.removeprefix("    ") for line in shown.splitlines()]
        printed = [*done.stdout.splitlines(), *done.stderr.splitlines()]
        assert [line for line in lines if not any(text.startswith(line) for text in printed)] == [], command
    assert (tmp_path / "serial.html").stat().st_size > 100_000
