"""Compare hand-computed figures with the oracle and with traceview."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.oracle import figures
from traceview.model.trace import Window
from traceview.pipeline import analyze
from traceview.report.analysis import document

Figures = Callable[..., dict[str, Any]]


def by_oracle(path: Path, window: tuple[int, int] | None = None) -> dict[str, Any]:
    return figures(path, window=window)


def by_traceview(path: Path, window: tuple[int, int] | None = None) -> dict[str, Any]:
    return document(analyze(path, window=None if window is None else Window(*window)))


by_both = pytest.mark.parametrize("measure", [by_oracle, by_traceview])


def at(found: Any, where: str) -> Any:
    for name in re.findall(r"[^.\[\]]+", where):
        found = found[int(name)] if name.isdigit() else found[name]
    return found


def holds(found: dict[str, Any], **expected: Any) -> None:
    """Assert figures by path (__ stands for a dot); a failure shows all of them."""
    places = {name.replace("__", "."): value for name, value in expected.items()}
    assert {where: at(found, where) for where in places} == places


def causes(**ns: int) -> dict[str, int]:
    names = ("profiler", "queued", "launch", "sync", "blocking_copy", "memory", "api", "host", "unknown")
    return dict.fromkeys(names, 0) | ns
