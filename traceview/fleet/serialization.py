"""Serializes the result of a report as compressed JSON; arrays are base64 of little-endian integers.

    {"form": 3, "report": {...ReportResult...}}    or, if the report failed,    {"form": 3, "error": "..."}

Each dataclass field has a key of the same name; an array is {"int64": "..."}, or a narrower type.
"""

from __future__ import annotations

import base64
import json
import types
import typing
import zlib
from dataclasses import fields, is_dataclass
from functools import cache

import numpy as np

from traceview.model.fleet import ReportResult

FORM = 3
TYPES = ("int64", "int32", "int16", "int8")


def serialize(result: ReportResult | str) -> bytes:
    """Return a result, or the reason why there is none, as bytes. Equal results give equal bytes."""
    body = {"error": result} if isinstance(result, str) else {"report": _json_value(result)}
    text = json.dumps({"form": FORM, **body}, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return zlib.compress(text.encode("ascii"), 1)


def deserialize(data: bytes) -> ReportResult | str:
    """Return what `serialize` received. Raises ValueError for any other data."""
    try:
        document = json.loads(zlib.decompress(data))
    except (zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a result ({error})") from None
    if not isinstance(document, dict) or document.get("form") != FORM:
        raise ValueError("a result of another version of traceview")
    if isinstance(document.get("error"), str):
        return str(document["error"])
    result = _typed_value(ReportResult, document.get("report"))
    assert isinstance(result, ReportResult)
    return result


def _json_value(value: object) -> object:
    if is_dataclass(value):
        return {field.name: _json_value(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_json_value(item) for item in value]
    if isinstance(value, np.ndarray):
        ordered = value.astype(value.dtype.newbyteorder("<"), copy=False)
        return {value.dtype.name: base64.b64encode(ordered.tobytes()).decode("ascii")}
    return value


def _typed_value(kind: object, value: object) -> object:
    """Return a JSON value as the type that a field declares. Raises ValueError if it has another type."""
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return None if value is None else _typed_value(arguments[0], value)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        return kind(**{name: _typed_value(hint, value.get(name)) for name, hint in _field_types(kind).items()})
    if isinstance(value, dict):
        for name in TYPES:
            if isinstance(text := value.get(name), str):
                return np.frombuffer(base64.b64decode(text), np.dtype(name).newbyteorder("<")).astype(name)
    if isinstance(value, list) and arguments:
        return tuple(_typed_value(arguments[0], item) for item in value)
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:40]} is not a {kind}")
    return value


@cache
def _field_types(kind: type) -> dict[str, object]:
    return dict(typing.get_type_hints(kind))
