"""One setting of the configuration: its default, its meaning, what it may be; read from text and checked.

A section of the configuration is a frozen dataclass whose fields are made by `setting`. The type hint says what a value
is, the rest stands beside its default, and the YAML reader, the flags and the checks all read it from there.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from instrument.errors import ConfigError

Value = TypeVar("Value")
WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
LONGEST = 60
NUMBERS = {int: "a whole number", float: "a number"}


class FieldError(ConfigError):
    """A setting that cannot be, alone or together with others.

    Attributes:
        keys: the settings concerned, as "section.field".
        reason: the value, what is wrong with it and what is allowed.
    """

    def __init__(self, reason: str, *keys: str, sources: Mapping[str, str] | None = None) -> None:
        self.reason, self.keys = reason, keys
        names = dict.fromkeys((sources or {}).get(key, key) for key in keys)
        super().__init__(f"{' and '.join(names)}: {reason}")

    def named(self, sources: Mapping[str, str]) -> FieldError:
        """Return the same error, naming the file or the flag that each setting came from.

        Args:
            sources: "section.field" -> "run.yaml: section.field" or "--field".
        """
        return FieldError(self.reason, *self.keys, sources=sources)


@dataclass(frozen=True, slots=True)
class Setting:
    """What a field may be besides its type.

    Attributes:
        help: one line for a user, with the unit.
        low: the smallest number allowed.
        above: a bound that the number must exceed.
        pattern: what text must match whole.
        expected: the pattern in words.
        flag: the flag's long name where the field's own says too little alone; fields of one section that share one are
            given together, as "FIRST:SECOND".
        off: the flag that turns a switch off, where that is not "no-" before its name.
        bare: what the flag means when it is given without a value.
        choices: the words allowed where the type does not list them.
        metavar: what stands for the value in the help.
        cpu: the default of the commands where the run has no GPU; None where it is the same.
    """

    help: str
    low: float | None = None
    above: float | None = None
    pattern: str | None = None
    expected: str | None = None
    flag: str | None = None
    off: str | None = None
    bare: str | None = None
    choices: tuple[str, ...] = ()
    metavar: str | None = None
    cpu: int | None = None


@dataclass(frozen=True, slots=True)
class Kind:
    """A field's type hint, taken apart: int, float, bool, str or Path, or some words, and whether None is a value."""

    base: type
    choices: tuple[str, ...]
    optional: bool


def setting(default: Value, help: str, **allowed: Any) -> Value:
    """Return a dataclass field with this default; `allowed` are the attributes of `Setting`."""
    return dataclasses.field(default=default, metadata={"setting": Setting(help, **allowed)})


def spec(field: dataclasses.Field[Any]) -> Setting:
    """Return what `setting` was told about a field."""
    return cast(Setting, field.metadata["setting"])


@cache
def kinds(section: type) -> Mapping[str, Kind]:
    """Return the kind of each field of a section's class."""
    hints = get_type_hints(section)
    return {field.name: _kind(hints[field.name], spec(field).choices) for field in dataclasses.fields(section)}


def _kind(hint: Any, choices: tuple[str, ...]) -> Kind:
    optional = get_origin(hint) in (Union, types.UnionType)
    if optional:
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Literal:
        return Kind(str, get_args(hint), optional)
    return Kind(hint, choices, optional)


def read(section: type, name: str, value: object) -> object:
    """Return a value from YAML or a flag as the field's own type, if it can be understood as that; else as it is.

    So 3e-4, which YAML takes for text, is a number, and the word none is None where None is a value.
    """
    kind = kinds(section)[name]
    if kind.optional and isinstance(value, str) and value.lower() == "none":
        return None
    if isinstance(value, str) and kind.base is not str:
        return _from_text(kind.base, value)
    if kind.base is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


def _from_text(base: type, text: str) -> object:
    if base is bool:
        return WORDS.get(text.lower(), text)
    if base is Path:
        return Path(text).expanduser() if text else text
    try:
        return base(text)
    except ValueError:
        return text


def check(section: Any) -> None:
    """Check each field of a section by its type and its setting.

    Raises:
        FieldError: a value is not what its field may be.
    """
    owner: type = type(section)
    for field in dataclasses.fields(section):
        value, kind = getattr(section, field.name), kinds(owner)[field.name]
        if not (kind.optional and value is None) and not _allowed(kind, spec(field), value):
            raise FieldError(_refusal(kind, spec(field), value), f"{owner.__name__.lower()}.{field.name}")


def _allowed(kind: Kind, allowed: Setting, value: object) -> bool:
    if kind.base in NUMBERS:
        return _is_number(kind.base, value) and _in_range(allowed, cast(float, value))
    if not isinstance(value, kind.base) or value == "":
        return False
    if kind.choices:
        return value in kind.choices
    return allowed.pattern is None or re.fullmatch(allowed.pattern, str(value)) is not None


def _is_number(base: type, value: object) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole or (base is float and isinstance(value, float) and math.isfinite(value))


def _in_range(allowed: Setting, value: float) -> bool:
    return (allowed.low is None or value >= allowed.low) and (allowed.above is None or value > allowed.above)


def _refusal(kind: Kind, allowed: Setting, value: object) -> str:
    given = shown(str(value) if isinstance(value, Path) else value)
    if kind.choices:
        return f"{given} is unknown{did_you_mean(value, kind.choices)}; allowed: {', '.join(kind.choices)}"
    return f"{given} is not {_expected(kind, allowed)}"


def _expected(kind: Kind, allowed: Setting) -> str:
    words = {bool: "true or false", str: "text", Path: "a path"}
    text = allowed.expected or NUMBERS.get(kind.base) or words[kind.base]
    if allowed.low is not None:
        text += f" of at least {allowed.low}"
    if allowed.above is not None:
        text += f" above {allowed.above}"
    return text + (", or none" if kind.optional else "")


def shown(value: object) -> str:
    """Return a value as an error names it: on one line, and not a long one."""
    text = repr(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def did_you_mean(word: object, known: tuple[str, ...]) -> str:
    """Return " (did you mean X?)" for the known word that resembles this one most, or nothing."""
    close = difflib.get_close_matches(str(word).lower(), known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""
