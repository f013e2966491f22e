"""JSON of every result: the shapes of documents, plain values of a result, and their text.

The shape of a class names the keys of its objects once; scripts/json-schema makes the JSON Schema of the same
shapes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache, partial
from operator import attrgetter
from types import NoneType
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from traceview.model.columns import field_names
from traceview.model.frozen import dataclass

Result = TypeVar("Result")
Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

_encoder = partial(json.JSONEncoder, ensure_ascii=False, allow_nan=False, default=lambda array: array.tolist())
ENCODE, LINE_END = _encoder().encode, ",\n"
ENCODE_LINES = _encoder(separators=(LINE_END, ": ")).encode  # JSON escapes the line ends of texts
# Control and format characters that a terminal obeys or that hide text; `json` escapes those below 32 alone.
UNSAFE = re.compile("[\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]")
PLAIN = frozenset((NoneType, str, int, float, bool))
DIGITS = 6  # digits of a fraction after the point
SCHEMA_VERSION = 1
MERGED = "**"  # in place of a key: the value is an object, and its keys follow


class Value(NamedTuple):
    """A value that is not that of an attribute: what `convert` makes of an attribute and of the document's result.

    It is plain, of the type `kind`; without a kind it has the type of the attribute. The attribute "" is the object.
    """

    attribute: str
    convert: Callable[[Any, Any], Any]
    kind: object = None


class Constant(NamedTuple):
    """A value that is the same in every document."""

    value: Any


class Variants(NamedTuple):
    """The keys of an object by the value of an attribute."""

    attribute: str
    keys: Mapping[str, Keys]


class ByName(NamedTuple):
    """An object with a key for each row of an attribute: the name of the row."""

    attribute: str
    keys: Keys | Variants


# The keys of an object in their order. A text is an attribute, whose value has the shape of its class; "a.b" is the
# attribute `b` of the attribute `a`. A mapping is an object inside.
Keys: TypeAlias = "Mapping[str, str | Value | Constant | ByName | Keys]"
# The keys of the objects of classes. Another dataclass has its columns (traceview/model/columns.py), or all its fields.
Shapes = Mapping[type, "Keys | Variants"]


def names(*attributes: str) -> dict[str, str]:
    """Return keys that are the names of attributes."""
    return {name: name for name in attributes}


def values_of(source: object, *attributes: str) -> dict[str, Any]:
    """Return the values of attributes by their names."""
    return {name: getattr(source, name) for name in attributes}


def ns(*attributes: str) -> dict[str, str]:
    """Return keys for attributes whose names leave out their unit, which is ns."""
    return {f"{name}_ns": name for name in attributes}


def rounded(attribute: str) -> Value:
    """Return the value of a fraction, rounded to DIGITS."""
    return Value(attribute, lambda value, _: None if value is None else round(value, DIGITS))


# The time of an iteration without the profiler, its range, and what it rests on.
UNPROFILED: Keys = {
    "unprofiled_ns": Value("unprofiled", lambda time, _: time and time.times, Mapping[str, int] | None),
    "unprofiled_source": Value("unprofiled", lambda time, _: time and time.source, str | None),
}


def plain_values(value: Any, shapes: Shapes | None = None, result: object = None) -> Any:
    """Convert a result: a dataclass to an object of its shape, an iterable to a list."""
    kind: Any = type(value)
    if kind in PLAIN or isinstance(value, (str, int, float)):
        return value
    if shapes is not None and (keys := shapes.get(kind)) is not None:
        return _object(value, keys, shapes, result)
    if is_dataclass(value):
        return {
            name: inner if type(inner := getattr(value, name)) in PLAIN else plain_values(inner, shapes, result)
            for name in written_fields(kind)
        }
    if isinstance(value, Mapping):
        return {key: plain_values(inner, shapes, result) for key, inner in value.items()}
    assert isinstance(value, Iterable), f"{kind} cannot be written as JSON"
    return [plain_values(inner, shapes, result) for inner in value]


def _object(value: object, keys: Keys | Variants, shapes: Shapes, result: object) -> dict[str, Any]:
    written: dict[str, Any] = {}
    if isinstance(keys, Variants):
        keys = keys.keys[getattr(value, keys.attribute)]
    for key, given in keys.items():
        if isinstance(given, str):
            written[key] = plain_values(_attribute(given)(value), shapes, result)
        elif isinstance(given, Constant):
            written[key] = given.value
        elif isinstance(given, Mapping):
            written[key] = _object(value, given, shapes, result)
        elif isinstance(given, ByName):
            rows = _attribute(given.attribute)(value)
            written[key] = {row.name: _object(row, given.keys, shapes, result) for row in rows}
        else:
            made = given.convert(_attribute(given.attribute)(value) if given.attribute else value, result)
            written.update(made if key == MERGED else {key: made})
    return written


_attribute = cache(attrgetter)


@cache
def written_fields(kind: type) -> tuple[str, ...]:
    """Return the fields of a dataclass without a shape that its documents have."""
    return field_names(kind) or tuple(field.name for field in fields(kind))


def indented_text(document: Json) -> str:
    """Return JSON with one value per line; the same values give the same bytes."""
    return json.dumps(document, ensure_ascii=False, allow_nan=False, indent=1) + "\n"


def row_text(document: Json) -> str:
    """Return JSON with one row of a list per line; the same values give the same bytes."""
    pieces: list[str] = []
    _add_rows(pieces, document, 0)
    return "".join([*pieces, "\n"])


def _add_rows(pieces: list[str], value: Json, depth: int) -> None:
    """Write lists of objects over several lines, other values on one. The indentation of `json` is much slower.

    The pieces are joined once, because a document may have tens of megabytes.
    """
    margin = "\n" + " " * depth
    if isinstance(value, dict) and list in map(type, value.values()):
        before, after = "{}"
        plain = {key: inner for key, inner in value.items() if type(inner) in PLAIN}
        lines = iter(ENCODE_LINES(plain)[1:-1].split(LINE_END))
        for key, inner in value.items():
            pieces.append(f"{before}{margin} {next(lines) if key in plain else f'{ENCODE(key)}: '}")
            if key not in plain:
                _add_rows(pieces, inner, depth + 1)
            before = ","
    elif isinstance(value, list) and dict in map(type, value):
        before, after = "[]"
        for inner in value:
            pieces.append(f"{before}{margin} ")
            _add_rows(pieces, inner, depth + 1)
            before = ","
    else:
        pieces.append(ENCODE(value))
        return
    pieces.append(f"{margin}{after}")


@dataclass(frozen=True)
class Document(Generic[Result]):
    """The JSON of a kind of result: the shapes of its classes, and the function that writes its text."""

    shapes: Shapes | None = None
    write: Callable[[Json], str] = indented_text

    def values(self, result: Result) -> dict[str, Any]:
        """Return the document as plain values, its version first."""
        return {"schema_version": SCHEMA_VERSION, **plain_values(result, self.shapes, result)}

    def text(self, result: Result) -> str:
        """Return the document as text; the same result gives the same bytes."""
        text = self.write(self.values(result))
        plain = text.isascii() and "\x7f" not in text
        return text if plain else UNSAFE.sub(lambda match: json.dumps(match[0])[1:-1], text)
