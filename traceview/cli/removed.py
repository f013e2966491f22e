"""What earlier versions had, and what to use instead: commands, and options of commands.

A name of these tables that a user still types ends in one line with exit code 2.
"""

from __future__ import annotations

from collections.abc import Sequence

import click

from traceview.errors import RequestError

# Name -> what to use instead.
COMMANDS = {
    "baseline": "keep the document of `traceview analyze --json`, and compare with it",
    "calibrate": "give `--unprofiled-ms` the time of an iteration without the profiler",
    "completion": "`_TRACEVIEW_COMPLETE=bash_source traceview` prints the script (zsh_source, fish_source)",
    "rules": "docs/analyze.md lists what traceview finds",
    "schema": "docs/schema.md describes the JSON",
    "serve": "`traceview export` writes a trace with every event for ui.perfetto.dev",
}
# Command and option -> what to use instead. "--format csv" is the value csv of --format, "REPORT" the argument of a
# command that takes none.
STACKS = "the page of `traceview analyze` draws the time by stack"
OPTIONS: dict[tuple[str, str], str] = {
    ("export", "--format csv"): "`--format parquet` writes the tables, and polars a CSV from one (docs/export.md)",
    ("export", "--format speedscope"): STACKS,
    ("export", "--format collapsed"): STACKS,
    ("export", "--format collapsed-host"): STACKS,
}


def refuse_command(name: str) -> None:
    """Raise RequestError if an earlier version had a command of this name."""
    if name in COMMANDS:
        raise RequestError(f"`traceview {name}` is gone: {COMMANDS[name]}")


def refuse_option(command: str, arguments: Sequence[str], error: click.UsageError) -> None:
    """Raise RequestError if one of the arguments, which click refuses, is an option of an earlier version."""
    given = f" {' '.join(arguments).replace('=', ' ')} "
    for (owner, option), instead in OPTIONS.items():
        is_extra = option.isupper() and type(error) is click.UsageError and "extra argument" in error.message
        if owner == command and (is_extra or f" {option} " in given):
            raise RequestError(f"`traceview {command} {option}` is gone: {instead}")
