"""What earlier versions had, and what to use instead: commands, options of commands, baselines, and settings.

A name of these tables that a user still types, or such a file, ends in one line with exit code 2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import click

from traceview.errors import RequestError

UNPROFILED = "give `--unprofiled-ms` the time of an iteration without the profiler"
# Name -> what to use instead.
COMMANDS = {
    "baseline": "keep the document of `traceview analyze --json`, and compare with it",
    "calibrate": UNPROFILED,
    "completion": "`_TRACEVIEW_COMPLETE=bash_source traceview` prints the script (docs/faq.md)",
    "help": "`traceview --help` lists the commands, `traceview COMMAND --help-all` every option of one",
    "optimize": "`traceview compare BEFORE AFTER --change ID` shows what was predicted for a change beside what came",
    "rules": "the documentation has a page of rules, which `make docs` writes",
    "schema": "the documentation has the JSON Schemas, which `scripts/json-schema` writes (docs/schema.md)",
    "serve": "`traceview export` writes every event for ui.perfetto.dev",
}
# Command and option -> what to use instead. "--format csv" is the value csv of --format, "REPORT" the argument of a
# command that takes none.
EVERY_EVENT = (
    "`traceview export` writes every event for ui.perfetto.dev; `--detail 50MB` makes a page with more of them"
)
WHOLE = "a capture is read as one piece; `--from`, `--to` and `--range` choose a shorter one"
STACKS = "the page of `traceview analyze` draws the time by stack"
OPTIONS: dict[tuple[str, str], str] = {
    ("analyze", "--serve"): EVERY_EVENT,
    ("analyze", "--port"): EVERY_EVENT,
    ("analyze", "--calibration"): UNPROFILED,
    ("compare", "--calibration"): UNPROFILED,
    ("doctor", "--calibrate"): UNPROFILED,
    ("analyze", "--memory"): WHOLE,
    ("fleet", "--memory"): WHOLE,
    ("doctor", "REPORT"): "`traceview info REPORT` lists what a capture holds and lacks",
    ("export", "--format csv"): "`--format parquet` writes the tables, and polars a CSV from one (docs/export.md)",
    ("export", "--format speedscope"): STACKS,
    ("export", "--format collapsed"): STACKS,
    ("export", "--format collapsed-host"): STACKS,
    ("compare", "--save"): "keep the document of `traceview analyze --json`, and name its path",
    ("compare", "--baselines"): "keep documents of `traceview analyze --json`, and name their paths",
    ("compare", "--history"): "keep the document of `traceview analyze --json` of each commit",
    ("whatif", "--calibration"): UNPROFILED,
}

# Files with settings of earlier versions, and what shows that they hold some.
SETTINGS = {"traceview.toml": re.compile(b""), "pyproject.toml": re.compile(rb"(?m)^\s*\[tool\.traceview[].]")}
BASELINES = (".traceview", "baselines")  # the folder in which earlier versions stored baselines
MAX_PROJECT = 1 << 20  # bytes of a file in which settings are looked for


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


def refuse_baseline_name(name: str) -> None:
    """Raise RequestError for a name of a baseline of an earlier version, unless it is a file's."""
    if name.startswith("baseline:") and not Path(name).exists():
        raise RequestError(
            f"{name[:40]}: names a baseline of an earlier version; give the path of a document of "
            "`traceview analyze --json`, which compare takes"
        )


def refuse_baseline(capture: Path) -> None:
    """Raise RequestError if a capture is in the folder of baselines of an earlier version."""
    if capture.parent.parts[-2:] == BASELINES:
        raise RequestError(
            f"{capture.name}: is a baseline of an earlier version; write its document, and compare with that: "
            f"traceview analyze {capture} --no-html --json base.json"
        )


def refuse_settings(folder: Path) -> None:
    """Raise RequestError if the folder or one above it has settings of an earlier version, which are not read."""
    for parent in (folder, *folder.parents):
        for name, table in SETTINGS.items():
            path = parent / name
            if os.path.isfile(path) and table.search(_beginning(path)):  # noqa: PTH113 - Path.is_file raises in a folder that the user may not search
                raise RequestError(
                    f"{os.path.relpath(path, folder)}: holds settings of an earlier version of traceview, which are no "
                    "longer read; remove them, and give options on the command line (for budgets: --fail-if)"
                )


def _beginning(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_PROJECT)
    except OSError:  # a file that cannot be read sets nothing
        return b""
