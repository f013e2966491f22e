"""JSON of every result: dataclasses to plain values, and plain values to text."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import TypeAlias

from traceview.model.columns import field_names
from traceview.model.unprofiled import UnprofiledTime

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=lambda array: array.tolist()).encode
DIGITS = 6  # digits of a fraction after the point


def plain_values(value: object, keys: Mapping[str, str] | None = None) -> Json:
    """Convert a result: a dataclass to an object of its fields, an iterable to a list.

    A row with declared columns (traceview/model/columns.py) becomes an object of its columns. `keys` renames fields.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if is_dataclass(value):
        names = field_names(type(value)) or [field.name for field in fields(value)]
        return {(keys or {}).get(name, name): plain_values(getattr(value, name), keys) for name in names}
    if isinstance(value, Mapping):
        return {key: plain_values(inner, keys) for key, inner in value.items()}
    assert isinstance(value, Iterable), f"{type(value)} cannot be written as JSON"
    return [plain_values(inner, keys) for inner in value]


def rounded(value: float | None) -> float | None:
    """Return a fraction rounded to DIGITS."""
    return None if value is None else round(value, DIGITS)


def unprofiled_values(time: UnprofiledTime | None) -> dict[str, Json]:
    """Return the time of an iteration without the profiler, its range, and what it rests on."""
    if time is None:
        return {"unprofiled_ns": None, "unprofiled_source": None}
    return {"unprofiled_ns": {**time.times}, "unprofiled_source": time.source}


def indented_text(document: Json) -> str:
    """Return JSON with one value per line; the same values give the same bytes."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def result_text(result: object) -> str:
    """Return the document of a result that is written as it is declared: its fields, and the version."""
    fields_of_result = plain_values(result)
    assert isinstance(fields_of_result, dict), f"{type(result)} declares no fields"
    return indented_text({"schema_version": 1, **fields_of_result})


def row_text(document: Json) -> str:
    """Return JSON with one row of a list per line; the same values give the same bytes."""
    pieces: list[str] = []
    _add_rows(pieces, document, 0)
    return "".join([*pieces, "\n"])


def _add_rows(pieces: list[str], value: Json, depth: int) -> None:
    """Write lists of objects over several lines, other values on one. The indentation of `json` is much slower.

    The pieces are joined once, because a document may have tens of megabytes.
    """
    if isinstance(value, dict) and list in map(type, value.values()):
        before, after = "{}"
        parts = [(f"{ENCODE(key)}: ", inner) for key, inner in value.items()]
    elif isinstance(value, list) and dict in map(type, value):
        before, after = "[]"
        parts = [("", inner) for inner in value]
    else:
        pieces.append(ENCODE(value))
        return
    margin = "\n" + " " * depth
    for key, inner in parts:
        pieces.append(f"{before}{margin} {key}")
        _add_rows(pieces, inner, depth + 1)
        before = ","
    pieces.append(f"{margin}{after}")
