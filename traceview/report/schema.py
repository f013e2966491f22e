"""JSON Schemas of the documents that commands write, from the declared types of results and columns of tables."""

from __future__ import annotations

import types
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from traceview.model.columns import Table, columns, field_names

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCALARS: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
TEXT, WHOLE, NUMBER = ({"type": name} for name in ("string", "integer", "number"))


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
