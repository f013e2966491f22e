"""Declaration, parsing and validation of single settings.

A section of the configuration is a frozen dataclass whose fields are made by `setting`. The YAML reader, the flags and
the checks use the type hint and the `Setting` of each field.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import re
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from instrument.errors import ConfigError

Value = TypeVar("Value")
BOOL_WORDS = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
# An object of the user's own code: "package.module:name", or "folder/file.py:name".
_NAME = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*"
REFERENCE = rf"({_NAME}|[^:]+\.py):{_NAME}"
MAX_SHOWN_LENGTH = 60  # characters of a value in an error message
NUMBER_TYPES = {int: "a whole number", float: "a number"}


class FieldError(ConfigError):
    """An invalid setting, or settings that do not work together.

    Attributes:
        keys: the settings, as "section.field".
        reason: the value, what is wrong with it and what is allowed.
    """

    def __init__(self, reason: str, *keys: str, sources: Mapping[str, str] | None = None) -> None:
        self.reason, self.keys = reason, keys
        names = dict.fromkeys((sources or {}).get(key, key) for key in keys)
        super().__init__(f"{' and '.join(names)}: {reason}")

    def with_sources(self, sources: Mapping[str, str]) -> FieldError:
        """Return the same error with the file or flag that each setting came from.

        Args:
            sources: "section.field" -> "run.yaml: section.field" or "--field".
        """
        return FieldError(self.reason, *self.keys, sources=sources)


@dataclass(frozen=True, slots=True)
class Setting:
    """Help text and allowed values of a setting.

    Attributes:
        help: one line for the user, with the unit.
        low: the smallest number allowed.
        above: the number must be greater than this.
        pattern: regular expression that the complete text must match.
        expected: description of the pattern for error messages.
        flag: name of the flag, by default the field's name. Two fields of a section with the same flag are given
            together, as "FIRST:SECOND".
        bare: value of the flag if it is given without a value, and of true; the setting is then optional.
        choices: the words allowed, if the type hint does not list them.
        words: words that stand for numbers.
        metavar: placeholder for the value in the help.
        cpu: default for a run without a GPU; None means that of a run with one.
        default: default for a run with a GPU.
    """

    help: str
    low: float | None = None
    above: float | None = None
    pattern: str | None = None
    expected: str | None = None
    flag: str | None = None
    bare: str | None = None
    choices: tuple[str, ...] = ()
    words: Mapping[str, int] = dataclasses.field(default_factory=dict)
    metavar: str | None = None
    cpu: int | str | None = None
    default: Any = None

    def default_for(self, device: str) -> Any:
        """Return the default of a run on a device: "auto", "cpu", "cuda" or "cuda:N"."""
        return self.default if self.cpu is None or not is_cpu(device) else self.cpu


@dataclass(frozen=True, slots=True)
class Kind:
    """A parsed type hint: int, float, bool, str or Path, the words allowed, and whether None is allowed."""

    base: type
    choices: tuple[str, ...]
    optional: bool


def setting(default: Value, help: str, **allowed: Any) -> Value:
    """Return a dataclass field with a default and a `Setting`; `allowed` are attributes of `Setting`.

    The default is that of a machine with or without a GPU, whichever it is.
    """
    made = Setting(help, default=default, **allowed)
    if made.cpu is None:
        return dataclasses.field(default=default, metadata={"setting": made})
    factory = cast("Callable[[], Value]", lambda: made.default_for("auto"))
    return dataclasses.field(default_factory=factory, metadata={"setting": made})


def is_cpu(device: str) -> bool:
    """Return whether a run on a device uses the CPU."""
    if device == "auto":
        try:
            import torch  # imported here so that the configuration works without torch
        except ImportError:
            return True
        return not torch.cuda.is_available()
    return device == "cpu"


def get_setting(field: dataclasses.Field[Any]) -> Setting:
    """Return the `Setting` of a dataclass field."""
    return cast(Setting, field.metadata["setting"])


@cache
def field_kinds(section: type) -> Mapping[str, Kind]:
    """Return the kind of each field of a section class."""
    hints = get_type_hints(section)
    return {field.name: _kind(hints[field.name], get_setting(field).choices) for field in dataclasses.fields(section)}


def _kind(hint: Any, choices: tuple[str, ...]) -> Kind:
    optional = get_origin(hint) in (Union, types.UnionType)
    if optional:
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Literal:
        return Kind(str, get_args(hint), optional)
    return Kind(hint, choices, optional)


def parse_value(section: type, name: str, value: object) -> object:
    """Convert a value from YAML or a flag to the field's type; return it unchanged if it cannot be converted.

    "3e-4", which YAML reads as text, becomes a number. "none" becomes None if the field allows None.
    """
    kind = field_kinds(section)[name]
    words = get_setting(section.__dataclass_fields__[name]).words  # type: ignore[attr-defined]
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    if kind.optional and isinstance(value, str) and value.lower() == "none":
        return None
    if isinstance(value, str) and kind.base is not str:
        converted = _from_text(kind.base, value)
        return value if converted in words.values() else converted  # the word alone stands for its number
    if kind.base is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return value


def _from_text(base: type, text: str) -> object:
    if base is bool:
        return BOOL_WORDS.get(text.lower(), text)
    if base is Path:
        return Path(text).expanduser() if text else text
    try:
        return base(text)
    except ValueError:
        return text


class Section:
    """A section of the configuration, whose fields are made by `setting`."""

    __slots__ = ()

    def __post_init__(self) -> None:
        """Check each field against its type and its `Setting`. True becomes the value of the bare flag, False None.

        Raises:
            FieldError: a value is not allowed.
        """
        owner: Any = type(self)
        for name, kind in field_kinds(owner).items():
            value, allowed = getattr(self, name), get_setting(owner.__dataclass_fields__[name])
            if allowed.bare is not None and isinstance(value, bool):
                value = allowed.bare if value else None
                object.__setattr__(self, name, value)
            stands_for_more = value in allowed.words.values() or (kind.optional and value is None)
            if not stands_for_more and not _is_allowed(kind, allowed, value):
                raise FieldError(_refusal_reason(kind, allowed, value), f"{owner.__name__.lower()}.{name}")


def _is_allowed(kind: Kind, allowed: Setting, value: object) -> bool:
    if kind.base in NUMBER_TYPES:
        return _is_number(kind.base, value) and _in_range(allowed, cast(float, value))
    if not isinstance(value, kind.base) or value == "":
        return False
    if kind.choices and (value in kind.choices or allowed.pattern is None):
        return value in kind.choices
    return allowed.pattern is None or re.fullmatch(allowed.pattern, str(value)) is not None


def _is_number(base: type, value: object) -> bool:
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return is_integer or (base is float and isinstance(value, float) and math.isfinite(value))


def _in_range(allowed: Setting, value: float) -> bool:
    return (allowed.low is None or value >= allowed.low) and (allowed.above is None or value > allowed.above)


def _refusal_reason(kind: Kind, allowed: Setting, value: object) -> str:
    text = short_repr(str(value) if isinstance(value, Path) else value)
    if kind.choices:
        words = ", ".join(kind.choices) + (f" or {allowed.expected}" if allowed.pattern else "")
        return f"invalid value {text}{did_you_mean(value, kind.choices)}; allowed: {words}"
    return f"invalid value {text}; expected {_expected_text(kind, allowed)}"


def _expected_text(kind: Kind, allowed: Setting) -> str:
    words = {bool: "true or false", str: "text", Path: "a path"}
    text = allowed.expected or NUMBER_TYPES.get(kind.base) or words[kind.base]
    if allowed.low is not None:
        text += f" of at least {allowed.low}"
    if allowed.above is not None:
        text += f" above {allowed.above}"
    return text + "".join(f", or {word}" for word in (*allowed.words, *(("none",) if kind.optional else ())))


def short_repr(value: object) -> str:
    """Return the repr of a value, shortened to one short line for error messages."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN_LENGTH else f"{text[: MAX_SHOWN_LENGTH - 3]}..."


def did_you_mean(word: object, known: tuple[str, ...]) -> str:
    """Return " (did you mean X?)" for the most similar known word, or "" if none is similar."""
    close = difflib.get_close_matches(str(word).lower(), known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def is_reference(text: object) -> bool:
    """Return whether a setting names an object of the user's own code, as "package.module:name"."""
    return re.fullmatch(REFERENCE, str(text)) is not None
