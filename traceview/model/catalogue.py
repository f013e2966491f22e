"""Texts and tables that are data: TOML files of the package."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any


def parsed_toml(text: str) -> dict[str, Any]:
    """Return the values of a text in TOML. Raises ValueError."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads(text)


@cache
def read_toml(path: Path) -> dict[str, Any]:
    """Return the values of a file, which is read once."""
    return parsed_toml(path.read_text(encoding="utf-8"))
