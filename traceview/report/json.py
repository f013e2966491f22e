"""JSON of every result: dataclasses to plain values, plain values to text, and the JSON Schemas of the documents.

Schemas follow from the declared types of results and the columns of tables.
"""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from traceview.model.columns import Table, columns, field_names
from traceview.model.unprofiled import UnprofiledTime

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"

ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=lambda array: array.tolist()).encode
DIGITS = 6  # digits of a fraction after the point
Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCALARS: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
TEXT, WHOLE, NUMBER = ({"type": name} for name in ("string", "integer", "number"))


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


def document_schema(title: str, properties: Mapping[str, Schema], optional: Iterable[str] = ()) -> Schema:
    """Return the schema of a document with these properties beside its version."""
    return {"$schema": DIALECT, "title": title, **closed({"schema_version": {"const": 1}, **properties}, optional)}


def closed(properties: Mapping[str, Schema], optional: Iterable[str] = ()) -> Schema:
    """Return the schema of an object with exactly these properties."""
    required = [name for name in properties if name not in set(optional)]
    return {"type": "object", "properties": dict(properties), "required": required, "additionalProperties": False}


def array(items: Schema) -> Schema:
    """Return the schema of a list."""
    return {"type": "array", "items": items}


def mapping(values: Schema) -> Schema:
    """Return the schema of an object whose keys are names: causes, parts."""
    return {"type": "object", "additionalProperties": values}


def optional(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}]}


def table_schema(table: Table) -> Schema:
    """Return the schema of a declared table: a list of rows, or one object."""
    row = type_schema(table.row_type)
    return {"description": table.title, **(row if table.single else array(row))}


def type_schema(kind: object, keys: Iterable[tuple[str, str]] = ()) -> Schema:
    """Return the schema of what `plain_values` makes of a value of this type; `keys` renames fields."""
    keys = tuple(keys)
    if kind in SCALARS:
        return {"type": SCALARS[kind]}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [type_schema(argument, keys) for argument in arguments]}
    if isinstance(kind, type) and is_dataclass(kind):
        return _class_schema(kind, keys)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return mapping(type_schema(arguments[1], keys))
    if isinstance(origin, type) and issubclass(origin, Iterable):
        inner = list(dict.fromkeys(argument for argument in arguments if argument is not Ellipsis))
        return array(
            type_schema(inner[0], keys) if len(inner) == 1 else {"anyOf": [type_schema(argument) for argument in inner]}
        )
    raise TypeError(f"{kind} has no JSON Schema")


@cache
def _class_schema(kind: type, keys: tuple[tuple[str, str], ...]) -> Schema:
    hints, declared = get_type_hints(kind), {column.name: column for column in columns(kind)}
    properties = {}
    for name in field_names(kind) or [field.name for field in fields(kind)]:
        schema = type_schema(hints[name], keys)
        if name in declared:
            schema = {**schema, "title": declared[name].title, "description": declared[name].description}
        properties[dict(keys).get(name, name)] = schema
    return closed(properties)
