"""Commands and options of earlier versions: one line that names the new way, exit code 2."""

from __future__ import annotations

import pytest

from tests.cli.command import Command
from traceview import cli
from traceview.cli.removed import COMMANDS, OPTIONS


@pytest.mark.parametrize("name", COMMANDS)
def test_removed_command(traceview: Command, name: str) -> None:
    code, out, err = traceview(name, "report.sqlite", "--json", "-")
    assert name not in cli.COMMANDS
    assert (code, out, err) == (2, "", f"traceview: error: `traceview {name}` is gone: {COMMANDS[name]}\n")


@pytest.mark.parametrize(("command", "option"), OPTIONS)
def test_removed_option(traceview: Command, command: str, option: str) -> None:
    code, out, err = traceview(command, *option.split())
    instead = OPTIONS[command, option]
    assert (code, out, err) == (2, "", f"traceview: error: `traceview {command} {option}` is gone: {instead}\n")
