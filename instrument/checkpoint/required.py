"""What a checkpoint must hold besides being whole: each entry, its type and its bounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from instrument.config.settings import shown
from instrument.data.order import Position
from instrument.errors import InstrumentError

Check = Callable[[object], bool]


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_section(value: object) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) for key in value)


def _are_parts(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and isinstance(part, Mapping) for key, part in value.items()
    )


ENTRIES: Mapping[str, tuple[Check, str]] = {
    "step": (_is_count, "a whole number of at least 0"),
    "parts": (_are_parts, "a state for each part"),
    "config": (_is_section, "a configuration"),
    "extra": (_is_section, "values by name"),
}
OPTIONAL: Mapping[str, tuple[Check, str]] = {
    "loss": (lambda value: value is None or type(value) in (int, float), "a number"),
    "reason": (lambda value: value is None or isinstance(value, str), "text"),
}


def check(path: Path, contents: Mapping[str, Any]) -> None:
    """Raise InstrumentError for the first entry that is missing or is not what this program writes."""
    for name, (allowed, expected) in {**ENTRIES, **OPTIONAL}.items():
        if name not in contents:
            if name in ENTRIES:
                raise InstrumentError(f"{path} holds no {name}: it is not complete; resume from another checkpoint")
        elif not allowed(contents[name]):
            raise InstrumentError(
                f"{path} is damaged: its {name} is {shown(contents[name])} and must be {expected}; "
                "resume from another checkpoint"
            )


def position(path: Path, extra: Mapping[str, Any]) -> Position:
    """Return where the data goes on; raise InstrumentError where the checkpoint does not hold it."""
    saved = extra.get("position")
    if not (isinstance(saved, list | tuple) and len(saved) == 2 and all(map(_is_count, saved))):
        what = "no data position" if saved is None else f"the data position {shown(saved)}, not [epoch, batch]"
        raise InstrumentError(f"{path} holds {what}: it is not a checkpoint of this trainer; resume from another one")
    return Position(*saved)
