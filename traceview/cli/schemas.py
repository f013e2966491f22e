"""The JSON Schema of each command's document, in the order in which the document is written.

A schema follows from the shapes that write the document (traceview/report/json.py), the types of their attributes, and
the columns of tables.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from functools import partial
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from traceview.captures.info import CaptureContents
from traceview.captures.record import Checks
from traceview.captures.redact import Redacted
from traceview.cli.catalogue import Catalogue
from traceview.exporters import Written
from traceview.measure import MEASURES
from traceview.measure.base import CaptureMeasure, DeviceMeasure, PartMeasure
from traceview.model.analysis import Analysis, DeviceFigures, DeviceUse
from traceview.model.columns import columns
from traceview.model.comparison import Comparison
from traceview.model.findings import Finding
from traceview.model.fleet import Fleet
from traceview.model.whatif import WhatIf
from traceview.report import analysis, comparison, fleet, whatif
from traceview.report.json import (
    MERGED,
    SCHEMA_VERSION,
    ByName,
    Constant,
    Keys,
    Shapes,
    Value,
    Variants,
    written_fields,
)

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SCALARS: Mapping[object, str] = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
# Tables of other packages by name, if there are any (docs/extending.md "In your own package").
EXTENSIONS = {"extensions": {"type": "object", "additionalProperties": {"type": ["array", "object", "null"]}}}
# The kinds of measures whose tables an object has.
TABLES: Mapping[type, tuple[type, ...]] = {
    Analysis: (CaptureMeasure,),
    DeviceUse: (PartMeasure, DeviceMeasure),
    DeviceFigures: (PartMeasure,),
}
NESTED = {Finding: "finding"}  # classes whose objects hold objects of the same class


def type_schema(kind: Any, shapes: Shapes) -> Schema:
    """Return the schema of what `plain_values` makes of a value of this type."""
    if kind in SCALARS:
        return {"type": SCALARS[kind]}
    if kind in NESTED:
        return {"$ref": f"#/$defs/{NESTED[kind]}"}
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin in (Union, types.UnionType):
        return {"anyOf": [type_schema(argument, shapes) for argument in arguments]}
    if isinstance(kind, type) and is_dataclass(kind):
        return class_schema(kind, shapes)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": type_schema(arguments[1], shapes)}
    if isinstance(origin, type) and issubclass(origin, Iterable):
        inner = [type_schema(argument, shapes) for argument in dict.fromkeys(arguments) if argument is not Ellipsis]
        sizes = {"minItems": len(arguments), "maxItems": len(arguments)} if _is_fixed(kind) else {}
        return {"type": "array", "items": inner[0] if len(inner) == 1 else {"anyOf": inner}, **sizes}
    raise TypeError(f"{kind} has no JSON Schema")


def _is_fixed(kind: Any) -> bool:
    return get_origin(kind) is tuple and Ellipsis not in get_args(kind)


def class_schema(kind: type, shapes: Shapes) -> Schema:
    """Return the schema of an object of a dataclass: of its shape, else of its columns or fields."""
    if kind in shapes:
        return _keys_schema(kind, shapes[kind], shapes)
    declared = {column.name: column for column in columns(kind)}
    properties = {name: type_schema(attribute_type(kind, name), shapes) for name in written_fields(kind)}
    for name in properties.keys() & declared:
        properties[name] |= {"title": declared[name].title, "description": declared[name].description}
    return _closed(properties)


def _keys_schema(kind: type, keys: Keys | Variants, shapes: Shapes) -> Schema:
    if isinstance(keys, Variants):
        return {"anyOf": [_keys_schema(kind, each, shapes) for each in keys.keys.values()]}
    properties: dict[str, Schema] = {}
    more: Any = False
    for key, given in keys.items():
        if key != MERGED:
            properties[key] = _value_schema(kind, given, shapes)
        elif kind in TABLES:
            properties |= _tables(TABLES[kind])
        elif isinstance(given, Value):
            more = type_schema(get_args(attribute_type(kind, given.attribute))[1], shapes)
    return _closed(properties) | {"additionalProperties": more}


def _value_schema(kind: type, given: str | Value | Constant | ByName | Keys, shapes: Shapes) -> Schema:
    if isinstance(given, Constant):
        return {"const": given.value}
    if isinstance(given, Mapping):
        return _keys_schema(kind, given, shapes)
    if isinstance(given, ByName):
        row = get_args(attribute_type(kind, given.attribute))[0]
        return {"type": "object", "additionalProperties": _keys_schema(row, given.keys, shapes)}
    if isinstance(given, Value):
        return type_schema(given.kind or attribute_type(kind, given.attribute), shapes)
    return type_schema(attribute_type(kind, given), shapes)


def _closed(properties: Mapping[str, Schema]) -> Schema:
    """Return the schema of an object with exactly these properties; tables of other packages are optional."""
    required = [name for name in properties if name not in EXTENSIONS]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _tables(kinds: tuple[type, ...]) -> dict[str, Schema]:
    """Return the schemas of declared tables, each a list of rows, or one object."""
    schemas = {}
    for table in (measure.table for measure in MEASURES if isinstance(measure, kinds)):
        if table.in_json:
            row = class_schema(table.row_type, {})
            schemas[table.name] = {"description": table.title} | (
                row if table.single else {"type": "array", "items": row}
            )
    return schemas | EXTENSIONS


def attribute_type(kind: type, path: str) -> Any:
    """Return the declared type of a field or property, or of one of its attributes: "gaps.count"."""
    name, _, rest = path.partition(".")
    declared = _declared_type(kind, name)
    return attribute_type(declared, rest) if rest else declared


def _declared_type(kind: type, name: str) -> Any:
    for base in kind.__mro__:
        if name in (annotations := inspect.get_annotations(base)):
            # This one alone: others may name types that are imported for type checkers only.
            alone = types.SimpleNamespace(__annotations__={name: annotations[name]})
            return get_type_hints(alone, vars(sys.modules[base.__module__]))[name]
        if isinstance(attribute := vars(base).get(name), property):
            return get_type_hints(attribute.fget)["return"]
    raise TypeError(f"{kind} declares no {name}")


# Documents that have no command of their name, and what writes them.
TITLES = {"rules": "help rules"}


def result_schema(command: str, kind: type, shapes: Shapes | None = None) -> Schema:
    """Return the schema of a command's document: the version and the keys of a result."""
    schema = class_schema(kind, shapes or {})
    properties = {"schema_version": {"const": SCHEMA_VERSION}, **schema["properties"]}
    nested = {name: class_schema(each, shapes) for each, name in NESTED.items() if shapes and each in shapes}
    return {
        "$schema": DIALECT,
        "title": f"traceview {TITLES.get(command, command)}",
        **_closed(properties),
        **({"$defs": nested} if nested else {}),
    }


SCHEMAS: Mapping[str, Callable[[], Schema]] = {
    "analyze": partial(result_schema, "analyze", Analysis, analysis.SHAPES),
    "compare": partial(result_schema, "compare", Comparison, comparison.SHAPES),
    "doctor": partial(result_schema, "doctor", Checks),
    "export": partial(result_schema, "export", Written),
    "fleet": partial(result_schema, "fleet", Fleet, fleet.SHAPES),
    "info": partial(result_schema, "info", CaptureContents),
    "record": partial(result_schema, "record", Analysis, analysis.SHAPES),
    "redact": partial(result_schema, "redact", Redacted),
    "rules": partial(result_schema, "rules", Catalogue),
    "whatif": partial(result_schema, "whatif", WhatIf, whatif.SHAPES),
}
