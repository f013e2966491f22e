"""Changes to torch.profiler JSON: missing, renamed or duplicate keys, other value types, other layouts."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from typing import Any

from tests.fuzz.structure import NUMBERS, TEXTS

DEEP: object = json.loads("[" * 70 + "]" * 70)
VALUES: tuple[object, ...] = (
    *NUMBERS, *TEXTS, *map(str, NUMBERS), None, True, False, 1.5, -0.0, 1e300, float("inf"), float("nan"), 10**30,
    2**63, -(10**30), "0x7", "1e5", " 7", "7 ", "+7", "\ud800", "NaN", [], {}, [[]], [1], ["x"], {"a": {}},
    {"data": []}, DEEP,
)  # fmt: skip
LITTER = (
    b"9" * 40, b"-", b"1e999", b"null", b"{", b"}", b"]", b"[" * 2000, b'"', b"\\ud800", b"\xff", b"true", b",,",
    b"NaN", b"\\", b"\x1e", b"\x00", b"\r\n", b"//", b"\xc3", b"\xef\xbb\xbf", b'"ts":1,', b'"traceEvents": [',
    b'{"data": [',
)  # fmt: skip


def changed_values(items: list[Any], chance: random.Random) -> list[str]:
    """Change some objects in a list in place, and return the changes."""
    made = []
    for _ in range(chance.choice((1, 1, 2, 5, 30))):
        if not items:
            break
        change = chance.choice(CHANGES)
        made.append(change.__name__)
        change(items, chance.randrange(len(items)), chance)
    return sorted(set(made))


def _holder(value: Any, chance: random.Random) -> Any:
    """Return an object or a list at some depth in a value."""
    while True:
        inner = list(value.values()) if isinstance(value, dict) else value
        deeper = [item for item in inner if isinstance(item, (dict, list)) and item]
        if not deeper or chance.random() < 0.3:
            return value
        value = chance.choice(deeper)


def _value(chance: random.Random) -> object:
    return copy.deepcopy(chance.choice(VALUES))


def _key(holder: Any, chance: random.Random) -> Any:
    return chance.choice(list(holder)) if isinstance(holder, dict) else chance.randrange(len(holder))


def set_value(items: list[Any], at: int, chance: random.Random) -> None:
    if isinstance(items[at], (dict, list)) and items[at]:
        holder = _holder(items[at], chance)
        holder[_key(holder, chance)] = _value(chance)


def set_everywhere(items: list[Any], at: int, chance: random.Random) -> None:
    """Set a key in many objects."""
    if isinstance(items[at], dict) and items[at]:
        key, value, every = chance.choice(list(items[at])), _value(chance), chance.choice((1, 3, 10))
        for item in items[::every]:
            if isinstance(item, dict) and key in item:
                item[key] = value


def drop_key(items: list[Any], at: int, chance: random.Random) -> None:
    if isinstance(items[at], (dict, list)) and items[at]:
        holder = _holder(items[at], chance)
        del holder[_key(holder, chance)]


def rename_key(items: list[Any], at: int, chance: random.Random) -> None:
    if isinstance(items[at], dict) and items[at] and isinstance(holder := _holder(items[at], chance), dict) and holder:
        key = chance.choice(list(holder))
        holder[chance.choice((key.upper(), key + " ", "", "args", "kernel", "data", "Type", "ph"))] = holder.pop(key)


def reorder_keys(items: list[Any], at: int, chance: random.Random) -> None:
    if isinstance(items[at], dict):
        items[at] = dict(chance.sample(list(items[at].items()), len(items[at])))


def nest(items: list[Any], at: int, chance: random.Random) -> None:
    if isinstance(items[at], dict) and items[at]:
        holder = _holder(items[at], chance)
        key = _key(holder, chance)
        holder[key] = chance.choice(([holder[key]], {"a": holder[key]}, json.dumps(holder[key], default=str)))


def replace(items: list[Any], at: int, chance: random.Random) -> None:
    items[at] = _value(chance)


def repeat(items: list[Any], at: int, chance: random.Random) -> None:
    items.extend([items[at]] * chance.choice((1, 1, 20)))


def swap(items: list[Any], at: int, chance: random.Random) -> None:
    other = chance.randrange(len(items))
    items[at], items[other] = items[other], items[at]


def remove(items: list[Any], at: int, chance: random.Random) -> None:
    del items[at : at + chance.choice((1, 1, 100))]


CHANGES: tuple[Callable[[list[Any], int, random.Random], None], ...] = (
    set_value, set_value, set_value, set_everywhere, set_everywhere, drop_key, drop_key, rename_key, reorder_keys, nest,
    replace, repeat, swap, remove,
)  # fmt: skip


def littered(data: bytes, chance: random.Random) -> bytes:
    """Return text with inserted and deleted parts."""
    for _ in range(chance.choice((1, 1, 5, 50))):
        at = chance.randrange(len(data) + 1)
        data = data[:at] + chance.choice(LITTER) + data[at + chance.choice((0, 1, 9)) :]
    return data


def encoded(text: str, chance: random.Random) -> bytes:
    """Return a text as bytes, usually in UTF-8."""
    how = chance.choice(("plain",) * 12 + ("bom", "utf-16", "crlf", "blanks", "latin", "behind"))
    data = text.encode("utf-8", "surrogatepass")
    return {
        "bom": b"\xef\xbb\xbf" + data,
        "utf-16": text.encode("utf-16", "surrogatepass"),
        "crlf": data.replace(b"\n", b"\r\n"),
        "blanks": b" \n\t" * chance.choice((1, 300)) + data,
        "latin": text.encode("latin-1", "replace"),
        "behind": data + chance.choice((b"\x00", b"\n\n", b"{}", b"]", b"x" * 5000)),
    }.get(how, data)


def dumped(value: object, chance: random.Random) -> str:
    """Return a value as JSON in one of the usual layouts."""
    indent = chance.choice((None, None, None, 0, 2))
    return json.dumps(
        value, indent=indent, separators=chance.choice((None, (",", ":"))), ensure_ascii=chance.random() < 0.7,
        sort_keys=chance.random() < 0.1,
    )  # fmt: skip
