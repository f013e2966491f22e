"""The settings of a project: defaults of options, from `traceview.toml` or [tool.traceview] of `pyproject.toml`.

The nearest file counts, from the working folder upwards. An option on the command line wins over the file.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from traceview.errors import RequestError

FILE, PROJECT, TABLE = "traceview.toml", "pyproject.toml", "tool.traceview"
KEYS = ("iteration", "skip", "budgets", "redaction")
CHECKED = ("analyze", "compare", "fleet")  # the commands with --fail-if
REDACTION = ("keep", "hash")
MAX_BYTES = 1 << 20


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
    commands |= {name: dict(general) for name in ("whatif", "serve", "record")}
    if "redaction" in settings:
        commands["redact"] = {"names": settings["redaction"]}
        commands["baseline"] = {"save": {"names": settings["redaction"]}}
    commands.setdefault("baseline", {}).setdefault("save", {}).update(general)
    return commands


def read_settings(folder: Path) -> tuple[str, Mapping[str, Any]]:
    """Return the name of the nearest file with settings and its settings; ("", {}) without one."""
    for parent in (folder, *folder.parents):
        for name in (FILE, PROJECT):
            path = parent / name
            if not path.is_file() or path.stat().st_size > MAX_BYTES:
                continue
            data = path.read_bytes()
            if name == FILE:
                return name, _parsed(name, data)
            if TABLE.encode() in data and (settings := _parsed(name, data).get("tool", {}).get("traceview")):
                return f"{name} [{TABLE}]", settings
    return "", {}


def _parsed(name: str, data: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:  # also a text that is not UTF-8
        raise RequestError(f"{name}: invalid TOML ({str(error)[:200]})") from None


def _check(file: str, settings: Mapping[str, Any]) -> None:
    _check_keys(file, "", settings, KEYS)
    skip, budgets = settings.get("skip", 0), settings.get("budgets", {})
    if not isinstance(settings.get("iteration", ""), str):
        raise RequestError(f"{file}: iteration must be a text, for example 'step'")
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

            near = get_close_matches(key, known, 1, 0.5)
            remedy = f"did you mean {table}{near[0]}?" if near else f"use {', '.join(known)}"
            raise RequestError(f"{file}: unknown key {table + key[:40]!r}; {remedy}")
