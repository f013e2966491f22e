"""The JSON encoder of every result: plain values from dataclasses, and plain values as text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeAlias

from traceview.model.columns import field_names

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
DIGITS = 6  # of a fraction


def plain(value: object, keys: Mapping[str, str] | None = None) -> Json:
    """Return a result as plain values: a dataclass as an object of its fields, an iterable as a list.

    Of a row that declares columns (traceview/model/columns.py) only those are written. `keys` renames fields.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if is_dataclass(value):
        names = field_names(type(value)) or [field.name for field in fields(value)]
        return {(keys or {}).get(name, name): plain(getattr(value, name), keys) for name in names}
    if isinstance(value, Mapping):
        return {key: plain(inner, keys) for key, inner in value.items()}
    assert isinstance(value, Iterable), f"{type(value)} has no JSON"
    return [plain(inner, keys) for inner in value]


def rounded(value: float | None) -> float | None:
    """Return a fraction with as many digits as the JSON has."""
    return None if value is None else round(value, DIGITS)


def indented_text(document: Json) -> str:
    """Return JSON with one value on a line; the same values give the same bytes."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def row_text(document: Json) -> str:
    """Return JSON with one row of a list on a line; the same values give the same bytes."""
    return _rows(document, 0) + "\n"


def _rows(value: Json, depth: int) -> str:
    """Write a value that holds a list over several lines, any other on one. json's own indentation is far slower."""
    if isinstance(value, dict) and list in map(type, value.values()):
        parts = [f"{ENCODE(key)}: {_rows(inner, depth + 1)}" for key, inner in value.items()]
        return _over_lines("{", parts, "}", depth)
    if isinstance(value, list) and dict in map(type, value):
        return _over_lines("[", [_rows(inner, depth + 1) for inner in value], "]", depth)
    return ENCODE(value)


def _over_lines(first: str, parts: list[str], last: str, depth: int) -> str:
    margin = "\n" + " " * depth
    return f"{first}{margin} " + f",{margin} ".join(parts) + f"{margin}{last}"
