"""`--help` of every command: examples that parse, in 80 columns."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile

import click
import pytest

from traceview.cli import COMMANDS, cli


def command_named(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)  # type: ignore[attr-defined]
    assert isinstance(command, click.Command)
    return command


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_parse(name: str) -> None:
    command = command_named(name)
    text = command.get_help(click.Context(command, info_name=f"traceview {name}"))
    assert all(len(line) <= 80 for line in text.splitlines())
    lines = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) >= 2 or name == "completion"
    for line in lines:
        inner = line.partition('"$(')[2].partition(')"')[0]  # eval "$(COMMAND)"
        words = list(takewhile(lambda word: word not in (">", ">>", "|"), shlex.split(inner or line, comments=True)))
        assert words[:2] == ["traceview", name]
        command.make_context(name, words[2:]).close()


def test_short_options_do_not_clash() -> None:
    for name in COMMANDS:
        short = [
            option for param in command_named(name).params for option in param.opts if re.fullmatch("-[a-z]", option)
        ]
        assert len(short) == len(set(short)), name
