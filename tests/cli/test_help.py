"""`--help` of every command: examples that parse, in 80 columns."""

from __future__ import annotations

import re
import shlex
from itertools import takewhile

import click
import pytest

from tests.cli.command import Command
from traceview.cli import COMMANDS, GROUPS, cli

SCREEN = 40  # lines


def command_named(name: str) -> click.Command:
    command = cli.get_command(click.Context(cli), name)  # type: ignore[attr-defined]
    assert isinstance(command, click.Command)
    return command


@pytest.mark.parametrize("name", COMMANDS)
def test_examples_parse(name: str) -> None:
    command = command_named(name)
    text = command.get_help(click.Context(command, info_name=f"traceview {name}"))
    assert all(len(line) <= 80 for line in text.splitlines())
    assert len(text.splitlines()) <= SCREEN
    lines = text.partition("Examples:\n")[2].partition("\n\n")[0].splitlines()
    assert len(lines) >= 2
    for line in lines:
        inner = line.partition('"$(')[2].partition(')"')[0]  # eval "$(COMMAND)"
        words = list(takewhile(lambda word: word not in (">", ">>", "|"), shlex.split(inner or line, comments=True)))
        assert words[:2] == ["traceview", name]
        command.make_context(name, words[2:]).close()


@pytest.mark.parametrize("name", COMMANDS)
def test_each_common_option_has_one_line(name: str) -> None:
    command = command_named(name)
    text = command.get_help(click.Context(command, info_name=f"traceview {name}")).partition("Examples:")[2]
    options = text.partition("\n\n")[2].splitlines()
    assert [line for line in options if not re.match(r"  -.*  \S|\S.*:$|$", line)] == []


def test_list_of_commands_fits_a_screen(traceview: Command) -> None:
    assert len(COMMANDS) <= 10
    assert traceview("--help").out.count("\n") <= SCREEN


def test_short_options_do_not_clash() -> None:
    meanings: dict[str, set[str]] = {}
    for name in COMMANDS:
        params = command_named(name).params
        short = [(option, param) for param in params for option in param.opts if re.fullmatch("-[a-z]", option)]
        assert len(short) == len(dict(short)), name
        for option, param in short:
            meanings.setdefault(option, set()).add(param.opts[0])
    assert meanings == {"-o": {"--output"}, "-q": {"--quiet"}, "-v": {"--verbose"}}


def test_every_option_is_in_one_group(traceview: Command) -> None:
    listed = [name for names in GROUPS.values() for name in names.replace("/", " ").split()]
    options = {
        param.name for name in COMMANDS for param in command_named(name).params if param.param_type_name == "option"
    }
    assert sorted(listed) == sorted({*options, "help"})
    common, every = traceview("analyze", "--help").out, traceview("analyze", "--help-all").out
    assert "--max-decoded" in every and "--max-decoded" not in common and "--help " in common
