"""The form in which a small result travels: packed JSON, whose arrays are little-endian int64 as base64.

    {"form": 1, "report": {...ReportResult...}}        and, of a report that failed,  {"form": 1, "error": "..."}

Every field stands under its own name; an array is {"int64": "..."}. Raises ValueError for anything else.
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

FORM = 1


def packed(result: ReportResult | str) -> bytes:
    """Return a result, or the reason why there is none, as bytes: the same for the same result."""
    body = {"error": result} if isinstance(result, str) else {"report": _plain(result)}
    text = json.dumps({"form": FORM, **body}, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return zlib.compress(text.encode("ascii"), 1)


def unpacked(data: bytes) -> ReportResult | str:
    """Return what `packed` was given."""
    try:
        found = json.loads(zlib.decompress(data))
    except (zlib.error, UnicodeDecodeError) as error:
        raise ValueError(f"not a result ({error})") from None
    if not isinstance(found, dict) or found.get("form") != FORM:
        raise ValueError("the result of another version of traceview")
    if isinstance(found.get("error"), str):
        return str(found["error"])
    result = _made(ReportResult, found.get("report"))
    assert isinstance(result, ReportResult)
    return result


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return {"int64": base64.b64encode(np.ascontiguousarray(value, "<i8").tobytes()).decode("ascii")}
    return value


def _made(kind: object, value: object) -> object:
    """Return a value as the type that a field declares."""
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return None if value is None else _made(arguments[0], value)
    if isinstance(kind, type) and is_dataclass(kind) and isinstance(value, dict):
        return kind(**{name: _made(hint, value.get(name)) for name, hint in _fields(kind).items()})
    if isinstance(value, dict) and isinstance(text := value.get("int64"), str):
        return np.frombuffer(base64.b64decode(text), "<i8").astype(np.int64)
    if isinstance(value, list) and arguments:
        return tuple(_made(arguments[0], one) for one in value)
    if type(value) is not kind:
        raise ValueError(f"{str(value)[:40]} is no {kind}")
    return value


@cache
def _fields(kind: type) -> dict[str, object]:
    return dict(typing.get_type_hints(kind))
