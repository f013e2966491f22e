"""The settings of a project: defaults of options, from `traceview.toml` or [tool.traceview] of `pyproject.toml`.

The nearest file counts, from the working folder upwards. An option on the command line wins over the file. Commands
name the file and what it sets for them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traceview.errors import RequestError
from traceview.model.catalogue import parsed_toml

CAPTURES = "traceview.captures"  # key of a click context's `meta`: the captures on the command line
FILE, PROJECT, TABLE = "traceview.toml", "pyproject.toml", "tool.traceview"
KEYS = ("iteration", "skip", "budgets", "redaction")
CHECKED = ("analyze", "compare", "fleet")  # the commands with --fail-if
REDACTION = ("keep", "hash")
MAX_BYTES = 1 << 16
MAX_PROJECT = 1 << 20  # largest `pyproject.toml` that is read for traceview's table
MAX_SHOWN = 40  # characters of a key or a value


def default_map(folder: Path) -> dict[str, Any]:
    """Return the defaults of each command's options for click. Raises RequestError, which names the file."""
    file, settings = read_settings(folder)
    if not settings:
        return {}
    _check(file, settings)
    general = {name: settings[name] for name in ("iteration", "skip") if name in settings}
    budgets = settings.get("budgets", {})
    # Click ignores a default that a command has no option for.
    commands = {name: {**general, "conditions": budgets.get(name, ())} for name in CHECKED}
    commands |= {name: dict(general) for name in ("whatif", "record")}
    if "redaction" in settings:
        commands["redact"] = {"names": settings["redaction"]}
        commands["compare"]["names"] = settings["redaction"]
    return commands


def said_defaults(folder: Path, defaults: Mapping[str, Any], command: str, *arguments: str) -> str:
    """Return the line that names the file with settings and what it sets for a command; "" if it sets nothing."""
    own = dict(defaults.get(command, {}))
    if command == "compare":
        own.pop("conditions" if "--save" in arguments else "names", None)
    words = {"conditions": "budgets", "names": "redaction"}
    given = [f"{words.get(name, name)} = {_shown(value)}" for name, value in own.items() if value not in (None, ())]
    return f"traceview: defaults from {read_settings(folder)[0]}: {', '.join(given)}" if given else ""


def _shown(value: object) -> str:
    text = str(list(value) if isinstance(value, (list, tuple)) else repr(value))
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def read_settings(folder: Path) -> tuple[str, Mapping[str, Any]]:
    """Return the path of the nearest file with settings, seen from the folder, and its settings; ("", {}) without one.

    Raises RequestError if the file cannot be read or has more than MAX_BYTES.
    """
    for parent in (folder, *folder.parents):
        for name in (FILE, PROJECT):
            path = parent / name
            if not os.path.isfile(path):  # noqa: PTH113 - Path.is_file raises an error in a folder that the user may not search
                continue
            shown = os.path.relpath(path, folder)
            data = _data(path, shown)
            if name == FILE or TABLE.encode() in data:
                if len(data) > MAX_BYTES:
                    raise RequestError(f"{shown}: more than {MAX_BYTES >> 10} KB; write the settings to a small {FILE}")
                settings = _parsed(shown, data)
                if name == FILE:
                    return shown, settings
                if own := _table(settings):
                    return f"{shown} [{TABLE}]", own
    return "", {}


def _table(project: Mapping[str, Any]) -> Mapping[str, Any]:
    tools = project.get("tool", {})
    own = tools.get("traceview", {}) if isinstance(tools, Mapping) else {}
    return own if isinstance(own, Mapping) else {}


def _data(path: Path, shown: str) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_PROJECT)
    except OSError as error:
        raise RequestError(f"{shown}: cannot be read ({error.strerror}); change its permissions") from None


def _parsed(name: str, data: bytes) -> dict[str, Any]:
    try:
        return parsed_toml(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also a text that is not UTF-8
        raise RequestError(f"{name}: invalid TOML ({str(error)[:200]})") from None


def _check(file: str, settings: Mapping[str, Any]) -> None:
    _check_keys(file, "", settings, KEYS)
    skip, budgets = settings.get("skip", 0), settings.get("budgets", {})
    iteration = settings.get("iteration", "")
    if not isinstance(iteration, str):
        raise RequestError(f"{file}: iteration must be a text, for example 'step'")
    if iteration:
        from traceview.model.names import check_pattern

        check_pattern(iteration, f"{file}: iteration")
    if not isinstance(skip, int) or isinstance(skip, bool) or skip < 0:
        raise RequestError(f"{file}: skip must be a whole number from 0 on")
    if settings.get("redaction", REDACTION[0]) not in REDACTION:
        raise RequestError(f"{file}: redaction must be 'keep' or 'hash' (names)")
    if not isinstance(budgets, Mapping):
        raise RequestError(f"{file}: budgets must be a table, for example analyze = ['idle > 20%']")
    _check_keys(file, "budgets.", budgets, CHECKED)
    for name, conditions in budgets.items():
        if not isinstance(conditions, list) or not all(isinstance(condition, str) for condition in conditions):
            raise RequestError(f"{file}: budgets.{name} must be a list of texts, for example ['idle > 20%']")


def _check_keys(file: str, table: str, settings: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for key in settings:
        if key not in known:
            from difflib import get_close_matches

            near = get_close_matches(key[:MAX_SHOWN], known, 1, 0.5)
            remedy = f"did you mean {table}{near[0]}?" if near else f"use {', '.join(known)}"
            raise RequestError(f"{file}: unknown key {table + key[:MAX_SHOWN]!r}; {remedy}")
